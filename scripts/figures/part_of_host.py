"""Figure: a run that uses some of the devices of a host, by how many devices were composed onto it."""

from typing import Any

import pandas as pd

from campaign import wording
from campaign.report import plot
from campaign.report.bars import Bars
from campaign.report.figure import Drawing, FigureData, coverage_of_cells, measured_as, nothing, page_table
from campaign.statistics import comparable_cells, verdict

TITLE = "Part of a host"
SECTION = (
    "Does it affect a run that uses k devices of a host how many devices (n) are composed onto it? If not, one large "
    "composition can serve many small runs. The variation of a case is over the differently composed hosts, at equal devices in "
    "use."
)
PLACE = 50
COUNTERPARTS = {
    "FASTER: Fig. 6": "part of a composed host's GPUs, coefficient of variation",
}


_MOST_LABELLED = 6  # groups of one panel


def draw(data: FigureData) -> Drawing:
    rows = comparable_cells.part_of_host(data.cells, data.design)
    if rows.empty:
        return nothing("every measured run used all devices of its hosts")
    by = [*comparable_cells.KIND, *comparable_cells.option_columns(rows), "hosts"]
    panels = plot.panels(rows, by)
    findings = _findings(rows, by, data.metric.performance)
    compared = verdict.counted(rows, data.protocol, "the smallest host")
    caption = (
        f"{data.metric.label.capitalize()} of k devices in use of n composed onto a host; "
        f"{wording.runs_behind(rows['n_ok'])} a bar, "
        f"{wording.interval_of(rows['interval_method'])}. {compared} CV of a group, under it or in the table: standard "
        f"deviation over mean (n − 1) of its compositions' means. A cross names why a planned cell has no value.{panels.sentence()}"
        f"{plot.cut(rows, plot.RATE)} {measured_as(data, rows)}"
    )
    with plot.style(data.style):
        svg = _picture(panels, data.metric.axis)
    table = page_table(
        rows,
        {
            "Workload": lambda row: wording.describe(row, [*by, "batch"]),
            "Used of composed": lambda row: f"{row['devices_used']} of {row['devices_per_host']}",
            data.metric.heading: lambda row: wording.rate(row["mean"]),
            "95 % interval": lambda row: wording.between(row["ci_low"], row["ci_high"], wording.rate),
            "CV of repetitions": lambda row: wording.percent(row["cv_pct"]),
            "CV of the case": lambda row: wording.percent(row["case_cv_pct"]),
            "Against smallest host": lambda row: wording.times(row["ratio"]),
            "95 % interval ": lambda row: wording.between(row["ratio_low"], row["ratio_high"], wording.times),
            **verdict.COLUMNS,
            "Runs": lambda row: wording.count(row["n_ok"]),
            "Failed": lambda row: row["failures"],
        },
    )
    covered = coverage_of_cells(_planned(data.cells))
    return Drawing(svg=svg, caption=caption, findings=findings, data=rows, coverage=covered, **table)


def _planned(cells: pd.DataFrame) -> pd.DataFrame:
    """Cells that were to use part of a host, and those that they would have been compared with."""
    equal = [*comparable_cells.KIND, *comparable_cells.option_columns(cells), "batch", "hosts", "devices_used"]
    part = cells["devices_used"] < cells["devices_per_host"]
    return cells[part.groupby([cells[key] for key in equal], sort=False).transform("any").astype(bool)]


def _findings(rows: pd.DataFrame, by: list[str], measure: str) -> tuple[str, ...]:
    """The largest variation over differently composed hosts, beside that of repetitions."""
    cases = rows[rows["case_cv_pct"].notna()]
    if cases.empty:
        part = rows[rows["devices_used"] < rows["devices_per_host"]]
        return (
            f"{wording.plural(len(part), 'cell')} used part of a host; none on a second size of host to compare with.",
        )
    said = [_against_smallest(rows, [*by, "batch"], measure)]
    row: Any = cases.loc[cases["case_cv_pct"].idxmax()]
    named = [column for column in [*by, "batch"] if cases[column].nunique() > 1] or ["workload"]
    repeats = rows["cv_pct"].max()
    beside = f"; repetitions of one cell vary most by {wording.percent(repeats)}" if pd.notna(repeats) else ""
    said.append(
        f"At equal devices in use, {measure} varies most over differently composed hosts for {wording.describe(row, named)}, "
        f"{row['devices_used']} in use: {wording.percent(row['case_cv_pct'])} (CV){beside}."
    )
    return tuple(sentence for sentence in said if sentence)


def _against_smallest(rows: pd.DataFrame, by: list[str], measure: str) -> str:
    """The largest difference from the smallest host with as many devices in use."""
    low, high = 100 * (rows["ratio_low"] - 1), 100 * (rows["ratio_high"] - 1)
    tested = rows.assign(difference_pct=100 * (rows["ratio"] - 1), low=low, high=high)[rows["p"].notna()]
    if tested.empty:
        return ""
    row: Any = tested.loc[tested["difference_pct"].abs().idxmax()]
    named = [column for column in by if tested[column].nunique() > 1] or ["workload"]
    size = verdict.measured(row, tuple(row[name] for name in ("difference_pct", "low", "high")), wording.percent)
    none = verdict.together(tested, "low", "high")
    doubt = f": {none}" if none else verdict.doubt(row, row["low"], row["high"])
    return (
        f"Largest change of {measure} from the smallest host: {row['devices_used']} of {row['devices_per_host']} devices "
        f"({wording.describe(row, named)}), {size}{doubt}."
    )


def _picture(panels: plot.Panels, value: str) -> str:
    sizes = sorted({size for panel in panels.shown for size in panel.rows["devices_per_host"]})
    bars = Bars({size: f"of {size} composed" for size in sizes})
    figure, axes = plot.grid(len(panels.shown), height_in=2.7)
    for position, (panel, (only,)) in enumerate(zip(panels.shown, axes, strict=True)):
        plot.title(only, panel.label)
        several = panel.rows["batch"].nunique() > 1
        groups = []
        # Labels of more groups run into each other; the table has every variation.
        cases = panel.rows.drop_duplicates(["devices_used", "batch"])["case_cv_pct"]
        labelled = bool(cases.notna().any()) and len(cases) < _MOST_LABELLED
        for (used, batch), rows in panel.rows.groupby(["devices_used", "batch"], sort=True):
            label = f"{used}\n{batch}" if several else str(used)
            variation = rows["case_cv_pct"].iloc[0]
            label += f"\n{wording.percent(variation)}" if labelled and pd.notna(variation) else ""
            groups.append((label, list(zip(rows["devices_per_host"], rows.to_dict("records"), strict=True))))
        bars.draw(only, groups, lambda row: "")
        words = ["devices in use a host", *(["batch per device (samples)"] if several else [])]
        words += ["CV over compositions"] if labelled else []
        only.set_xlabel("\n".join(words))
        if plot.is_left(position):
            only.set_ylabel(value)
    bars.legend(figure)
    return plot.to_svg(figure)
