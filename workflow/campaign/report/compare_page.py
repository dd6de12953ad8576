"""Comparison page: texts and rows for reports/compare.html.j2, in the report's style."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from campaign.analysis.compare.campaign_spread import MIN_CAMPAIGNS, CampaignSpread
from campaign.analysis.compare.comparison import CampaignComparison
from campaign.analysis.compare.matching import CONTENT, NAMES, SHAPES
from campaign.analysis.statistics import verdict
from campaign.common import wording
from campaign.common.intervals import SIGNIFICANCE_LEVEL, simultaneous_width_factor
from campaign.report.context_schema import PublishedResults
from campaign.report.intervals_column import Interval, build_intervals_column
from campaign.report.sections.published import build_published_section
from campaign.report.templates import render_template

# The page has the largest changes; the JSON document has all.
ROWS_ON_PAGE = 300
_INTERVAL_KINDS = {"faster": "better", "slower": "worse"}
_BASIS_COLUMNS = ("Compositions", "Degrees of freedom", "Compared")


def render_compare_page(comparison: CampaignComparison, back_address: str = "") -> str:
    """Render the page of a comparison as HTML.

    Args:
        comparison: comparison of two campaigns.
        back_address: address of the page to return to, if any.
    """
    return render_template("compare.html.j2", {**_build_context(comparison), "back": back_address})


def render_claims_page(name: str, evaluated_claims: Mapping[str, Any], score: str = "") -> str:
    """Render the page of a campaign and published claims as HTML.

    Args:
        name: name of the campaign.
        evaluated_claims: result of `campaign.analysis.published.claims.evaluate_claims`.
        score: score of the claims in words.
    """
    claims = build_published_section(PublishedResults.model_validate(evaluated_claims), ())
    return render_template("claims.html.j2", {"name": name, "published": claims, "score": score})


def _build_context(comparison: CampaignComparison) -> dict[str, Any]:
    shown_rows = select_largest_changes(comparison.rows, ROWS_ON_PAGE).to_dict("records")
    return {
        "base": comparison.base,
        "metric": comparison.metric,
        "unit": f" ({comparison.metric.unit})" if comparison.metric.unit else "",
        "other": comparison.other,
        "counts": _count_cells(comparison),
        "findings": describe_findings(comparison),
        "gate": {
            "rules": comparison.rules,
            "broken": [(violation.rule, violation.where, violation.change) for violation in comparison.violations],
        },
        "changes": build_intervals_column(
            [Interval(*_compute_change_with_bounds(row), _INTERVAL_KINDS.get(row["says"], "")) for row in shown_rows]
        ),
        "means": [_format_mean_row(row) for row in comparison.means.to_dict("records")],
        "rows": [_format_change_row(row) for row in shown_rows],
        "rows_left_out": max(0, comparison.compared_count - ROWS_ON_PAGE),
        "changed": [
            (row["cell"], row["base_outcome"], row["outcome"])
            for row in comparison.changed_outcomes.head(ROWS_ON_PAGE).to_dict("records")
        ],
        "changed_total": len(comparison.changed_outcomes),
        "only": [
            (side, len(cells), [(row["cell"], row["state"]) for row in cells.head(ROWS_ON_PAGE).to_dict("records")])
            for side, cells in ((comparison.base, comparison.only_base), (comparison.other, comparison.only_other))
            if len(cells)
        ],
        "surroundings": [
            (violation.what, violation.base or wording.NO_VALUE, violation.other or wording.NO_VALUE)
            for violation in comparison.context_differences
        ],
        "caption": _build_caption(comparison),
    }


def select_largest_changes(rows: pd.DataFrame, count: int) -> pd.DataFrame:
    """Select the largest known changes, largest first, with intervals adjusted for selection by size.

    The intervals of R rows of m hold at 1 - 0.05 R / m each, so that 95 % of those that are shown hold (Benjamini & Yekutieli,
    2005, "False discovery rate-adjusted multiple confidence intervals for selected parameters", JASA 100(469)).
    """
    rows_with_ratio = rows[rows["ratio"].notna()]
    size = np.abs(np.log(rows_with_ratio["ratio"].where(rows_with_ratio["ratio"] > 0)))
    shown_rows: pd.DataFrame = rows_with_ratio.loc[size.sort_values(ascending=False, kind="stable").index].head(count)
    width_factor = np.nan_to_num(
        simultaneous_width_factor(shown_rows["freedom"], max(1.0, len(rows_with_ratio) / count)), nan=1.0
    )
    ratio = shown_rows["ratio"]
    bounds = {end: ratio * (shown_rows[end] / ratio) ** width_factor for end in ("low", "high")}
    return shown_rows.assign(**bounds)


def _count_cells(comparison: CampaignComparison) -> list[tuple[str, str]]:
    says = comparison.rows["says"]
    return [
        ("cells in both", f"{len(comparison.rows):,}"),
        ("compared", f"{comparison.compared_count:,}"),
        ("faster", f"{int((says == 'faster').sum()):,}"),
        ("slower", f"{int((says == 'slower').sum()):,}"),
        ("with another outcome", f"{len(comparison.changed_outcomes):,}"),
        ("only in one campaign", f"{len(comparison.only_base) + len(comparison.only_other):,}"),
    ]


def describe_cell_counts(comparison: CampaignComparison) -> str:
    """Describe how many cells are compared, and how many are in one campaign only."""
    return (
        f"{wording.pluralize(len(comparison.rows), 'cell')} in both, {comparison.compared_count} compared, "
        f"{len(comparison.only_base)} only in {comparison.base}, {len(comparison.only_other)} only in {comparison.other}"
    )


def describe_findings(comparison: CampaignComparison) -> list[str]:
    """Describe the mean of each workload, the range of significant changes, and assumptions of the matching, as sentences."""
    sentences = [
        f"{row['workload']}: {_describe_mean(row, comparison.metric.performance_name)}."
        for row in comparison.means.to_dict("records")
        if row["cells"] > 1 or len(comparison.means) == 1
    ]
    significant = comparison.rows[comparison.rows["p_holm"] < SIGNIFICANCE_LEVEL]
    if len(significant):
        tested_count = int(comparison.rows["p"].notna().sum())
        sentences.append(_describe_significant_changes(significant, tested_count))
    elif comparison.rows["tested"].any():
        sentences.append("No cell changed significantly.")
    sentences += _describe_spread(comparison.spread)
    untested_rows = comparison.rows[comparison.rows["ratio"].notna() & ~comparison.rows["tested"]]
    if len(untested_rows):
        verb = "was" if len(untested_rows) == 1 else "were"
        sentences.append(
            f"{wording.pluralize(len(untested_rows), 'cell')} {verb} not tested: {verdict.explain_missing_tests(untested_rows)}."
        )
    if "adjusted" in comparison.rows:
        sentences.append(
            "Changes are relative to the reference that both campaigns measured in every composition. A change that also affects "
            "the reference does not appear here."
        )
    sentences += [
        f"{name} is a different program in {comparison.other}: {', '.join(keys).replace('_', ' ')} "
        f"{'differs' if len(keys) == 1 else 'differ'}. This can cause the changes of its cells."
        for name, keys in comparison.program_differences.items()
    ]
    rows_with_ratio = comparison.rows[comparison.rows["ratio"].notna()]
    if difference_note := verdict.describe_step_mismatches(rows_with_ratio):
        sentences.append(difference_note.strip())
    matched_by_name = int((comparison.rows["by"] == NAMES).sum())
    if matched_by_name:
        verb = "was" if matched_by_name == 1 else "were"
        sentences.append(
            f"{wording.pluralize(matched_by_name, 'cell')} {verb} matched only by name: the hardware or the options differ."
        )
    if matched_by_shape := int((comparison.rows["by"] == SHAPES).sum()):
        verb = "was" if matched_by_shape == 1 else "were"
        sentences.append(
            f"{wording.pluralize(matched_by_shape, 'cell')} {verb} matched only by shape: the names of configurations and devices "
            "differ."
        )
    return sentences


def _describe_spread(spread: CampaignSpread | None) -> list[str]:
    """Describe how much campaigns on the system differ without any change."""
    if spread is None:
        return []
    if not spread.is_known:
        return [
            f"No change is tested, because the variation between campaigns on this system is unknown until {MIN_CAMPAIGNS} earlier "
            "campaigns have measured these cells. Intervals include only the variation within the two campaigns."
        ]
    spread_text = wording.format_percent(100 * math.sqrt(spread.variance))
    return [
        f"The {spread.campaigns:,} earlier campaigns on this system differ by "
        f"{spread_text} in the same cells (standard deviation). "
        "Smaller changes are not reported as changes."
    ]


def _describe_significant_changes(significant: pd.DataFrame, tested_count: int) -> str:
    """Describe the number and the range of significant changes.

    The estimates have no intervals, because they were selected by their size.
    """
    sorted_rows = significant.sort_values("ratio", kind="stable")
    ends = [
        f"{wording.format_percent(100 * (row['ratio'] - 1))} ({row['cell']})"
        for row in sorted_rows.iloc[[0, -1] if len(sorted_rows) > 1 else [0]].to_dict("records")
    ]
    changes = f"changes range from {ends[0]} to {ends[1]}" if len(ends) > 1 else f"change is {ends[0]}"
    return f"{len(sorted_rows):,} of {wording.pluralize(tested_count, 'cell')} changed significantly; the estimated {changes}."


def _describe_mean(row: Mapping[Any, Any], quantity: str) -> str:
    noun = wording.pluralize(int(row["cells"]), "cell")
    reason = "one configuration, no interval" if row["tested"] else "not tested"
    change = wording.format_with_interval(
        *_compute_change_with_bounds(row), wording.format_percent, no_interval_text=reason
    )
    if row["p"] >= SIGNIFICANCE_LEVEL:
        return f"no significant change of {quantity}; the mean change over {noun} is {change}"
    return f"{quantity} changed by {change} on average over {noun}"


def _compute_change_with_bounds(row: Mapping[Any, Any]) -> tuple[float, float, float]:
    """Compute a row's change in percent with the bounds of its interval."""
    value, low, high = (100 * (float(row[name]) - 1) for name in ("ratio", "low", "high"))
    return value, low, high


def format_change(row: Mapping[Any, Any]) -> tuple[str, str]:
    """Format the change of a row in percent, and its interval."""
    change, low, high = _compute_change_with_bounds(row)
    return wording.format_percent(change), wording.format_range(low, high, wording.format_percent)


def _format_mean_row(row: Mapping[Any, Any]) -> tuple[str, ...]:
    return row["workload"], f"{row['cells']:,}", *format_change(row)


def _format_change_row(row: Mapping[Any, Any]) -> tuple[str, ...]:
    return (
        row["cell"],
        *format_change(row),
        verdict.format_p_value(row["p_holm"]),
        wording.format_rate(row["base_mean"]),
        wording.format_rate(row["mean"]),
        *(verdict.BASIS_COLUMNS[name](row) for name in _BASIS_COLUMNS),
        f"{row['n']} / {row['base_n']}",
        row["says"] + (f"; by {row['by']}: {row['differs']}" if row["by"] != CONTENT else ""),
    )


def _build_caption(comparison: CampaignComparison) -> str:
    counts = [*comparison.rows["base_n"], *comparison.rows["n"]]
    methods = comparison.rows.loc[comparison.rows["ratio"].notna(), "method"].str.removesuffix(", 95 %")
    methods_text = "; ".join(f"{method}: {count:,}" for method, count in methods.value_counts(sort=False).items())
    return (
        f"Change of mean {comparison.metric.performance_name} from {comparison.base} to {comparison.other}, "
        f"with its 95 % interval ({methods_text}); "
        f"{wording.format_run_counts(counts).removeprefix('n = ')} per cell in each campaign. p-values test for no change and are "
        f"adjusted over all compared cells (Holm). {_describe_basis(comparison)}The campaigns were measured at "
        "different times, so every change includes other changes of the system in between. "
        f"{' '.join(comparison.protocols)}"
    ).strip()


def _describe_basis(comparison: CampaignComparison) -> str:
    rows_with_ratio = comparison.rows[comparison.rows["ratio"].notna()]
    return f"{verdict.describe_evidence(rows_with_ratio)} " if len(rows_with_ratio) else ""
