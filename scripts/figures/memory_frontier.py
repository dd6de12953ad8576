"""Figure: largest batch that fits into memory on each composition, and the batches that were not run because of it."""

import math
import re
from typing import Any

import pandas as pd

from campaign.analysis.statistics import comparable_cells
from campaign.common import wording
from campaign.report import columns, plot
from campaign.report.figure import Drawing, FigureData, coverage_of_cells, first_and_last, nothing, telling

TITLE = "Memory"
SECTION = (
    "Up to which batch is the memory sufficient? Larger, otherwise equal batches need not be run: their "
    "result is implied."
)
PLACE = 80
UNITS = {"largest_ran": "", "smallest_out": ""}
COUNTERPARTS = {
    "Falcon: Section V.C.4": "largest batch with sharding",
    "FASTER: Section 3.2.2": "batch 32 does not fit in tf32",
}

_OUT = re.compile(r"\boom_(device|host)\b")
_ROWS = 24  # labels of more rows would overlap
_MARKS = {"ran": "o", "out": "X", "implied": ">", "failed": "."}
_WORDS = {"ran": "ran", "out": "ran out of memory", "implied": "implied, not run", "failed": "failed otherwise"}


def draw(data: FigureData) -> Drawing:
    """Draw the outcome of each planned batch where one ran out of memory, with a row per shape and precision."""
    cells = _outcomes(data.cells)
    by = _by(cells)
    rows = _frontier(cells, data.runs, by)
    if rows.empty:
        return nothing("no run ran out of memory")
    # Shapes are the rows of a panel. All other columns that differ make panels.
    shape = ["shape", "attached", "storage", "device", "precision"]
    panels = plot.panels(rows, [column for column in by if column not in shape])
    caption = (
        "Every planned batch where one ran out of memory; the line joins the largest that ran with the smallest that did not."
        f"{panels.sentence()}"
    )
    return plot.drawn(
        data,
        rows,
        lambda: _picture(panels, cells, by, shape),
        {
            "Workload and composition": columns.described(telling(rows, by)),
            "Largest batch that ran": lambda row: _batch(row["largest_ran"]),
            "Smallest that ran out": lambda row: _batch(row["smallest_out"]),
            "Memory of": columns.text("memory"),
            "Implied": columns.text("implied", wording.NONE),
            "Evidence (cell.repetition)": columns.text("evidence", wording.NONE),
        },
        caption=caption,
        limits=(*panels.limits(), _cut(panels)),
        findings=_findings(rows, cells, by),
        coverage=coverage_of_cells(data.cells),
    )


def _by(cells: pd.DataFrame) -> list[str]:
    """Return the columns that identify a frontier, which are all axes except the batch."""
    columns = ["workload", "precision", "shape", "attached", "storage", "device"]
    return [*columns, *comparable_cells.option_columns(cells)]


def _outcomes(cells: pd.DataFrame) -> pd.DataFrame:
    """Return the cells that were run or implied, with a column `outcome`.

    A cell with both valid runs and runs that ran out of memory counts as out of memory.
    """
    said = comparable_cells.in_words(cells)
    out = said["failures"].str.contains("oom_", regex=False)
    outcome = pd.Series("failed", index=said.index, dtype="str")
    outcome = (
        outcome.mask(said["state"] == "measured", "ran").mask(said["state"] == "implied", "implied").mask(out, "out")
    )
    return said.assign(outcome=outcome)[(said["state"] != "missing")].reset_index(drop=True)


def _frontier(cells: pd.DataFrame, runs: pd.DataFrame, by: list[str]) -> pd.DataFrame:
    """Build one row per frontier.

    It has the largest batch that ran, the smallest that ran out of memory (NaN for none), the kind of memory, the implied
    batches, and the runs that they follow from.

    Args:
        cells: cells with their outcome.
        runs: runs of the campaign.
        frontier_columns: columns that identify a frontier.
    """
    rested = runs[runs["implied_by"] != ""].groupby("cell_id", sort=False)["implied_by"].first()
    rows = []
    ended = (
        cells["outcome"].isin(("out", "implied")).groupby([cells[name] for name in by], dropna=False).transform("any")
    )
    for key, group in cells[ended.astype(bool)].groupby(by, sort=False, dropna=False):
        out = group[group["outcome"] == "out"].sort_values("batch", kind="stable")
        implied = group[group["outcome"] == "implied"].sort_values("batch", kind="stable")
        ran = group.loc[group["state"] == "measured", "batch"]
        kinds = {kind for words in out["failures"] for kind in _OUT.findall(words)}
        rows.append(
            {
                **dict(zip(by, key, strict=True)),
                "largest_ran": float(ran.max()) if len(ran) else math.nan,
                "smallest_out": float(out["batch"].iloc[0]) if len(out) else math.nan,
                "memory": " and ".join(sorted(kinds)),
                "implied": ", ".join(str(batch) for batch in implied["batch"]),
                "evidence": ", ".join(dict.fromkeys(rested.reindex(implied["cell_id"]).dropna())),
            }
        )
    columns = [*by, "largest_ran", "smallest_out", "memory", "implied", "evidence"]
    return pd.DataFrame(rows, columns=columns)


def _findings(rows: pd.DataFrame, cells: pd.DataFrame, by: list[str]) -> tuple[str, ...]:
    """Return sentences on the range of the frontiers, the number of implied cells, and contradictions between batches."""
    named = telling(rows, by)
    known = rows[rows["smallest_out"].notna()].sort_values("smallest_out", kind="stable")
    said = []
    if len(known):
        ends = first_and_last(known)
        first, *last = [f"at batch {_batch(row['smallest_out'])} ({wording.describe(row, named)})" for row in ends]
        if last and ends[0]["smallest_out"] == ends[1]["smallest_out"]:
            first, last = (
                f"at batch {_batch(ends[0]['smallest_out'])} in each of the {len(known):,} cases in which it does",
                [],
            )
        said.append(f"Memory runs out {first}{', and as late as ' + last[0] if last else ''}.")
    spared = int((cells["outcome"] == "implied").sum())
    if spared:
        said.append(
            f"{wording.plural(spared, 'cell')} with larger batches not run: their result is implied by smaller batches."
        )
    against = rows[rows["largest_ran"] >= rows["smallest_out"]]
    for row in against.head(2).to_dict("records"):
        said.append(
            f"Contradiction, {wording.describe(row, named)}: batch {row['smallest_out']:.0f} ran out of memory, "
            f"batch {row['largest_ran']:.0f} ran."
        )
    return tuple(said)


def _batch(value: float) -> str:
    """Format a batch, or a placeholder for NaN."""
    return wording.NONE if math.isnan(value) else f"{value:.0f}"


def _cut(panels: plot.Panels) -> str:
    """Return a sentence with the number of rows that are not drawn, or an empty string."""
    left_out = sum(max(0, len(panel.rows) - _ROWS) for panel in panels.shown)
    return f" {wording.plural(left_out, 'further row')} in the data table only." if left_out else ""


def _picture(panels: plot.Panels, cells: pd.DataFrame, by: list[str], shape: list[str]) -> str:
    """Draw one panel per workload and set of options, with a row per shape and a marker per batch. Return SVG.

    Args:
        panels: panels with the rows of frontiers.
        cells: cells with their outcome.
        frontier_columns: columns that identify a frontier.
        shape: columns of which those that differ label the rows.
    """
    tallest = min(_ROWS, max(len(panel.rows) for panel in panels.shown))
    different = telling(pd.concat([panel.rows for panel in panels.shown]), shape, "shape")
    places = [panel.rows.head(_ROWS)[by].assign(place=range(min(_ROWS, len(panel.rows)))) for panel in panels.shown]
    drawn = set(pd.concat(places).merge(cells, on=by)["outcome"])

    def paint(axes: Any, rows: pd.DataFrame) -> None:
        """Draw a row per frontier, with a marker per batch."""
        shown = rows.head(_ROWS)
        marks = shown[by].assign(place=shown.index).merge(cells, on=by)
        _row_lines(axes, shown)
        for outcome, group in marks.groupby("outcome", sort=True):
            axes.plot(group["batch"], group["place"], **_look(outcome))
        labels = [wording.describe(row, different) for row in shown.to_dict("records")]
        plot.label_lines(axes, labels, grid="y")
        axes.set_xscale("log", base=2)
        batches = sorted(marks["batch"].unique())
        axes.set_xticks(_legible(batches), [str(batch) for batch in _legible(batches)])
        axes.minorticks_off()
        axes.set_xlim(batches[0] / 1.4, batches[-1] * 1.4)

    handles = [plot.ink_key(_WORDS[name], **_look(name)) for name in _MARKS if name in drawn]
    return plot.multiples(panels, paint, handles, "batch per device (samples)", "cell", height_in=1.0 + 0.24 * tallest)


def _look(outcome: str) -> dict[str, Any]:
    """Return the marker style of an outcome."""
    colour = {"ran": plot.COLOURS[2], "out": plot.COLOURS[5], "implied": plot.COLOURS[5]}.get(outcome, plot.INK)
    filled = "none" if outcome == "implied" else colour
    return {
        "marker": _MARKS[outcome],
        "linestyle": "",
        "color": colour,
        "markerfacecolor": filled,
        "markeredgecolor": colour,
    }


def _row_lines(axes: Any, rows: pd.DataFrame) -> None:
    """Draw a line from the largest batch that ran to the smallest that ran out."""
    for place, row in rows.iterrows():
        if row["largest_ran"] < row["smallest_out"]:
            ends = [row["largest_ran"], row["smallest_out"]]
            axes.plot(ends, [place, place], color=plot.INK, linewidth=0.9, zorder=1)


def _legible(batches: list[int]) -> list[int]:
    """Return the batches whose labels do not overlap on a logarithmic axis."""
    span = max(1e-9, math.log2(batches[-1] / batches[0]))
    kept: list[int] = []
    for batch in batches:
        if not kept or math.log2(batch / kept[-1]) > 0.07 * span:
            kept.append(int(batch))
    return kept
