"""Figure: largest batch that fits into memory on each composition, and larger batches that were therefore not run."""

import math
import re
from typing import Any

import pandas as pd

from campaign.analysis.statistics import comparable_cells
from campaign.common import wording
from campaign.report import columns, plot
from campaign.report.figure import (
    Drawing,
    FigureData,
    describe_cell_coverage,
    describe_undrawn,
    nothing,
    select_distinguishing_columns,
    select_first_and_last,
)
from campaign.spec.run_numbers import format_run_number

TITLE = "Memory"
SECTION = (
    "What is the largest batch that fits into memory? Larger batches of an otherwise equal cell are not run, because their "
    "result is implied."
)
PLACE = 80
UNITS = {"largest_ran": "", "smallest_out": ""}
COUNTERPARTS = {
    "Falcon: Section V.C.4": "largest batch with sharding",
    "FASTER: Section 3.2.2": "batch 32 does not fit in tf32",
}

_OOM_PATTERN = re.compile(r"\boom_(device|host)\b")
_MAX_ROWS_PER_PANEL = 24  # labels of more rows would overlap
_MARKS = {"ran": "o", "out": "X", "implied": ">", "failed": "."}
_OUTCOME_TEXTS = {
    "ran": "ran",
    "out": "ran out of memory",
    "implied": "implied, not run",
    "failed": "failed for another reason",
}


def draw(data: FigureData) -> Drawing:
    """Draw the outcome of each planned batch where one ran out of memory, with a row per shape and precision."""
    cells = _classify_outcomes(data.cells)
    frontier_columns = _list_frontier_columns(cells)
    rows = _find_frontiers(cells, data.runs, frontier_columns)
    if rows.empty:
        return nothing("no run ran out of memory")
    # Shapes are the rows of a panel. All other columns that differ make panels.
    shape = ["shape", "attached", "storage", "device", "precision"]
    panels = plot.split_into_panels(rows, [column for column in frontier_columns if column not in shape])
    caption = (
        "All planned batches of cells of which one ran out of memory. The line joins the largest batch that ran and the smallest "
        "that ran out of memory."
        f"{panels.format_common_sentence()}"
    )
    return plot.build_drawing(
        data,
        rows,
        lambda: _draw_frontiers(panels, cells, frontier_columns, shape),
        {
            "Workload and composition": columns.description_column(
                select_distinguishing_columns(rows, frontier_columns)
            ),
            "Largest batch that ran": lambda row: _format_batch(row["largest_ran"]),
            "Smallest batch that ran out of memory": lambda row: _format_batch(row["smallest_out"]),
            "Which memory": columns.text_column("memory"),
            "Implied batches": columns.text_column("implied", wording.NO_VALUE),
            "Evidence": columns.text_column("evidence", wording.NO_VALUE),
        },
        caption=caption,
        limits=(*panels.list_limits(), _describe_hidden_rows(panels)),
        findings=_describe_frontiers(rows, cells, frontier_columns),
        coverage=describe_cell_coverage(data.cells),
    )


def _list_frontier_columns(cells: pd.DataFrame) -> list[str]:
    """Return the columns that identify a frontier, which are all axes except the batch."""
    columns = ["workload", "precision", "shape", "attached", "storage", "device"]
    return [*columns, *comparable_cells.list_option_columns(cells)]


def _classify_outcomes(cells: pd.DataFrame) -> pd.DataFrame:
    """Return the cells that were run or implied, with a column `outcome`.

    A cell with both valid runs and runs that ran out of memory counts as out of memory.
    """
    described_cells = comparable_cells.add_description_columns(cells)
    is_out = described_cells["failures"].str.contains("oom_", regex=False)
    outcome = pd.Series("failed", index=described_cells.index, dtype="str")
    outcome = (
        outcome.mask(described_cells["state"] == "measured", "ran")
        .mask(described_cells["state"] == "implied", "implied")
        .mask(is_out, "out")
    )
    return described_cells.assign(outcome=outcome)[(described_cells["state"] != "missing")].reset_index(drop=True)


def _find_frontiers(cells: pd.DataFrame, runs: pd.DataFrame, frontier_columns: list[str]) -> pd.DataFrame:
    """Build one row per frontier.

    It has the largest batch that ran, the smallest that ran out of memory (NaN for none), the kind of memory, the implied
    batches, and the runs that they follow from.

    Args:
        cells: cells with their outcome.
        runs: runs of the campaign.
        frontier_columns: columns that identify a frontier.
    """
    evidence = runs[runs["implied_by"] != ""].groupby("cell_id", sort=False)["implied_by"].first()
    rows = []
    has_limit = (
        cells["outcome"]
        .isin(("out", "implied"))
        .groupby([cells[name] for name in frontier_columns], dropna=False)
        .transform("any")
    )
    for key, group in cells[has_limit.astype(bool)].groupby(frontier_columns, sort=False, dropna=False):
        out_of_memory_cells = group[group["outcome"] == "out"].sort_values("batch", kind="stable")
        implied_cells = group[group["outcome"] == "implied"].sort_values("batch", kind="stable")
        measured_batches = group.loc[group["state"] == "measured", "batch"]
        kinds = {kind for words in out_of_memory_cells["failures"] for kind in _OOM_PATTERN.findall(words)}
        rows.append(
            {
                **dict(zip(frontier_columns, key, strict=True)),
                "largest_ran": float(measured_batches.max()) if len(measured_batches) else math.nan,
                "smallest_out": float(out_of_memory_cells["batch"].iloc[0]) if len(out_of_memory_cells) else math.nan,
                "memory": " and ".join(sorted(kinds)),
                "implied": ", ".join(str(batch) for batch in implied_cells["batch"]),
                "evidence": "; ".join(
                    f"{cell_id}, {format_run_number(int(run))}"
                    for cell_id, _, run in (
                        key.partition(".") for key in dict.fromkeys(evidence.reindex(implied_cells["cell_id"]).dropna())
                    )
                ),
            }
        )
    columns = [*frontier_columns, "largest_ran", "smallest_out", "memory", "implied", "evidence"]
    return pd.DataFrame(rows, columns=columns)


def _describe_frontiers(rows: pd.DataFrame, cells: pd.DataFrame, frontier_columns: list[str]) -> tuple[str, ...]:
    """Return sentences on the range of the frontiers, the number of implied cells, and contradictions between batches."""
    label_columns = select_distinguishing_columns(rows, frontier_columns)
    limits = rows[rows["smallest_out"].notna()].sort_values("smallest_out", kind="stable")
    sentences = []
    if len(limits):
        ends = select_first_and_last(limits)
        first, *last = [
            f"at batch {_format_batch(row['smallest_out'])} ({wording.format_axes(row, label_columns)})" for row in ends
        ]
        if last and ends[0]["smallest_out"] == ends[1]["smallest_out"]:
            first, last = (
                f"at batch {_format_batch(ends[0]['smallest_out'])} in all {len(limits):,} cases",
                [],
            )
        sentences.append(f"Memory runs out {f'earliest {first} and latest {last[0]}' if last else first}.")
    implied_count = int((cells["outcome"] == "implied").sum())
    if implied_count:
        verb = "was" if implied_count == 1 else "were"
        sentences.append(
            f"{wording.pluralize(implied_count, 'cell')} {verb} not run, because a smaller batch already ran out of memory."
        )
    contradictions = rows[rows["largest_ran"] >= rows["smallest_out"]]
    for row in contradictions.head(2).to_dict("records"):
        sentences.append(
            f"Contradiction in {wording.format_axes(row, label_columns)}: batch {row['smallest_out']:.0f} ran out of memory, "
            f"but batch {row['largest_ran']:.0f} ran."
        )
    return tuple(sentences)


def _format_batch(value: float) -> str:
    """Format a batch, or a placeholder for NaN."""
    return wording.NO_VALUE if math.isnan(value) else f"{value:.0f}"


def _describe_hidden_rows(panels: plot.Panels) -> str:
    """Return a sentence with the number of rows that are not drawn, or an empty string."""
    left_out = sum(max(0, len(panel.rows) - _MAX_ROWS_PER_PANEL) for panel in panels.shown)
    return describe_undrawn(left_out, "row")


def _draw_frontiers(panels: plot.Panels, cells: pd.DataFrame, frontier_columns: list[str], shape: list[str]) -> str:
    """Draw one panel per workload and set of options, with a row per shape and a marker per batch. Return SVG.

    Args:
        panels: panels with the rows of frontiers.
        cells: cells with their outcome.
        frontier_columns: columns that identify a frontier.
        shape: columns of which those that differ label the rows.
    """
    tallest = min(_MAX_ROWS_PER_PANEL, max(len(panel.rows) for panel in panels.shown))
    label_columns = select_distinguishing_columns(pd.concat([panel.rows for panel in panels.shown]), shape, "shape")
    places = [
        panel.rows.head(_MAX_ROWS_PER_PANEL)[frontier_columns].assign(
            place=range(min(_MAX_ROWS_PER_PANEL, len(panel.rows)))
        )
        for panel in panels.shown
    ]
    drawn_outcomes = set(pd.concat(places).merge(cells, on=frontier_columns)["outcome"])

    def draw_panel(axes: Any, rows: pd.DataFrame) -> None:
        """Draw a row per frontier, with a marker per batch."""
        visible_rows = rows.head(_MAX_ROWS_PER_PANEL)
        marks = visible_rows[frontier_columns].assign(place=visible_rows.index).merge(cells, on=frontier_columns)
        _draw_row_lines(axes, visible_rows)
        for outcome, group in marks.groupby("outcome", sort=True):
            axes.plot(group["batch"], group["place"], **_build_marker_style(outcome))
        labels = [wording.format_axes(row, label_columns) for row in visible_rows.to_dict("records")]
        plot.label_panel_lines(axes, labels, grid="y")
        axes.set_xscale("log", base=2)
        batches = sorted(marks["batch"].unique())
        axes.set_xticks(_select_legible_batches(batches), [str(batch) for batch in _select_legible_batches(batches)])
        axes.minorticks_off()
        axes.set_xlim(batches[0] / 1.4, batches[-1] * 1.4)

    handles = [
        plot.build_ink_key(_OUTCOME_TEXTS[name], **_build_marker_style(name))
        for name in _MARKS
        if name in drawn_outcomes
    ]
    return plot.draw_multiples(
        panels, draw_panel, handles, "batch per device (samples)", "cell", height_in=1.0 + 0.24 * tallest
    )


def _build_marker_style(outcome: str) -> dict[str, Any]:
    """Return the marker style of an outcome."""
    colour = {"ran": plot.COLOURS[2], "out": plot.COLOURS[5], "implied": plot.COLOURS[5]}.get(outcome, plot.INK)
    fill_colour = "none" if outcome == "implied" else colour
    return {
        "marker": _MARKS[outcome],
        "linestyle": "",
        "color": colour,
        "markerfacecolor": fill_colour,
        "markeredgecolor": colour,
    }


def _draw_row_lines(axes: Any, rows: pd.DataFrame) -> None:
    """Draw a line from the largest batch that ran to the smallest that ran out."""
    for place, row in rows.iterrows():
        if row["largest_ran"] < row["smallest_out"]:
            ends = [row["largest_ran"], row["smallest_out"]]
            axes.plot(ends, [place, place], color=plot.INK, linewidth=0.9, zorder=1)


def _select_legible_batches(batches: list[int]) -> list[int]:
    """Return the batches whose labels do not overlap on a logarithmic axis."""
    span = max(1e-9, math.log2(batches[-1] / batches[0]))
    legible: list[int] = []
    for batch in batches:
        if not legible or math.log2(batch / legible[-1]) > 0.07 * span:
            legible.append(int(batch))
    return legible
