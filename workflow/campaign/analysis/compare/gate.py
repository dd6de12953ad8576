"""Regression gate: rules that make a comparison fail, such as `throughput < -5%`, `energy_per_sample_j > 10%` or `state`.

A change is that of the other campaign relative to the baseline, in percent. A cell violates a rule if its change is beyond the
limit and significant after Holm's adjustment over all matched cells. If each side was measured on one composition and the
difference between compositions is unknown, there is no test: such a change violates no rule and is listed as not tested. For
throughput, the mean over the cells of a workload can violate a rule like a cell. `state` applies to cells that were measured in
the baseline but not in the other campaign.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from campaign.common import wording
from campaign.common.errors import ConfigError
from campaign.common.intervals import SIGNIFICANCE_LEVEL, Floats

THROUGHPUT, STATE = "throughput", "state"

_RULE = re.compile(r"\s*([A-Za-z_]\w*)\s*(<=|>=|<|>)\s*([+-]?\d+(?:\.\d+)?)\s*%\s*")
_OPERATORS: dict[str, Callable[[Floats, float], np.ndarray]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@dataclass(frozen=True)
class RegressionRule:
    """Rule of the regression gate: a quantity, and the change in percent that violates the rule."""

    text: str
    quantity: str
    test: str = ""
    limit_pct: float = 0.0


@dataclass(frozen=True)
class RuleViolation:
    """Violation of a rule by a cell or a workload."""

    rule: str
    where: str
    change: str
    tested: bool = True


def parse_rule(text: str) -> RegressionRule:
    """Parse a rule of the regression gate.

    Raises ConfigError if the text is not a rule; its message names the allowed forms.
    """
    if text.strip() == STATE:
        return RegressionRule(text.strip(), STATE)
    match = _RULE.fullmatch(text)
    if match is None:
        raise ConfigError(
            f"--fail-on '{text}' is not a valid rule; write 'state', or a quantity, one of < <= > >= and a change in percent, "
            "such as 'throughput < -5%' or 'energy_per_sample_j > 10%'"
        )
    quantity, test, limit = match.groups()
    return RegressionRule(" ".join(text.split()), quantity, test, float(limit))


def find_change_violations(
    rule: RegressionRule, labels: list[str], ratio: Floats, p_holm: Floats
) -> list[RuleViolation]:
    """Return the violations of a rule about a quantity.

    Args:
        rule: the rule.
        labels: cells or workloads in words.
        ratio: change of each of them as a ratio.
        p_holm: adjusted p-value of each change; nan if it is not tested.
    """
    change_pct = 100 * (ratio - 1)
    exceeds_limit = _OPERATORS[rule.test](
        np.where(np.isfinite(change_pct), change_pct, 0.0), rule.limit_pct
    ) & np.isfinite(change_pct)
    exceeds_limit &= ~(p_holm >= SIGNIFICANCE_LEVEL)
    return [
        RuleViolation(
            rule.text, labels[index], wording.format_percent(change_pct[index]), bool(np.isfinite(p_holm[index]))
        )
        for index in np.flatnonzero(exceeds_limit)
    ]


def find_state_violations(rule: RegressionRule, rows: pd.DataFrame) -> list[RuleViolation]:
    """Return a violation for each cell that was measured in the baseline but not in the other campaign."""
    lost_cells = rows[(rows["base_state"] == "measured") & (rows["state"] != "measured")]
    return [
        RuleViolation(rule.text, row["cell"], f"measured → {row['outcome']}") for row in lost_cells.to_dict("records")
    ]
