"""Figure: the same number of devices on one host, or spread over several."""

import math
from typing import Any

import pandas as pd

from campaign.analysis.statistics import comparable_cells, verdict
from campaign.analysis.statistics.experiment_design import Design
from campaign.analysis.statistics.variance_components import (
    EXPLAINED,
    NOT_EXPLAINED,
    POSSIBLY_EXPLAINED,
    SpreadSources,
    analyze_spread_sources,
)
from campaign.common import wording
from campaign.report import columns, plot
from campaign.report.bars import BarGroups, Bars, group_bars
from campaign.report.figure import (
    ANSWERS,
    Drawing,
    FigureData,
    describe_cell_coverage,
    describe_marks,
    nothing,
    select_distinguishing_columns,
)

TITLE = "Node spread"
SECTION = (
    "What does it cost to spread the same number of devices over more hosts? The drop is relative to the "
    "fewest hosts measured."
)
RESTS_ON = ("links",)
PART = ANSWERS
PLACE = 30
UNITS = {"drop_low": "pct", "drop_high": "pct"}
COUNTERPARTS = {
    "FASTER: Figs 3, 4": "the same GPUs on more hosts, A100 and T4",
    "FASTER: Fig. 5": "drop in percent by hosts",
}


_DROP_COLUMNS = ("drop_pct", "drop_low", "drop_high")


def draw(data: FigureData) -> Drawing:
    """Draw the performance of equally many devices by number of hosts, with the drop against the fewest hosts."""
    rows = comparable_cells.compare_host_counts(data.cells, data.design)
    if rows.empty:
        return nothing("no two measured cells differ only in their number of hosts")
    panel_columns = [*comparable_cells.PANEL_COLUMNS, *comparable_cells.list_option_columns(rows)]
    panels = plot.split_into_panels(rows, panel_columns, series=("batch", "ranks"))
    sources = analyze_spread_sources(data.runs, data.metric.is_higher_better)
    answers = [
        sources.explain_ratio_by_hosts(str(name), ratio)
        for name, ratio in zip(rows["workload"], rows["ratio"], strict=True)
    ]
    rows = rows.assign(hosts_explain=pd.Series(answers, index=rows.index, dtype="str"))
    caption = (
        f"{data.metric.label.capitalize()} of equal numbers of devices. "
        f"{describe_marks('bar', rows['n_ok'], rows['interval_method'])} Above a bar: its drop from the group's first bar."
        f"{panels.format_common_sentence()}"
    )
    hosts = sorted(set(plot.collect_panel_values(panels, "hosts")))
    overview_rows = _select_overview(rows)
    equal = [*comparable_cells.PANEL_COLUMNS, *comparable_cells.list_option_columns(data.cells), "batch", "ranks"]
    return plot.build_drawing(
        data,
        rows,
        lambda: Bars(hosts, _format_drop, lambda count: wording.format_axis_value("hosts", count)).draw_multiples(
            panels,
            _group_bars,
            lambda cells: (
                "devices in use\nbatch per device (samples)" if _has_several_batches(cells) else "devices in use"
            ),
            data.metric.axis_label,
        ),
        {
            "Workload": columns.description_column(select_distinguishing_columns(rows, [*panel_columns, "batch"])),
            "Devices": columns.count_column("ranks"),
            "Hosts": columns.count_column("hosts"),
            **columns.rate_columns(data.metric.heading),
            "Against": lambda row: (
                wording.format_axis_value("hosts", row["against_hosts"]) if row["against_n"] > 0 else wording.NO_VALUE
            ),
            "Drop": columns.percent_column("drop_pct"),
            "95 % interval ": columns.interval_column("drop_low", "drop_high", wording.format_percent),
            **verdict.P_COLUMN,
            **({"Host-to-host variation explains it": _format_host_explanation} if set(answers) != {_UNKNOWN} else {}),
            **columns.RUN_AND_FAILURE_COLUMNS,
        },
        caption=caption,
        glance=lambda: _draw_overview(overview_rows),
        headline=_describe_overview(overview_rows, data.design, data.metric.performance_name),
        limits=(*panels.list_limits(), plot.describe_cut_intervals(rows, plot.RATE)),
        findings=_describe_drops(rows, panel_columns, sources, data.design, data.metric.performance_name),
        coverage=describe_cell_coverage(comparable_cells.select_varied_cells(data.cells, equal, "hosts")),
    )


_UNKNOWN = "not known"


def _format_host_explanation(row: Any) -> str:
    """Return whether host-to-host variation explains the drop of a row, as text. It is empty for drops that are not tested."""
    return str(row["hosts_explain"]) if row["p"] == row["p"] else ""


def _select_overview(rows: pd.DataFrame) -> pd.DataFrame:
    """Select the drops on more hosts for the largest number of devices of each workload."""
    drops = rows[rows["drop_pct"].notna() & (rows["hosts"] > rows["against_hosts"])]
    drops = drops[drops["ranks"] == drops.groupby("workload")["ranks"].transform("max")]
    return drops.drop_duplicates(["workload", "hosts"]).head(plot.MAX_GLANCE_ROWS)


def _describe_overview(drops: pd.DataFrame, design: Design, measure: str) -> str:
    """Return a sentence on the drops of the overview."""
    if drops.empty:
        return ""
    return verdict.summarize_shown_cells(
        drops,
        design,
        ["workload", "hosts"],
        f"Spreading the same devices over more hosts lowers {measure} by {{}}",
        f"drop of {measure} on more hosts",
        lambda ratio: 100 * (1 - ratio),
        wording.format_percent,
    )


def _draw_overview(drops: pd.DataFrame) -> str:
    """Draw the overview of drops on more hosts. Return SVG."""
    dots = [
        (
            f"{row['workload']}, {wording.format_axis_value('hosts', row['hosts'])}",
            *(row[name] for name in _DROP_COLUMNS),
        )
        for row in drops.to_dict("records")
    ]
    return plot.draw_glance_dots(
        dots, f"drop from {wording.format_axis_value('hosts', drops['against_hosts'].min())} (%)", 0.0
    )


def _describe_drops(
    rows: pd.DataFrame, panel_columns: list[str], sources: SpreadSources, design: Design, measure: str
) -> tuple[str, ...]:
    """Return a sentence on the drop of the only comparison, or with the mean and the range of all drops.

    A second sentence follows if the variation between hosts is unknown.

    Args:
        rows: rows of the figure.
        panel_columns: columns that identify a panel.
        sources: sources of the spread of equal cells.
        design: design of the experiment.
        measure: name of the performance that drops.
    """
    drops = rows[rows["drop_pct"].notna() & (rows["hosts"] > rows["against_hosts"])]
    if drops.empty:
        return ()
    label_columns = select_distinguishing_columns(drops, [*panel_columns, "batch"])
    is_known = any(sources.find_host_component(str(name)) for name in drops["workload"].unique())
    unknown_note = () if is_known else ("Host-to-host variation is unknown: every cell ran on one set of hosts.",)
    if len(drops) > 1:
        label_columns = [*label_columns, *(name for name in ("ranks", "hosts") if name not in label_columns)]
        effect = verdict.summarize_effects(
            drops,
            design,
            label_columns,
            f"Spreading the same devices over more hosts lowers {measure} by {{}}",
            f"drop of {measure} on more hosts",
            lambda ratio: 100 * (1 - ratio),
            wording.format_percent,
        )
        return (effect, *_describe_unexplained_drops(drops), *unknown_note)
    row = drops.to_dict("records")[0]
    devices = wording.format_axis_value("ranks", row["ranks"])
    hosts = f"{wording.format_axis_value('hosts', row['hosts'])} instead of {row['against_hosts']:.0f}"
    sentence = verdict.summarize_effects(
        drops,
        design,
        label_columns,
        f"{measure[:1].upper()}{measure[1:]} of {devices} is {{}} lower on {hosts}",
        f"drop of {measure} for {devices} on {hosts}",
        lambda ratio: 100 * (1 - ratio),
        wording.format_percent,
    )
    return (sentence, *(_describe_host_variation(row, sources) if verdict.is_significant(row) else ()), *unknown_note)


def _describe_unexplained_drops(spread: pd.DataFrame) -> tuple[str, ...]:
    """Return a sentence with the number of drops that exceed host-to-host variation, or an empty tuple if there are none."""
    larger = int((spread["hosts_explain"] == NOT_EXPLAINED).sum())
    if not larger:
        return ()
    verb = "is" if larger == 1 else "are"
    return (f"{larger:,} of {len(spread):,} drops {verb} larger than host-to-host variation could explain.",)


def _describe_host_variation(row: Any, sources: SpreadSources) -> tuple[str, ...]:
    """Return a sentence on whether host-to-host variation can explain a drop, or an empty tuple if that is unknown."""
    part = sources.find_host_component(str(row["workload"]))
    if part is None:
        return ()
    size = f"(standard deviation {wording.format_percent(part.sd_pct, 2)})"
    # With few hosts the estimate may be zero, which does not show that they are equal. The upper bound is reported instead.
    upper_bound = (
        f" (standard deviation up to {wording.format_percent(part.high_pct, 2)})"
        if math.isfinite(part.high_pct)
        else ""
    )
    sentences = {
        EXPLAINED: f"Host-to-host variation {size} could explain this drop.",
        POSSIBLY_EXPLAINED: "Too few hosts were compared to rule out that host-to-host variation explains this "
        f"drop{upper_bound}.",
        NOT_EXPLAINED: f"The drop is larger than host-to-host variation {size} could explain.",
    }
    return tuple(sentences[name] for name in sentences if name == row["hosts_explain"])


def _has_several_batches(cells: pd.DataFrame) -> bool:
    """Return whether a panel has cells of more than one batch."""
    return cells["batch"].nunique() > 1


def _group_bars(cells: pd.DataFrame) -> BarGroups:
    """Group the bars of a panel by number of devices and batch, with one bar per number of hosts."""
    has_batches = _has_several_batches(cells)
    sorted_cells = cells.sort_values(["ranks", "batch"], kind="stable")
    return group_bars(
        sorted_cells, ["ranks", "batch"], "hosts", lambda key: f"{key[0]}\n{key[1]}" if has_batches else str(key[0])
    )


def _format_drop(row: Any) -> str:
    """Format the drop above a bar. The reference of a group has none."""
    return wording.format_percent(-row["drop_pct"]) if row["hosts"] > row["against_hosts"] else ""
