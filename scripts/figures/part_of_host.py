"""Figure: runs that use a part of a host's devices, by the number of devices composed onto the host."""

from typing import Any

import pandas as pd

from campaign.analysis.statistics import comparable_cells, verdict
from campaign.analysis.statistics.experiment_design import Design
from campaign.common import wording
from campaign.report import columns, plot
from campaign.report.bars import BarGroups, Bars, grouped
from campaign.report.figure import ANSWERS, Drawing, FigureData, coverage_of_cells, nothing, telling

TITLE = "Part of a host"
SECTION = "Does it affect a run that uses k devices how many devices (n) are composed onto its host?"
PART = ANSWERS
PLACE = 50
COUNTERPARTS = {
    "FASTER: Fig. 6": "part of a composed host's GPUs, coefficient of variation",
}


_MOST_LABELLED = 6  # more labelled groups in a panel would overlap


def draw(data: FigureData) -> Drawing:
    """Draw the performance of runs that use k of n devices of a host, by n."""
    rows = comparable_cells.part_of_host(data.cells, data.design)
    if rows.empty:
        return nothing("every measured run used all devices of its hosts")
    by = [*comparable_cells.KIND, *comparable_cells.option_columns(rows), "hosts"]
    panels = plot.panels(rows, by)
    caption = (
        f"{data.metric.label.capitalize()} of k devices in use of n composed onto a host; "
        f"{wording.runs_behind(rows['n_ok'])} a bar, "
        f"{wording.interval_of(rows['interval_method'])}. CV: of the means of a group's compositions.{panels.sentence()}"
    )
    sizes = sorted(set(plot.in_panels(panels, "devices_per_host")))
    return plot.drawn(
        data,
        rows,
        lambda: Bars(sizes, say="of {} composed".format).multiples(panels, _groups, _below, data.metric.axis),
        {
            "Workload": columns.described(telling(rows, [*by, "batch"])),
            "Used of composed": lambda row: f"{row['devices_used']} of {row['devices_per_host']}",
            **columns.rate(data.metric.heading),
            "CV of repetitions": columns.percent("cv_pct"),
            "CV of the case": columns.percent("case_cv_pct"),
            **columns.ratio("Against smallest host"),
            **verdict.P,
            **columns.RUNS_AND_FAILURES,
        },
        caption=caption,
        limits=(*panels.limits(), plot.cut(rows, plot.RATE)),
        findings=_findings(rows, by, data.design, data.metric.performance),
        coverage=coverage_of_cells(_planned(data.cells)),
    )


def _planned(cells: pd.DataFrame) -> pd.DataFrame:
    """Return the cells planned on a part of a host, and the cells planned for comparison with them."""
    equal = [*comparable_cells.KIND, *comparable_cells.option_columns(cells), "batch", "hosts", "devices_used"]
    part = cells["devices_used"] < cells["devices_per_host"]
    return cells[part.groupby([cells[key] for key in equal], sort=False).transform("any").astype(bool)]


def _findings(rows: pd.DataFrame, by: list[str], design: Design, measure: str) -> tuple[str, ...]:
    """Return sentences on the change against the smallest host, and on the largest variation over differently composed hosts."""
    cases = rows[rows["case_cv_pct"].notna()]
    if cases.empty:
        part = rows[rows["devices_used"] < rows["devices_per_host"]]
        return (
            f"{wording.plural(len(part), 'cell')} used part of a host; none on a second size of host to compare with.",
        )
    said = [_against_smallest(rows, [*by, "batch"], design, measure)]
    row: Any = cases.loc[cases["case_cv_pct"].idxmax()]
    named = telling(cases, [*by, "batch"])
    repeats = rows["cv_pct"].max()
    beside = f"; repetitions of one cell vary most by {wording.percent(repeats)}" if pd.notna(repeats) else ""
    said.append(
        f"At equal devices in use, {measure} varies most over differently composed hosts for {wording.describe(row, named)}, "
        f"{row['devices_used']} in use: {wording.percent(row['case_cv_pct'])} (CV){beside}."
    )
    return tuple(sentence for sentence in said if sentence)


def _against_smallest(rows: pd.DataFrame, by: list[str], design: Design, measure: str) -> str:
    """Return a sentence with the mean and the range of differences from the smallest host with as many devices in use.

    It is empty if no difference was tested.

    Args:
        rows: rows of the figure.
        panel_columns: columns that identify a panel.
        design: design of the experiment.
        measure: name of the performance that changes.
    """
    tested = rows[rows["p"].notna()]
    if tested.empty:
        return ""
    pairs = zip(tested["devices_used"], tested["devices_per_host"], strict=True)
    used = [f"{used} of {composed} devices" for used, composed in pairs]
    named = ["used", *telling(tested, by)]
    effect = verdict.summarize_effects(
        tested.assign(used=used), design, named, lambda ratio: 100 * (ratio - 1), wording.percent
    )
    return f"Change of {measure} against the smallest host with as many devices in use: {effect}."


def _labelled(rows: pd.DataFrame) -> tuple[bool, bool]:
    """Return whether the groups of a panel are labelled with their batch, and whether with their variation."""
    # Labels of more groups would overlap. The table has every variation.
    cases = rows.drop_duplicates(["devices_used", "batch"])["case_cv_pct"]
    return rows["batch"].nunique() > 1, bool(cases.notna().any()) and len(cases) < _MOST_LABELLED


def _groups(rows: pd.DataFrame) -> BarGroups:
    """Group the bars of a panel by number of devices in use and batch, with one bar per number of devices composed."""
    several, varied = _labelled(rows)
    variation = rows.groupby(["devices_used", "batch"])["case_cv_pct"].first()

    def label(key: tuple[int, int]) -> str:
        """Format the label of a group from its number of devices and batch."""
        under = f"\n{wording.percent(variation[key])}" if varied and pd.notna(variation[key]) else ""
        return (f"{key[0]}\n{key[1]}" if several else str(key[0])) + under

    return grouped(rows, ["devices_used", "batch"], "devices_per_host", label, sort=True)


def _below(rows: pd.DataFrame) -> str:
    """Format the label of the horizontal axis, one line per part of the group labels."""
    several, varied = _labelled(rows)
    words = ["devices in use a host", *(["batch per device (samples)"] if several else [])]
    return "\n".join([*words, *(["CV over compositions"] if varied else [])])
