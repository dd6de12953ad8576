"""Comparison page: words and rows for reports/compare.html.j2, in the report's style."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from campaign.analysis.compare.campaign_spread import MIN_CAMPAIGNS, CampaignSpread
from campaign.analysis.compare.comparison import Comparison
from campaign.analysis.compare.matching import CONTENT, NAMES, SHAPES
from campaign.analysis.statistics import verdict
from campaign.common import wording
from campaign.common.intervals import SIGNIFICANCE_LEVEL, simultaneous_width_factor
from campaign.report.context_schema import PublishedSaid
from campaign.report.intervals_column import Interval, column
from campaign.report.sections.published import published
from campaign.report.templates import filled

# A page is for reading: the largest changes first, the rest is in the JSON document.
ROWS_ON_PAGE = 300
_KINDS = {"faster": "better", "slower": "worse"}
_BASIS = ("Compositions", "Degrees of freedom", "Compared")


def compare_page(comparison: Comparison, back: str = "") -> str:
    """Render the page of a comparison as HTML.

    back_address: address of the page to return to, if any.
    """
    return filled("compare.html.j2", {**_context(comparison), "back": back})


def claims_page(name: str, said: Mapping[str, Any], score: str = "") -> str:
    """Render the page of a campaign and published claims as HTML.

    Args:
        name: name of the campaign.
        evaluated_claims: result of `campaign.analysis.published.claims.evaluate_claims`.
        score: score of the claims in words.
    """
    claims = published(PublishedSaid.model_validate(said), ())
    return filled("claims.html.j2", {"name": name, "published": claims, "score": score})


def _context(comparison: Comparison) -> dict[str, Any]:
    shown = largest_changes(comparison.rows, ROWS_ON_PAGE).to_dict("records")
    return {
        "base": comparison.base,
        "metric": comparison.metric,
        "unit": f" ({comparison.metric.unit})" if comparison.metric.unit else "",
        "other": comparison.other,
        "counts": _counts(comparison),
        "findings": findings(comparison),
        "gate": {
            "rules": comparison.rules,
            "broken": [(each.rule, each.where, each.change) for each in comparison.broken],
        },
        "changes": column([Interval(*_bounds(row), _KINDS.get(row["says"], "")) for row in shown]),
        "means": [_mean(row) for row in comparison.means.to_dict("records")],
        "rows": [_row(row) for row in shown],
        "rows_left_out": max(0, comparison.compared - ROWS_ON_PAGE),
        "changed": [
            (row["cell"], row["base_outcome"], row["outcome"])
            for row in comparison.changed.head(ROWS_ON_PAGE).to_dict("records")
        ],
        "changed_total": len(comparison.changed),
        "only": [
            (side, len(cells), [(row["cell"], row["state"]) for row in cells.head(ROWS_ON_PAGE).to_dict("records")])
            for side, cells in ((comparison.base, comparison.only_base), (comparison.other, comparison.only_other))
            if len(cells)
        ],
        "surroundings": [
            (each.what, each.base or wording.NO_VALUE, each.other or wording.NO_VALUE)
            for each in comparison.surroundings
        ],
        "caption": _caption(comparison),
    }


def largest_changes(rows: pd.DataFrame, count: int) -> pd.DataFrame:
    """Return the largest of the known changes, the largest first, with intervals for rows that were selected by their size.

    The intervals of R rows of m hold at 1 - 0.05 R / m each, so that 95 % of those that are shown hold (Benjamini & Yekutieli,
    2005, "False discovery rate-adjusted multiple confidence intervals for selected parameters", JASA 100(469)).
    """
    known = rows[rows["ratio"].notna()]
    size = np.abs(np.log(known["ratio"].where(known["ratio"] > 0)))
    shown: pd.DataFrame = known.loc[size.sort_values(ascending=False, kind="stable").index].head(count)
    wider = np.nan_to_num(simultaneous_width_factor(shown["freedom"], max(1.0, len(known) / count)), nan=1.0)
    ratio = shown["ratio"]
    bounds = {end: ratio * (shown[end] / ratio) ** wider for end in ("low", "high")}
    return shown.assign(**bounds)


def _counts(comparison: Comparison) -> list[tuple[str, str]]:
    says = comparison.rows["says"]
    return [
        ("cells in both", f"{len(comparison.rows):,}"),
        ("compared", f"{comparison.compared:,}"),
        ("faster", f"{int((says == 'faster').sum()):,}"),
        ("slower", f"{int((says == 'slower').sum()):,}"),
        ("other outcome", f"{len(comparison.changed):,}"),
        ("only in one", f"{len(comparison.only_base) + len(comparison.only_other):,}"),
    ]


def findings(comparison: Comparison) -> list[str]:
    """Describe the mean of each workload, the range of significant changes, and assumptions of the matching, as sentences."""
    told = [
        f"{row['workload']}: {_mean_words(row, comparison.metric.performance)}."
        for row in comparison.means.to_dict("records")
        if row["cells"] > 1 or len(comparison.means) == 1
    ]
    certain = comparison.rows[comparison.rows["p_holm"] < SIGNIFICANCE_LEVEL]
    if len(certain):
        tested = int(comparison.rows["p"].notna().sum())
        told.append(f"{_changed(certain)} of {wording.pluralize(tested, 'cell')} (Holm).")
    elif comparison.rows["tested"].any():
        told.append("No cell shows a significant change (Holm).")
    told += _describe_spread(comparison.spread)
    alone = comparison.rows[comparison.rows["ratio"].notna() & ~comparison.rows["tested"]]
    if len(alone):
        told.append(f"{wording.pluralize(len(alone), 'cell')} not tested: {verdict.why_not_tested(alone)}.")
    if "adjusted" in comparison.rows:
        told.append(
            "Changes are relative to the reference that both campaigns measured in every composition: what changed the reference "
            "as well is no change here."
        )
    told += [
        f"{name} is another program in {comparison.other}: {', '.join(keys).replace('_', ' ')} "
        f"{'differs' if len(keys) == 1 else 'differ'}. Its changes are those of the program as well."
        for name, keys in comparison.programs.items()
    ]
    known = comparison.rows[comparison.rows["ratio"].notna()]
    if unlike := verdict.unlike(known):
        told.append(unlike.strip())
    named = int((comparison.rows["by"] == NAMES).sum())
    if named:
        told.append(f"{wording.pluralize(named, 'cell')} matched by names alone: the hardware or the options differ.")
    if shaped := int((comparison.rows["by"] == SHAPES).sum()):
        told.append(
            f"{wording.pluralize(shaped, 'cell')} matched by shape alone: configurations and devices have other names."
        )
    return told


def _describe_spread(spread: CampaignSpread | None) -> list[str]:
    """Describe how much campaigns on the system differ without any change."""
    if spread is None:
        return []
    if not spread.is_known:
        return [
            f"How much campaigns on this system differ is unknown before {MIN_CAMPAIGNS} earlier ones measured these cells, so no "
            "change is tested. Intervals hold the spread within the two campaigns only."
        ]
    size = wording.format_percent(100 * math.sqrt(spread.variance))
    return [
        f"The {spread.campaigns:,} earlier campaigns on this system differ by {size} in the same cells (standard deviation). "
        "No change below this spread is called one."
    ]


def _changed(certain: pd.DataFrame) -> str:
    """Describe the range of significant changes.

    The estimates have no intervals, as they were selected by their size.
    """
    ordered = certain.sort_values("ratio", kind="stable")
    ends = [
        f"{wording.format_percent(100 * (row['ratio'] - 1))} ({row['cell']})"
        for row in ordered.iloc[[0, -1] if len(ordered) > 1 else [0]].to_dict("records")
    ]
    return f"Significant changes: estimated as {' to '.join(ends)}, in {len(ordered):,}"


def _mean_words(row: Mapping[Any, Any], noun_of: str) -> str:
    noun = wording.pluralize(int(row["cells"]), "cell")
    none = "one configuration, no interval" if row["tested"] else "not tested, as none of these cells is"
    change = wording.format_with_interval(*_bounds(row), wording.format_percent, no_interval_text=none)
    significance = "" if not row["p"] >= SIGNIFICANCE_LEVEL else ", not significant"
    return f"{noun_of} changed by {change} on average over {noun}{significance}"


def _bounds(row: Mapping[Any, Any]) -> tuple[float, float, float]:
    """Return the change in percent with the bounds of its interval."""
    value, low, high = (100 * (float(row[name]) - 1) for name in ("ratio", "low", "high"))
    return value, low, high


def _mean(row: Mapping[Any, Any]) -> tuple[str, ...]:
    between = wording.format_range(100 * (row["low"] - 1), 100 * (row["high"] - 1), wording.format_percent)
    return row["workload"], f"{row['cells']:,}", wording.format_percent(100 * (row["ratio"] - 1)), between


def _row(row: Mapping[Any, Any]) -> tuple[str, ...]:
    return (
        row["cell"],
        wording.format_percent(100 * (row["ratio"] - 1)),
        wording.format_range(100 * (row["low"] - 1), 100 * (row["high"] - 1), wording.format_percent),
        verdict.p_value(row["p_holm"]),
        wording.format_rate(row["base_mean"]),
        wording.format_rate(row["mean"]),
        *(verdict.COLUMNS[name](row) for name in _BASIS),
        f"{row['n']} / {row['base_n']}",
        row["says"] + (f"; by {row['by']}: {row['differs']}" if row["by"] != CONTENT else ""),
    )


def _caption(comparison: Comparison) -> str:
    counts = [*comparison.rows["base_n"], *comparison.rows["n"]]
    methods = comparison.rows.loc[comparison.rows["ratio"].notna(), "method"].str.removesuffix(", 95 %")
    how = "; ".join(f"{method}: {count:,}" for method, count in methods.value_counts(sort=False).items())
    return (
        f"Change of mean {comparison.metric.performance} of {comparison.other} against {comparison.base}, "
        f"with its 95 % interval ({how}); "
        f"{wording.format_run_counts(counts)} a cell and side. p-values are adjusted by Holm over all compared cells. "
        f"{_rests_on(comparison)}The campaigns were measured at different times: what else changed on the system in between is "
        f"part of every change. {' '.join(comparison.measured)}"
    ).strip()


def _rests_on(comparison: Comparison) -> str:
    known = comparison.rows[comparison.rows["ratio"].notna()]
    return f"{verdict.rests_on(known)} " if len(known) else ""
