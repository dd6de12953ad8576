"""Wording of comparisons: a significant difference, the largest difference that is not ruled out, or no statement.

Rows are those of `campaign.analysis.statistics.comparable_cells`, with p, p_holm, n_tests, paired, n_pairs, and the basis
of the comparison (`campaign.analysis.statistics.comparisons.Ratios.build_basis_columns`). A difference counts if it is
significant among all comparisons of its figure (Holm, 5 %). A sentence about several comparisons has the interval of their
mean, never the interval of the largest of them. A statement begins with the effect, or with the absence of a significant one,
and ends with its conditions. Tables have the numbers of compositions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from campaign.analysis.statistics.average_ratio import compute_average_ratio
from campaign.analysis.statistics.comparisons import Ratios
from campaign.analysis.statistics.drift import is_adjusted
from campaign.analysis.statistics.experiment_design import Design
from campaign.common import intervals, wording
from campaign.common.intervals import SIGNIFICANCE_LEVEL

# An interval around no effect that is wider than this excludes no plausible difference.
_MAX_INFORMATIVE_DIFFERENCE_PCT = 50.0


SEQUENTIAL_RUNS_CAVEAT = (
    "The runs of a cell were consecutive, not in blocks, so drift of the system can look like an effect."
)
FIXED_LEASE_ORDER_CAVEAT = (
    "Compositions were made in a fixed order instead of random blocks, so drift of the system during the campaign can look "
    "like an effect."
)
UNKNOWN_LEASE_ORDER_CAVEAT = "The order of compositions is unknown, so drift of the system can look like an effect."
DRIFT_ADJUSTMENT_NOTE = (
    "Comparisons between compositions are adjusted: the cost of each run was divided by that of the reference in the same "
    "composition. This removes drift of the system during the campaign and adds the noise of the reference."
)
RUN_VARIATION_ONLY = "each configuration was composed once"
NOT_TESTED_ONE_COMPOSITION = (
    "measured on one composition each, not tested; the interval includes only run-to-run variation"
)
NOT_TESTED_DIFFERENT_HOSTS = "not tested: the compared hosts differ"
NOT_TESTED_SINGLE_RUN = "measured once each, not tested"
_SPREAD_FROM_OTHER_CELLS = "the spread of compositions is estimated from other cells"
_SPREAD_FROM_EARLIER_CAMPAIGNS = "the spread of compositions is estimated from earlier campaigns on this system ({})"
_SPREAD_FROM_OTHER_CHANGES = "the spread is estimated from the changes of other configurations"


def is_significant(row: Mapping[Any, Any]) -> bool:
    """Return whether the difference is significant among all comparisons of the figure (Holm)."""
    return bool(row["p_holm"] < SIGNIFICANCE_LEVEL)


def has_significant_difference(rows: pd.DataFrame) -> bool:
    """Return whether any of several comparisons is significant."""
    return bool((rows["p_holm"] < SIGNIFICANCE_LEVEL).any())


def is_untested(row: Mapping[Any, Any]) -> bool:
    """Return whether a comparison cannot be tested because each cell was measured on one composition."""
    return not row.get("tested", True) and row.get("method") != intervals.NO_INTERVAL_REFERENCE


def explain_missing_test(row: Mapping[Any, Any]) -> str:
    """Explain why a comparison is not tested, as text to put in parentheses."""
    return (
        NOT_TESTED_DIFFERENT_HOSTS if row["method"] == intervals.CONFOUNDED_WITH_HOSTS else NOT_TESTED_ONE_COMPOSITION
    )


def explain_missing_tests(rows: pd.DataFrame) -> str:
    """Explain why several comparisons are not tested, as part of a sentence."""
    if (rows["method"] == intervals.CAMPAIGNS_UNKNOWN).any():
        return "the spread between campaigns is unknown"
    is_confounded = rows["method"] == intervals.CONFOUNDED_WITH_HOSTS
    return NOT_TESTED_DIFFERENT_HOSTS.partition(": ")[2] if is_confounded.any() else RUN_VARIATION_ONLY


def bound_difference_pct(low_pct: float, high_pct: float) -> float:
    """Return the largest absolute difference, in percent, within the interval of a difference."""
    return max(abs(low_pct), abs(high_pct))


def describe_basis(row: Mapping[Any, Any]) -> str:
    """Describe what a comparison is based on, such as 'within one composition', to put in parentheses.

    The text is '' without a test, and for a comparison over several compositions without limitations.
    """
    return "; ".join(phrase for phrase in (_describe_compositions(row), *_list_alternative_causes(row)) if phrase)


def _describe_compositions(row: Mapping[Any, Any]) -> str:
    """Describe if a comparison is within compositions, and its source of variance; empty if it is not tested."""
    if not row["tested"]:
        return ""
    method = row["method"]
    if method in (intervals.T_PAIRED_BY_BLOCK, intervals.T_OVER_RUNS_OF_COMPOSITION):
        return "within one composition"
    if method == intervals.T_PAIRED_BY_LEASE:
        return f"within {int(row['compositions']):,} compositions"
    if method == intervals.T_BORROWED_SPREAD:
        return "variance estimated from other cells"
    if method == intervals.T_BORROWED_EARLIER_SPREAD:
        return f"variance estimated from {row['lent_by']}"
    if method == intervals.T_BORROWED_CHANGE_SPREAD:
        return f"variance estimated from the changes of other configurations, {_spell_out_freedom(row)}"
    return ""


def _list_alternative_causes(row: Mapping[Any, Any]) -> Sequence[str]:
    """List other possible causes of a difference: order, different numbers of steps, noisy compositions."""
    if not math.isfinite(row["ratio"] if "ratio" in row else row["p"]):
        return ()
    order_effect = (
        "the order is not random or unknown, so drift can look like an effect"
        if row["in_order"] and row["tested"]
        else ""
    )
    order_effect = "adjusted by the reference" if row.get("adjusted", False) else order_effect
    noisy = f"compositions of {row['noisy']} vary more than those of other configurations" if row.get("noisy") else ""
    return order_effect, f"measured differently: {row['unlike']}" if row["unlike"] else "", noisy


def _spell_out_freedom(row: Mapping[Any, Any]) -> str:
    """Format the degrees of freedom of a comparison in words, such as '4 degrees of freedom'."""
    return wording.pluralize(max(1, round(row["freedom"])), "degree") + " of freedom"


def format_estimate(
    row: Mapping[Any, Any], values: tuple[float, float, float], format_value: Callable[[float], str], subject: str = ""
) -> str:
    """Format the estimate of a comparison with its interval, its subject and its basis.

    Args:
        row: comparison.
        values: estimate and its lower and upper bound.
        format_value: formats one number.
        subject: subject of the estimate, such as the name of a cell.
    """
    return wording.format_with_interval(
        *values, format_value, "; ".join(phrase for phrase in (subject, describe_basis(row)) if phrase)
    )


def describe_comparison(
    row: Mapping[Any, Any],
    values: tuple[float, float, float],
    statement: str,
    effect: str,
    format_value: Callable[[float], str] = wording.format_ratio,
    subject: str = "",
) -> str:
    """Describe one comparison in a sentence: the effect, or that it is not significant, and then its conditions.

    Args:
        row: comparison.
        values: estimate and its lower and upper bound.
        statement: sentence without its full stop, with '{}' for the number.
        effect: name of the effect.
        format_value: formats one number.
        subject: what is compared, such as the name of a cell.
    """
    value, low, high = values
    if is_significant(row) or not math.isfinite(row["p"]):
        has_interval = math.isfinite(low) and math.isfinite(high)
        if is_untested(row) and not has_interval:
            number, caveat = format_value(value), NOT_TESTED_SINGLE_RUN
        else:
            number = wording.format_with_interval(value, low, high, format_value)
            caveat = explain_missing_test(row) if is_untested(row) else ""
        conditions = "; ".join(filter(None, (subject, describe_basis(row), caveat)))
        return f"{statement.format(number)}{f' ({conditions})' if conditions else ''}."
    percent = [end if format_value is wording.format_percent else 100 * (end - 1) for end in (low, high)]
    estimate = format_estimate(row, values, format_value, subject)
    return f"No significant {effect}: the estimate is {estimate}{_describe_doubt(row, *percent)}."


def summarize_effects(
    rows: pd.DataFrame,
    design: Design,
    label_columns: Sequence[str],
    statement: str,
    effect: str,
    convert_ratio: Callable[[float], float] = float,
    format_value: Callable[[float], str] = wording.format_ratio,
) -> str:
    """Describe the ratios of one or several cells in sentences.

    The first sentence states the effect, or that there is no significant one. One cell has its own interval. For several cells
    the mean has an interval, and the smallest and largest estimates have none. An estimate that is quoted because it is the
    largest is larger than its true value, so its own interval is too often wrong.

    Args:
        rows: comparisons, at least one, each with a ratio.
        design: design of the cells.
        label_columns: columns that distinguish the cells.
        statement: sentence without its full stop, with '{}' for the number, such as 'bf16 is {} as fast as fp32'.
        effect: name of the effect, such as 'difference between bf16 and fp32'.
        convert_ratio: converts a ratio to the number that is shown.
        format_value: formats this number.
    """
    if len(rows) == 1:
        row = rows.to_dict("records")[0]
        value, *ends = (convert_ratio(row[name]) for name in ("ratio", "ratio_low", "ratio_high"))
        low, high = sorted(ends)
        subject = wording.format_axes(row, label_columns)
        return describe_comparison(row, (value, low, high), statement, effect, format_value, subject)
    has_effect = has_significant_difference(rows) or bool(rows["p"].isna().all())
    if has_effect:
        number, reason = _format_average(rows, design, convert_ratio, format_value)
        extremes = _describe_estimate_range(rows, "cells", label_columns, convert_ratio, format_value)
        return (
            f"{statement.format(number)} on average over {len(rows):,} cells{reason}. {extremes}"
            f"{_describe_significance(rows)}."
        )
    number, reason = _format_average(rows, design, convert_ratio, format_value)
    tested_count = int(rows["p"].notna().sum())
    untested_text = "" if tested_count == len(rows) else f" over {len(rows):,} cells"
    return (
        f"No significant {effect} in {'any of ' if tested_count > 1 else ''}{wording.pluralize(tested_count, 'cell')}: the mean"
        f"{untested_text} is {number}{reason}{_describe_excluded_differences(rows, convert_ratio, format_value)}."
    )


def summarize_shown_cells(
    rows: pd.DataFrame,
    design: Design,
    label_columns: Sequence[str],
    statement: str,
    effect: str,
    convert_ratio: Callable[[float], float] = float,
    format_value: Callable[[float], str] = wording.format_ratio,
) -> str:
    """Describe the few cells of a small picture in a sentence, by the numbers that the picture shows.

    One cell has its interval. Several cells have the smallest and the largest estimate. For arguments see `summarize_effects`.
    """
    if len(rows) == 1:
        return summarize_effects(rows, design, label_columns, statement, effect, convert_ratio, format_value)
    extremes = format_estimate_range(rows, label_columns, convert_ratio, format_value)
    if has_significant_difference(rows) or rows["p"].isna().all():
        return f"{statement.format(extremes)}{_describe_significance(rows)}."
    return f"No significant {effect}: {extremes}."


def _describe_doubt(row: Mapping[Any, Any], low_pct: float, high_pct: float) -> str:
    """Return the end of a sentence on an insignificant comparison with these bounds of the difference."""
    if row["p"] < SIGNIFICANCE_LEVEL:
        family = f"over the {int(row['n_tests']):,} comparisons of this figure"
        return f", with p of no difference = {format_p_value(row['p_holm'])} {family} (Holm)"
    largest_pct = bound_difference_pct(low_pct, high_pct)
    if largest_pct > _MAX_INFORMATIVE_DIFFERENCE_PCT:
        return f", and {_describe_detectable_difference(row['least_detectable_pct'])} would have been detected"
    return f", and differences above {wording.format_percent(largest_pct, _choose_decimals(largest_pct))} are ruled out"


def summarize_range(
    rows: pd.DataFrame,
    design: Design,
    label_columns: Sequence[str],
    convert_ratio: Callable[[float], float],
    format_value: Callable[[float], str],
) -> str:
    """Format the mean ratio with its interval, and the range of estimates; see `summarize_effects`."""
    number, reason = _format_average(rows, design, convert_ratio, format_value)
    extremes = _describe_estimate_range(rows, "lines", label_columns, convert_ratio, format_value)
    return f"{number} on average over {len(rows):,} lines{reason}. {extremes}"


def _format_average(
    rows: pd.DataFrame, design: Design, convert_ratio: Callable[[float], float], format_value: Callable[[float], str]
) -> tuple[str, str]:
    """Format the mean of comparisons with its interval, or with the reason why it has none in parentheses."""
    value, *ends = (convert_ratio(float(bound[0])) for bound in compute_average_ratio(rows, design).compute_bounds())
    low, high = sorted(ends)
    if math.isfinite(low) and math.isfinite(high):
        return wording.format_with_interval(value, low, high, format_value), ""
    untested_rows = rows[~rows["tested"]]
    reason = explain_missing_tests(untested_rows) if len(untested_rows) else "no configuration was composed repeatedly"
    return format_value(value), f" (no interval: {reason})"


def format_estimate_range(
    rows: pd.DataFrame,
    label_columns: Sequence[str],
    convert_ratio: Callable[[float], float] = float,
    format_value: Callable[[float], str] = wording.format_ratio,
) -> str:
    """Format the smallest and the largest estimate of several comparisons, with the names of their cells.

    The names leave out values that all cells share. Equal numbers are given once, without a name.
    """
    label_columns = [name for name in label_columns if rows[name].nunique() > 1] or label_columns
    ordered_rows = rows.assign(shown=rows["ratio"].map(convert_ratio)).sort_values("shown", kind="stable")
    ends = ordered_rows.iloc[[0, -1]].to_dict("records")
    first, last = (f"{format_value(row['shown'])} ({wording.format_axes(row, label_columns)})" for row in ends)
    values = {format_value(row["shown"]) for row in ends}
    return f"{first} to {last}" if len(values) > 1 else values.pop()


def _describe_estimate_range(
    rows: pd.DataFrame,
    noun: str,
    label_columns: Sequence[str],
    convert_ratio: Callable[[float], float],
    format_value: Callable[[float], str],
) -> str:
    """Describe the range of estimates in a sentence without its full stop, such as 'Single cells range from ..'."""
    extremes = format_estimate_range(rows, label_columns, convert_ratio, format_value)
    return f"Single {noun} {'range from' if ' to ' in extremes else 'have'} {extremes}"


def _describe_significance(rows: pd.DataFrame) -> str:
    """Describe how many of several comparisons are significant; empty if none was tested."""
    tested_rows = rows[rows["p"].notna()]
    if tested_rows.empty:
        return ""
    count = int((tested_rows["p_holm"] < SIGNIFICANCE_LEVEL).sum())
    share = ("both" if count == 2 else f"all {count:,}") if count == len(rows) else f"{count:,} of {len(tested_rows):,}"
    return f"; {share} {'differs' if count == 1 else 'differ'} significantly"


def _describe_excluded_differences(
    rows: pd.DataFrame, convert_ratio: Callable[[float], float], format_value: Callable[[float], str]
) -> str:
    """Describe which differences the comparisons jointly rule out; empty if that is nothing of interest."""
    tested = rows[rows["p"].notna()]
    ends = [convert_ratio(end) for bounds in compute_simultaneous_bounds(tested) for end in bounds]
    largest = max(abs(end if format_value is wording.format_percent else 100 * (end - 1)) for end in ends)
    size = wording.format_percent(largest, _choose_decimals(largest))
    return f", and differences above {size} are ruled out" if largest <= _MAX_INFORMATIVE_DIFFERENCE_PCT else ""


def compute_simultaneous_bounds(rows: pd.DataFrame) -> tuple[Sequence[float], Sequence[float]]:
    """Compute bounds that hold jointly for the ratios of all tested comparisons (Bonferroni, 95 %)."""
    width_factor = intervals.simultaneous_width_factor(rows["freedom"], len(rows))
    value = rows["ratio"].to_numpy()
    return tuple(list(value * (rows[end].to_numpy() / value) ** width_factor) for end in ("ratio_low", "ratio_high"))  # type: ignore[return-value]


def describe_extreme_ratio(comparison: Ratios, cell_count: int, statement: str, effect: str) -> str:
    """Describe the ratio of the largest of several cells to the smallest in a sentence, with its interval and basis.

    The test and the interval hold over all pairs of the cells.

    Args:
        comparison: comparison of the largest cell with the smallest one.
        cell_count: number of cells from which the two were chosen.
        statement: sentence without its full stop, with '{}' for the ratio.
        effect: name of the effect.
    """
    pairs = max(1, cell_count * (cell_count - 1) // 2)
    value, low, high = (float(bound[0]) for bound in comparison.estimate.compute_bounds(1 - SIGNIFICANCE_LEVEL / pairs))
    row = {name: column[0] for name, column in comparison.build_basis_columns(pd.RangeIndex(1)).items()}
    p = float(comparison.compute_p_values()[0])
    row |= {"ratio": value, "p": p, "p_holm": min(1.0, p * pairs), "n_tests": pairs}
    row["least_detectable_pct"] = float(comparison.compute_detectable_pct(pairs)[0])
    return describe_comparison(row, (value, low, high), statement, effect)


def format_p_value(p: float) -> str:
    """Format a p-value, such as '0.034' or '< 0.001'; '–' for nan."""
    if not math.isfinite(p):
        return wording.NO_VALUE
    return "< 0.001" if p < 0.001 else wording.format_number(p, 2)


def _describe_method(row: Mapping[Any, Any]) -> str:
    """Describe how a comparison was made, for a table, such as 'paired, 5 blocks', or why it was not made."""
    if row["paired"]:
        unit = "block" if row["method"] == intervals.T_PAIRED_BY_BLOCK else "lease"
        method = f"paired, {wording.pluralize(int(row['n_pairs']), unit)}"
    else:
        method = str(row["method"]).removesuffix(", 95 %")
    return "; ".join(phrase for phrase in (method, *_list_alternative_causes(row)) if phrase)


def _format_composition_counts(row: Mapping[Any, Any]) -> str:
    """Format the numbers of compositions of the cell and of its reference, such as '3 / 3'."""
    return f"{int(row['compositions']):,} / {int(row['against_compositions']):,}"


def _format_freedom(row: Mapping[Any, Any]) -> str:
    """Format the degrees of freedom of a comparison for a table."""
    return wording.format_number(row["freedom"], 2) if math.isfinite(row["freedom"]) else wording.NO_VALUE


def format_detectable_difference(row: Mapping[Any, Any]) -> str:
    """Format the least detectable difference of a comparison for a table."""
    difference_pct = row["least_detectable_pct"]
    return (
        wording.format_percent(difference_pct, _choose_decimals(difference_pct))
        if math.isfinite(difference_pct)
        else wording.NO_VALUE
    )


def list_limitations(rows: pd.DataFrame, protocol: Mapping[str, Any]) -> tuple[str, ...]:
    """List the limitations of a figure's findings as sentences; empty if there are none.

    Limitations are comparisons that are not tested, or that use one composition, a borrowed spread, different protocols, or
    an order that is not random.

    Args:
        rows: comparisons.
        protocol: protocol of the campaign.
    """
    tested_rows = rows[rows["p"].notna()]
    untested_rows = (
        rows[rows["method"].isin([intervals.RUN_VARIATION_ONLY, intervals.CONFOUNDED_WITH_HOSTS])]
        if "method" in rows
        else rows[:0]
    )
    sentences = (
        list(_describe_spread_sources(tested_rows))
        if len(tested_rows)
        else ["" if len(untested_rows) else "No comparison has an interval."]
    )
    if len(untested_rows):
        subject = wording.pluralize(len(untested_rows), "comparison") if len(tested_rows) else "Comparisons"
        sentences.append(
            f"{subject} {'was' if subject.startswith('1 ') else 'were'} not tested: {explain_missing_tests(untested_rows)}."
        )
    return tuple(
        sentence.strip()
        for sentence in (
            *sentences,
            describe_step_mismatches(rows) if "unlike" in rows else "",
            describe_order_effects(protocol),
        )
        if sentence
    )


def describe_evidence(rows: pd.DataFrame) -> str:
    """Describe the evidence of comparisons for a caption: compositions, borrowed spread, and differences of protocol.

    Args:
        rows: comparisons, at least one.
    """
    rows = rows[rows["method"] != intervals.NO_INTERVAL_REFERENCE] if len(rows) > 1 else rows
    counts = sorted({int(n) for name in ("compositions", "against_compositions") for n in rows[name] if n})
    ends = " to ".join(dict.fromkeys(f"{n:,}" for n in (counts[0], counts[-1]))) if counts else "no"
    caption = f"Each cell was measured on {ends} {'composition' if counts == [1] else 'compositions'}."
    caption += "".join(f" {sentence}" for sentence in _describe_spread_sources(rows))
    if (
        rows["method"]
        .isin([intervals.RUN_VARIATION_ONLY, intervals.CONFOUNDED_WITH_HOSTS, intervals.CAMPAIGNS_UNKNOWN])
        .all()
    ):
        caption += f" Nothing is tested: {explain_missing_tests(rows)}."
    return caption + describe_step_mismatches(rows)


def _describe_spread_sources(rows: pd.DataFrame) -> Iterator[str]:
    """Yield sentences on comparisons within one composition, and on comparisons that borrow their spread."""
    is_within_composition = rows["method"].isin([intervals.T_PAIRED_BY_BLOCK, intervals.T_OVER_RUNS_OF_COMPOSITION])
    if count := int(is_within_composition.sum()):
        subject = wording.pluralize(count, "statement")
        subject = (
            "All statements hold" if is_within_composition.all() else f"{subject} {'holds' if count == 1 else 'hold'}"
        )
        yield f"{subject} for one composition only."
    names = ", ".join(dict.fromkeys(campaign for campaign in rows["lent_by"] if campaign)) if "lent_by" in rows else ""
    sources = {
        intervals.T_BORROWED_SPREAD: _SPREAD_FROM_OTHER_CELLS,
        intervals.T_BORROWED_EARLIER_SPREAD: _SPREAD_FROM_EARLIER_CAMPAIGNS.format(names),
        intervals.T_BORROWED_CHANGE_SPREAD: _SPREAD_FROM_OTHER_CHANGES,
    }
    for method, words in sources.items():
        borrowing_rows = rows[rows["method"] == method]
        if len(borrowing_rows):
            ends = " to ".join(
                dict.fromkeys(
                    wording.format_number(n, 2)
                    for n in (borrowing_rows["freedom"].min(), borrowing_rows["freedom"].max())
                )
            )
            yield f"In {wording.pluralize(len(borrowing_rows), 'comparison')}, {words} ({ends} degrees of freedom)."


def describe_step_mismatches(rows: pd.DataFrame) -> str:
    """State in a sentence for a caption how many comparisons are between cells with different step counts.

    The sentence begins with a space. It is empty if all step counts are equal.
    """
    count = int((rows["unlike"] != "").sum())
    if not count:
        return ""
    first = rows.loc[rows["unlike"] != "", "unlike"].iloc[0]
    return (
        f" {wording.pluralize(count, 'comparison')} {'is' if count == 1 else 'are'} between cells that were measured differently "
        f"(such as {first}); the table marks them."
    )


def describe_order_effects(protocol: Mapping[str, Any]) -> str:
    """Describe caveats about the order of runs and leases, each after a space; empty for random blocks."""
    run_caveat = f" {SEQUENTIAL_RUNS_CAVEAT}" if protocol.get("order") == "sequential" else ""
    has_several_compositions = int(protocol.get("compositions") or 1) > 1
    lease_caveats = {"least-recomposition": f" {FIXED_LEASE_ORDER_CAVEAT}", None: f" {UNKNOWN_LEASE_ORDER_CAVEAT}"}
    lease_caveat = lease_caveats.get(protocol.get("lease_order"), "") if has_several_compositions else ""
    return run_caveat + (f" {DRIFT_ADJUSTMENT_NOTE}" if is_adjusted({"protocol": protocol}) else lease_caveat)


def _describe_detectable_difference(difference_pct: float) -> str:
    """Describe the least detectable difference, in percent, as part of a sentence."""
    return (
        f"a difference of {wording.format_percent(difference_pct, 0)}"
        if math.isfinite(difference_pct)
        else "no difference of any size"
    )


def _choose_decimals(pct: float) -> int:
    """Choose the number of decimals of a percentage: 2 if one decimal would show 0.0 or too few digits."""
    return 2 if pct < 0.5 else 1


# Columns on the basis of a comparison, for a table of comparisons. The table of a figure has the p-value and the compositions.
BASIS_COLUMNS: dict[str, Callable[[Any], str]] = {
    "p (Holm)": lambda row: format_p_value(row["p_holm"]),
    "Detectable": format_detectable_difference,
    "Compositions": _format_composition_counts,
    "Degrees of freedom": _format_freedom,
    "Compared": _describe_method,
}

P_COLUMN = {"p of no difference (Holm)": BASIS_COLUMNS["p (Holm)"], "Compositions": BASIS_COLUMNS["Compositions"]}
P_AGAINST_IDEAL_COLUMN = {
    "p of the ideal speed-up (Holm)": BASIS_COLUMNS["p (Holm)"],
    "Compositions": BASIS_COLUMNS["Compositions"],
}
"""Columns of a table of speed-ups, whose null hypothesis is the ideal speed-up instead of no difference."""
