"""Wording of comparisons: a significant difference, the largest difference that is not ruled out, or no statement.

Rows are those of `campaign.analysis.statistics.comparable_cells`, with p, p_holm, n_tests, paired, n_pairs, and the basis of the
comparison (`campaign.analysis.statistics.comparisons.Ratios.basis`). A difference counts if it is significant among all
comparisons of its figure (Holm, 5 %). A sentence about several comparisons has the interval of their mean, never the interval of
the largest of them. Every statement includes the number of compositions behind it, and its limitations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from campaign.analysis.statistics.average_ratio import average_ratio
from campaign.analysis.statistics.comparisons import Ratios
from campaign.analysis.statistics.drift import is_adjusted
from campaign.analysis.statistics.experiment_design import Design
from campaign.common import intervals, wording
from campaign.common.intervals import SIGNIFICANCE_LEVEL

# An interval around no effect that is wider than this excludes no plausible difference.
_SAYS_NOTHING_PCT = 50.0


SEQUENTIAL = (
    "The runs of a cell came one after the other, not in blocks, so that drift of the system can pose as an effect."
)
LEASES_IN_ORDER = (
    "Compositions were made in a fixed order, not in random blocks, so that drift of the system over the "
    "campaign can pose as an effect."
)
ORDER_UNKNOWN = "In which order compositions were made is not known, so that drift of the system can pose as an effect."
ADJUSTED = (
    "Comparisons between compositions are adjusted: the cost of each run was divided by that of the reference in the same "
    "composition. This removes drift of the system over the campaign, and adds the noise of the reference."
)
ONE_COMPOSITION = "one composition of each configuration was measured, and intervals hold run-to-run variation only"
ONE_EACH = "one composition each was measured, so this is not tested; the interval holds run-to-run variation only"
OWN_HOSTS = "each ran on other hosts, whose own differences cannot be separated, so this is not tested"
ONCE = "measured once each, so this is not tested"
_BORROWED = "the spread of compositions is borrowed from other cells"
_EARLIER = "the spread of compositions is borrowed from earlier campaigns on this system ({})"
_AMONG = "the spread is that of the changes of other configurations"


def differs(row: Mapping[Any, Any]) -> bool:
    """Return whether the difference is significant among all comparisons of the figure (Holm)."""
    return bool(row["p_holm"] < SIGNIFICANCE_LEVEL)


def untested(row: Mapping[Any, Any]) -> bool:
    """Return whether a comparison may not be tested, because each cell was measured on one composition."""
    return not row.get("tested", True) and row.get("method") != intervals.NO_INTERVAL_REFERENCE


def not_tested(row: Mapping[Any, Any]) -> str:
    """Return the reason that a comparison is not tested, as text for parentheses."""
    return OWN_HOSTS if row["method"] == intervals.CONFOUNDED_WITH_HOSTS else ONE_EACH


def why_not_tested(rows: pd.DataFrame) -> str:
    """Return the reason that several comparisons are not tested, as part of a sentence."""
    if (rows["method"] == intervals.CAMPAIGNS_UNKNOWN).any():
        return "the spread between campaigns is unknown"
    own = rows["method"] == intervals.CONFOUNDED_WITH_HOSTS
    return OWN_HOSTS.partition(", so")[0] if own.any() else ONE_COMPOSITION


def no_larger_than(low_pct: float, high_pct: float) -> float:
    """Return the largest absolute difference, in percent, that the interval of a difference contains."""
    return max(abs(low_pct), abs(high_pct))


def basis(row: Mapping[Any, Any]) -> str:
    """Describe the data behind a comparison, as text for parentheses; '' without a test.

    Examples are '3 compositions each' and 'within one composition'.
    """
    return "; ".join(each for each in (_compositions(row), *_limits(row)) if each)


def _compositions(row: Mapping[Any, Any]) -> str:
    """Describe the numbers of compositions of both cells, and where their spread comes from; '' without a test."""
    if not row["tested"]:
        return ""
    ours, theirs, method = int(row["compositions"]), int(row["against_compositions"]), row["method"]
    if method in (intervals.T_PAIRED_BY_BLOCK, intervals.T_OVER_RUNS_OF_COMPOSITION):
        return "within one composition"
    if method == intervals.T_PAIRED_BY_LEASE:
        return f"within {ours:,} compositions"
    each = "one composition each" if ours == 1 else f"{ours:,} compositions each"
    each = each if ours == theirs else f"{ours:,} against {theirs:,} compositions"
    if method == intervals.T_BORROWED_SPREAD:
        return f"{each}, spread borrowed"
    if method == intervals.T_BORROWED_EARLIER_SPREAD:
        return f"{each}, spread borrowed from {row['lent_by']}"
    return f"{each}; {_AMONG} ({_freedom(row)})" if method == intervals.T_BORROWED_CHANGE_SPREAD else each


def _limits(row: Mapping[Any, Any]) -> Sequence[str]:
    """List what else may have caused the difference: order, different numbers of steps, noisy compositions."""
    if not math.isfinite(row["ratio"] if "ratio" in row else row["p"]):
        return ()
    order = (
        "order not random or not known, so that drift can pose as an effect"
        if row["in_order"] and row["tested"]
        else ""
    )
    order = "adjusted by the reference" if row.get("adjusted", False) else order
    noisy = f"noisy: compositions of {row['noisy']} differ more than those of others" if row.get("noisy") else ""
    return order, f"measured unlike: {row['unlike']}" if row["unlike"] else "", noisy


def _freedom(row: Mapping[Any, Any]) -> str:
    """Return the degrees of freedom of a comparison in words, such as '4 degrees of freedom'."""
    return wording.pluralize(max(1, round(row["freedom"])), "degree") + " of freedom"


def measured(
    row: Mapping[Any, Any], values: tuple[float, float, float], say: Callable[[float], str], about: str = ""
) -> str:
    """Format the estimate of a comparison with its interval, its subject and its basis.

    Args:
        row: comparison.
        values: estimate and its lower and upper bound.
        format_value: formats one number.
        subject: subject of the estimate, such as the name of a cell.
    """
    return wording.format_with_interval(*values, say, "; ".join(each for each in (about, basis(row)) if each))


def doubt(row: Mapping[Any, Any], low_pct: float, high_pct: float) -> str:
    """Return the text that qualifies the estimate of a comparison in a sentence; '' for a significant difference.

    An estimate without an interval gets '' as well, because its number already states that.

    Args:
        row: comparison.
        low_pct: lower bound of the difference, 95 %.
        high_pct: upper bound of the difference, 95 %.
    """
    if untested(row) and math.isfinite(low_pct):
        return f" ({not_tested(row)})"
    if differs(row) or not math.isfinite(row["p"]):
        return ""
    if row["p"] < SIGNIFICANCE_LEVEL:
        among = f"among all {int(row['n_tests']):,} comparisons of this figure"
        return f", not significant {among} (p = {p_value(row['p_holm'])}, Holm)"
    largest = no_larger_than(low_pct, high_pct)
    if largest > _SAYS_NOTHING_PCT:
        found = f"{_detectable(row['least_detectable_pct'])} would have been detected"
        return f": inconclusive, with too few or too uneven runs; {found}"
    return f": no difference larger than {wording.format_percent(largest, _decimals(largest))}"


def summarize_effects(
    rows: pd.DataFrame,
    design: Design,
    named: Sequence[str],
    express: Callable[[float], float] = float,
    say: Callable[[float], str] = wording.format_ratio,
) -> str:
    """Describe the ratios of one or several cells, as part of a sentence.

    One cell has its own interval. For several cells the mean has an interval, and the smallest and largest estimates have none.
    An
    estimate that is quoted because it is the largest is larger than its true value, so its own interval is too often wrong.

    Args:
        rows: comparisons, at least one, each with a ratio.
        design: design of the cells.
        label_columns: columns that distinguish the cells.
        convert_ratio: converts a ratio to the number that is shown.
        format_value: formats this number.
    """
    if len(rows) == 1:
        row = rows.to_dict("records")[0]
        value, *ends = (express(row[name]) for name in ("ratio", "ratio_low", "ratio_high"))
        low, high = sorted(ends)
        percent = [end if say is wording.format_percent else 100 * (end - 1) for end in (low, high)]
        return measured(row, (value, low, high), say, wording.format_axes(row, named)) + doubt(row, *percent)
    return summarize_range(rows, design, named, express, say) + _differing(rows, express, say)


def summarize_range(
    rows: pd.DataFrame,
    design: Design,
    named: Sequence[str],
    express: Callable[[float], float],
    say: Callable[[float], str],
) -> str:
    """Return the mean of several ratios with its interval, and the range of their estimates; arguments as `summarize_effects`."""
    return f"{_average(rows, design, express, say)}; {range_of_estimates(rows, named, express, say)}"


def _average(rows: pd.DataFrame, design: Design, express: Callable[[float], float], say: Callable[[float], str]) -> str:
    """Return the mean of several comparisons with its interval, or with the reason that it has no interval."""
    value, *ends = (express(float(bound[0])) for bound in average_ratio(rows, design).bounds())
    low, high = sorted(ends)
    untested_rows = rows[~rows["tested"]]
    why = why_not_tested(untested_rows) if len(untested_rows) else "no composition was repeated"
    return wording.format_with_interval(value, low, high, say, f"mean of {len(rows):,} cells", f"no interval: {why}")


def range_of_estimates(
    rows: pd.DataFrame,
    named: Sequence[str],
    express: Callable[[float], float] = float,
    say: Callable[[float], str] = wording.format_ratio,
) -> str:
    """Return the smallest and the largest estimate of several comparisons, with the names of their cells."""
    ordered = rows.assign(shown=rows["ratio"].map(express)).sort_values("shown", kind="stable")
    first, last = (
        f"{say(row['shown'])} ({wording.format_axes(row, named)})" for row in ordered.iloc[[0, -1]].to_dict("records")
    )
    return f"estimates of single cells are from {first} to {last}"


def _differing(rows: pd.DataFrame, express: Callable[[float], float], say: Callable[[float], str]) -> str:
    """Return how many of several comparisons are significant, or which differences are ruled out if none is."""
    tested = rows[rows["p"].notna()]
    count = int((tested["p_holm"] < SIGNIFICANCE_LEVEL).sum())
    if count:
        return f"; {count:,} of {wording.pluralize(len(tested), 'cell')} {'differs' if count == 1 else 'differ'} significantly"
    if tested.empty:
        return ""
    ends = [express(end) for bounds in simultaneous_bounds(tested) for end in bounds]
    largest = max(abs(end if say is wording.format_percent else 100 * (end - 1)) for end in ends)
    size = wording.format_percent(largest, _decimals(largest))
    ruled_out = f", and differences above {size} are ruled out" if largest <= _SAYS_NOTHING_PCT else ""
    return f"; none of {wording.pluralize(len(tested), 'cell')} differs significantly{ruled_out}"


def simultaneous_bounds(rows: pd.DataFrame) -> tuple[Sequence[float], Sequence[float]]:
    """Return bounds of the ratios of tested comparisons that hold for all of them together (Bonferroni, 95 %)."""
    wider = intervals.simultaneous_width_factor(rows["freedom"], len(rows))
    value = rows["ratio"].to_numpy()
    return tuple(list(value * (rows[end].to_numpy() / value) ** wider) for end in ("ratio_low", "ratio_high"))  # type: ignore[return-value]


def extremes(found: Ratios, cells: int) -> str:
    """Describe the ratio of the largest of several cells to the smallest, with its interval and basis, as part of a sentence.

    The test and the interval hold over all pairs of the cells.

    Args:
        comparison: comparison of the largest cell with the smallest one.
        cell_count: number of cells from which the two were chosen.
    """
    pairs = max(1, cells * (cells - 1) // 2)
    value, low, high = (float(bound[0]) for bound in found.of.bounds(1 - SIGNIFICANCE_LEVEL / pairs))
    row = {name: column[0] for name, column in found.basis(pd.RangeIndex(1)).items()}
    p = float(found.p()[0])
    row |= {"ratio": value, "p": p, "p_holm": min(1.0, p * pairs), "n_tests": pairs}
    row["least_detectable_pct"] = float(found.least_detectable_pct(pairs)[0])
    if untested(row) and not math.isfinite(low):
        return f"{wording.format_ratio(value)} ({ONCE})"
    return measured(row, (value, low, high), wording.format_ratio) + doubt(row, 100 * (low - 1), 100 * (high - 1))


def p_value(p: float) -> str:
    """Format a p-value, such as '0.034' or '< 0.001'; '–' for nan."""
    if not math.isfinite(p):
        return wording.NO_VALUE
    return "< 0.001" if p < 0.001 else wording.format_number(p, 2)


def _how(row: Mapping[Any, Any]) -> str:
    """Describe how a comparison was made, for a table, such as 'paired, 5 blocks', or why it was not made."""
    if row["paired"]:
        unit = "block" if row["method"] == intervals.T_PAIRED_BY_BLOCK else "lease"
        how = f"paired, {wording.pluralize(int(row['n_pairs']), unit)}"
    else:
        how = str(row["method"]).removesuffix(", 95 %")
    return "; ".join(each for each in (how, *_limits(row)) if each)


def _of_compositions(row: Mapping[Any, Any]) -> str:
    """Format the numbers of compositions of the cell and of its reference, such as '3 / 3'."""
    return f"{int(row['compositions']):,} / {int(row['against_compositions']):,}"


def _degrees(row: Mapping[Any, Any]) -> str:
    """Format the degrees of freedom of a comparison for a table."""
    return wording.format_number(row["freedom"], 2) if math.isfinite(row["freedom"]) else wording.NO_VALUE


def detectable(row: Mapping[Any, Any]) -> str:
    """Format the least detectable difference of a comparison for a table."""
    least = row["least_detectable_pct"]
    return wording.format_percent(least, _decimals(least)) if math.isfinite(least) else wording.NO_VALUE


def limits(rows: pd.DataFrame, protocol: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the limitations of the statements of a figure, as sentences; empty if there are none.

    Limitations are comparisons that are not tested, or that use one composition, a borrowed spread, different protocols, or an
    order
    that is not random.

    Args:
        rows: comparisons.
        protocol: protocol of the campaign.
    """
    tested = rows[rows["p"].notna()]
    alone = (
        rows[rows["method"].isin([intervals.RUN_VARIATION_ONLY, intervals.CONFOUNDED_WITH_HOSTS])]
        if "method" in rows
        else rows[:0]
    )
    said = list(_borrowed(tested)) if len(tested) else ["" if len(alone) else "No comparison has an interval."]
    if len(alone):
        what = wording.pluralize(len(alone), "comparison") if len(tested) else "Comparisons"
        said.append(f"{what} not tested: {why_not_tested(alone)}.")
    return tuple(each.strip() for each in (*said, unlike(rows) if "unlike" in rows else "", order(protocol)) if each)


def rests_on(rows: pd.DataFrame) -> str:
    """Describe the evidence of comparisons for a caption: compositions, borrowed spread, and differences of protocol.

    Args:
        rows: comparisons, at least one.
    """
    rows = rows[rows["method"] != intervals.NO_INTERVAL_REFERENCE] if len(rows) > 1 else rows
    counts = sorted({int(n) for name in ("compositions", "against_compositions") for n in rows[name] if n})
    ends = " to ".join(dict.fromkeys(f"{n:,}" for n in (counts[0], counts[-1]))) if counts else "no"
    said = f"Each cell was measured on {ends} {'composition' if counts == [1] else 'compositions'}."
    said += "".join(f" {each}" for each in _borrowed(rows))
    if (
        rows["method"]
        .isin([intervals.RUN_VARIATION_ONLY, intervals.CONFOUNDED_WITH_HOSTS, intervals.CAMPAIGNS_UNKNOWN])
        .all()
    ):
        said += f" Nothing is tested: {why_not_tested(rows)}."
    return said + unlike(rows)


def _borrowed(rows: pd.DataFrame) -> Iterator[str]:
    """Yield sentences on comparisons within one composition, and on comparisons that borrow their spread."""
    within = rows["method"].isin([intervals.T_PAIRED_BY_BLOCK, intervals.T_OVER_RUNS_OF_COMPOSITION])
    if count := int(within.sum()):
        which = wording.pluralize(count, "statement")
        which = "All statements hold" if within.all() else f"{which} {'holds' if count == 1 else 'hold'}"
        yield f"{which} for one composition only."
    names = ", ".join(dict.fromkeys(each for each in rows["lent_by"] if each)) if "lent_by" in rows else ""
    sources = {
        intervals.T_BORROWED_SPREAD: _BORROWED,
        intervals.T_BORROWED_EARLIER_SPREAD: _EARLIER.format(names),
        intervals.T_BORROWED_CHANGE_SPREAD: _AMONG,
    }
    for method, words in sources.items():
        lent = rows[rows["method"] == method]
        if len(lent):
            ends = " to ".join(
                dict.fromkeys(wording.format_number(n, 2) for n in (lent["freedom"].min(), lent["freedom"].max()))
            )
            yield f"In {wording.pluralize(len(lent), 'comparison')}, {words} ({ends} degrees of freedom)."


def unlike(rows: pd.DataFrame) -> str:
    """Return how many comparisons are between cells with different numbers of steps, as a sentence for a caption.

    The sentence begins with a space. Return '' if there is no such comparison.
    """
    count = int((rows["unlike"] != "").sum())
    if not count:
        return ""
    first = rows.loc[rows["unlike"] != "", "unlike"].iloc[0]
    return (
        f" {wording.pluralize(count, 'comparison')} {'is' if count == 1 else 'are'} between cells that were measured unlike "
        f"(such as {first}), which the table marks."
    )


def order(protocol: Mapping[str, Any]) -> str:
    """Return caveats about the order of runs and leases, each after a space; '' for random blocks."""
    runs = f" {SEQUENTIAL}" if protocol.get("order") == "sequential" else ""
    several = int(protocol.get("compositions") or 1) > 1
    known = {"least-recomposition": f" {LEASES_IN_ORDER}", None: f" {ORDER_UNKNOWN}"}
    leases = known.get(protocol.get("lease_order"), "") if several else ""
    return runs + (f" {ADJUSTED}" if is_adjusted({"protocol": protocol}) else leases)


def _detectable(least: float) -> str:
    """Describe the least detectable difference, in percent, as part of a sentence."""
    return (
        f"a difference of {wording.format_percent(least, 0)}" if math.isfinite(least) else "no difference of any size"
    )


def _decimals(pct: float) -> int:
    """Return the number of decimals of a percentage, which is 2 where one decimal would show 0.0 or too few digits."""
    return 2 if pct < 0.5 else 1


# Columns on the basis of a comparison, for a table of comparisons. The table of a figure has the first one.
COLUMNS: dict[str, Callable[[Any], str]] = {
    "p (Holm)": lambda row: p_value(row["p_holm"]),
    "Detectable": detectable,
    "Compositions": _of_compositions,
    "Degrees of freedom": _degrees,
    "Compared": _how,
}

P = {"p (Holm)": COLUMNS["p (Holm)"]}
P_AGAINST_IDEAL = {"p against ideal (Holm)": COLUMNS["p (Holm)"]}
"""Column of p-values for speed-ups, whose null hypothesis is the ideal speed-up instead of no difference."""
