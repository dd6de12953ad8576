"""What a campaign can be asked until it is answered: the best configuration, a comparison, or a frontier. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from campaign.config.resolve import Campaign
from campaign.documents.cell import Cell
from campaign.documents.expression import Expression, parse
from campaign.errors import ConfigError, nearest
from campaign.plan.matrix import expand
from campaign.plan.selection import axis_names

Form = Literal["best", "comparison", "frontier"]

FORMS = (
    "the best configuration is known within 5 %",
    "CONFIGURATION against CONFIGURATION is decided within 3 %",
    "the frontier of throughput and device-hours is known within 5 %",
)
"""One example of each form; all may end in `for EXPRESSION`, such as "for workload == 'bert' and batch == 8"."""

_BEST = re.compile(r"the best configuration is known")
_FRONTIER = re.compile(r"the frontier of throughput (?:and|against) device-hours is known")
_COMPARISON = re.compile(r"(\S+) against (\S+) is decided")
_WITHIN = re.compile(r"(.*?) within (\S+?)\s*(?:%|percent)")


@dataclass(frozen=True)
class Question:
    """A question about the cells of a campaign that `where` selects.

    within_pct: what may remain unknown. first, second: configurations that are compared.
    """

    text: str
    form: Form
    within_pct: float
    first: str = ""
    second: str = ""
    where: Expression | None = None

    def about(self, cell: Cell) -> bool:
        """Whether a cell is one of those that it asks about."""
        if self.form == "comparison" and cell.configuration.name not in (self.first, self.second):
            return False
        return self.beside(cell)

    def beside(self, cell: Cell) -> bool:
        """Whether a cell is like those: of a comparison, also of another configuration."""
        return self.where is None or self.where(cell.axes())


def parse_question(text: str, campaign: Campaign) -> Question:
    """Read a question. ConfigError lists the forms that are allowed, or names what is not known."""
    question = _read(text, campaign)
    if not any(question.about(cell) for cell in expand(campaign).cells):
        raise ConfigError(f"--until: the campaign has no cell that '{question.text}' is about; see 'campaign plan'")
    return question


def _read(text: str, campaign: Campaign) -> Question:
    asked = " ".join(text.split()).rstrip(".")
    body, _, about = asked.partition(" for ")
    where = parse(about, axis_names(campaign), "--until") if about else None
    within = _WITHIN.fullmatch(body)
    if within is None:
        raise ConfigError(_not_understood(text, campaign))
    clause, percentage = within[1], _percentage(text, within[2])
    if _BEST.fullmatch(clause):
        return Question(asked, "best", percentage, where=where)
    if _FRONTIER.fullmatch(clause):
        return Question(asked, "frontier", percentage, where=where)
    pair = _COMPARISON.fullmatch(clause)
    if pair is None:
        raise ConfigError(_not_understood(text, campaign))
    first, second = _configurations(pair.groups(), [each.name for each in campaign.configurations])
    return Question(asked, "comparison", percentage, first, second, where)


def _configurations(names: Sequence[str], known: Sequence[str]) -> tuple[str, str]:
    for name in names:
        if name not in known:
            raise ConfigError(f"--until: the campaign has no configuration '{name}'; {nearest(name, known)}")
    if names[0] == names[1]:
        raise ConfigError(f"--until: '{names[0]}' is compared with itself; name two configurations")
    return names[0], names[1]


def _percentage(text: str, number: str) -> float:
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    if not 0 < value < 100:
        raise ConfigError(f"--until: '{text}' needs a percentage above 0 and below 100, such as 'within 5 %'")
    return value


def _not_understood(text: str, campaign: Campaign) -> str:
    names = [each.name for each in campaign.configurations]
    pair = f"{names[0]} against {names[-1]}" if len(names) > 1 else ""
    forms = [
        form.replace("CONFIGURATION against CONFIGURATION", pair) for form in FORMS if pair or "against" not in form
    ]
    workload, batch = campaign.file.axes.workload[0], campaign.file.axes.batch[0]
    return (
        f"--until: '{text}' is no question that can be answered; ask for one of: "
        + "; ".join(f'"{form}"' for form in forms)
        + f'; each may end in "for EXPRESSION", such as "for workload == \'{workload}\' and batch == {batch}"'
    )
