"""Figure: how latencies of requests are distributed, and their percentiles with intervals."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.lines import Line2D

from campaign import wording
from campaign.report import plot
from campaign.report.figure import Drawing, FigureData, coverage_of_cells, measured_as, nothing, page_table
from campaign.report.served import EXPLAINED, NO_REQUESTS, SHORT, Served, percentile_words, scaled, served
from campaign.statistics import comparable_cells, serving
from campaign.statistics.latency_percentiles import percentiles

TITLE = "Serving: distribution of latencies"
SECTION = (
    "How are latencies of single requests distributed? Two configurations with one median can differ in what the slowest of a "
    "hundred users wait for."
)
PLACE = 8
UNITS = {"percent": "", "value": "ms", "low": "ms", "high": "ms"}

_CURVE_POINTS = 400
_LEAST_SHARE = 0.001  # of requests: the quickest one says nothing, and takes half of a logarithmic axis
_DRAWN = ("ttft_ms", "tpot_ms")


def draw(data: FigureData) -> Drawing:
    if data.requests.empty:
        return nothing(NO_REQUESTS)
    found = served(data)
    named = comparable_cells.naming_columns(data.cells)
    cells = data.cells[["cell_id", *named, "n_ok", "state"]]
    rows = cells.merge(percentiles(found.requests, found.latencies), on="cell_id")
    if rows.empty:
        return nothing("no request was counted")
    shown, common = _chosen(rows, found)
    caption = (
        f"Share of requests that take at most so long, over all runs of a cell{common}; a curve ends below 1 where some fail. "
        f"{EXPLAINED} The table has all cells, with 95 % intervals over compositions, or over requests within the composition "
        "where there is one: requests of a queue resemble their neighbours, which the intervals account for. Where nothing "
        f"bounds a percentile from above, it is at least the lower end of its interval. {measured_as(data, rows)}"
    )
    with plot.style(data.style):
        svg = _picture(shown, found, named)
    table = page_table(
        rows,
        {
            "Cell": lambda row: wording.describe(row, [name for name in named if name != "batch"]),
            "Latency": lambda row: f"p{row['percent']:g} {SHORT[row['latency']]} (ms)",
            "Value [95 %]": percentile_words,
            "Requests": lambda row: wording.count(row["n_requests"]),
            "Compositions": lambda row: wording.count(row["n_compositions"]),
        },
    )
    covered = coverage_of_cells(data.cells, rows["cell_id"].unique())
    findings = _findings(rows, named)
    return Drawing(svg=svg, caption=caption, findings=findings, data=rows, coverage=covered, **table)


def _chosen(rows: pd.DataFrame, found: Served) -> tuple[pd.DataFrame, str]:
    """The cells that are drawn: of all series those at one rate, the highest that every one was measured at."""
    rates = found.cells.set_index("cell_id")["rate_per_s"]
    of = rows.assign(rate_per_s=rows["cell_id"].map(rates))
    rated = of[of["rate_per_s"].notna()]
    if rated.empty:
        return of, ""
    series = rated["cell_id"].map(found.cells.set_index("cell_id")["series"])
    everywhere = series.groupby(rated["rate_per_s"]).nunique()
    common = float(everywhere[everywhere == everywhere.max()].index.max())
    kept = of[of["rate_per_s"].isna() | (of["rate_per_s"] == common)]
    return kept, f", at {wording.number(common)} requests/s"


def _findings(rows: pd.DataFrame, named: list[str]) -> tuple[str, ...]:
    """The longest tail of each latency."""
    sentences = []
    for latency in _DRAWN:
        wide = rows[rows["latency"] == latency].pivot(index="cell_id", columns="percent", values="value")
        wide = wide[np.isfinite(wide[99.0])] if 99.0 in wide else wide[:0]
        if wide.empty:
            continue
        ratio = wide[99.0] / wide[50.0]
        row = rows[rows["cell_id"] == ratio.idxmax()].iloc[0]
        different = [name for name in named if name == "configuration" or rows[name].nunique() > 1]
        sentences.append(
            f"Longest tail of {SHORT[latency]}: the 99th percentile is {wording.times(ratio.max())} the median "
            f"({wording.describe(row, different)})."
        )
    unknown = rows[(rows["percent"] == 99.0) & rows["high"].isna()]["cell_id"].nunique()
    if unknown:
        cells = wording.plural(unknown, "cell")
        sentences.append(f"Requests are too few to bound the 99th percentile from above in {cells}; longer runs help.")
    return tuple(sentences)


def _picture(shown: pd.DataFrame, found: Served, named: list[str]) -> str:
    cells = shown.drop_duplicates("cell_id").head(plot.MOST_SERIES).to_dict("records")
    different = [name for name in named if name != serving.RATE and shown[name].nunique() > 1] or ["configuration"]
    latencies = [name for name in _DRAWN if name in set(shown["latency"])]
    figure, axes = plot.grid(len(latencies), height_in=2.6)
    for latency, (only,) in zip(latencies, axes, strict=True):
        plot.title(only, serving.LATENCIES[latency])
        drawn: list[pd.Series[float]] = []
        for place, cell in enumerate(cells):
            own = found.requests.loc[found.requests["cell_id"] == cell["cell_id"], latency].dropna()
            times = np.sort(own.to_numpy(dtype=np.float64))
            shares = np.arange(1, times.size + 1) / max(times.size, 1)
            kept = np.unique(np.linspace(0, times.size - 1, min(_CURVE_POINTS, times.size)).round().astype(int))
            kept = kept[np.isfinite(times[kept]) & (shares[kept] >= _LEAST_SHARE)]
            drawn.append(pd.Series(times[kept]))
            look = plot.look(place)
            only.step(times[kept], shares[kept], where="post", color=look.colour, linestyle=look.dashes)
        scaled(only, "x", pd.concat(drawn))
        only.set_ylim(0, 1.02)
        only.set_xlabel(f"{SHORT[latency]} (ms)")
    axes[0][0].set_ylabel("share of requests")
    looks = [plot.look(place) for place in range(len(cells))]
    plot.legend(
        figure,
        [
            Line2D([], [], color=look.colour, linestyle=look.dashes, label=wording.describe(cell, different))
            for look, cell in zip(looks, cells, strict=True)
        ],
    )
    return plot.to_svg(figure)
