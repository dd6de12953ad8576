"""Figure: utilisation, power and traffic of devices and hosts over the time of one run per cell."""

from typing import Any

import numpy as np
import pandas as pd

from campaign.analysis.statistics import comparable_cells
from campaign.common import wording
from campaign.report import bars, columns, plot
from campaign.report.figure import Drawing, FigureData, coverage_of_cells, nothing

TITLE = "Over the time of a run"
SECTION = "What happens during a run? One run of each cell is shown, from its start."
METHOD = "a point of a time series is the mean of a 100th of the run; shorter peaks are not seen"
PLACE = 160
UNITS = {"parts": ""}
COUNTERPARTS = {
    "Falcon: Figs 9, 10, 13, 14 (over time)": "the same over the time of a run",
}

# Quantity of the telemetry table, label, unit, divisor to that unit.
_QUANTITIES = (
    ("utilisation_pct", "device utilisation", "%", 1.0),
    ("cpu_utilisation_pct", "CPU utilisation", "%", 1.0),
    ("power_w", "power of a device", "W", 1.0),
    ("memory_mib", "device memory", "GiB", 1024.0),
    ("memory_reserved_mib", "device memory with the driver's", "GiB", 1024.0),
    ("host_memory_mib", "host memory", "GiB", 1024.0),
    ("pcie_rx_gb_per_s", "PCIe received by a device", "GB/s", 1.0),
    ("pcie_tx_gb_per_s", "PCIe sent by a device", "GB/s", 1.0),
    ("nvlink_rx_gb_per_s", "NVLink received by a device", "GB/s", 1.0),
    ("network_rx_gb_per_s", "network received by a host", "GB/s", 1.0),
    ("loopback_rx_gb_per_s", "between processes of a host", "GB/s", 1.0),
    ("disk_read_gb_per_s", "read from disks of a host", "GB/s", 1.0),
    ("memory_access_pct", "time with device memory in use", "%", 1.0),
    ("temperature_c", "temperature of a device", "°C", 1.0),
    ("clock_sm_mhz", "clock of a device", "MHz", 1.0),
)
_BINS = 100
_LINES = 6
_WORKLOADS = 2
_CELL = ["cell_id", "configuration", "workload", "batch", "precision", "state", "n_ok", "n_planned"]


def draw(data: FigureData) -> Drawing:
    """Draw telemetry over the time of one run per cell, with one panel per quantity and workload."""
    rows = _rows(data)
    if rows.empty:
        return nothing("no run has telemetry over time")
    drawn = _drawn(rows)
    moving = drawn[drawn.groupby(["quantity", "workload"], sort=False)["most"].transform("max") > 0]
    panels = plot.panels(drawn if moving.empty else moving, ["quantity", "workload"])
    options = comparable_cells.option_columns(rows)
    axes = ["workload", "batch", "precision", *options]
    series = _series(rows)
    which = sorted({wording.describe(row, axes) for row in drawn.drop_duplicates(axes).to_dict("records")})
    more = rows["cell_id"].nunique() - drawn["cell_id"].nunique()
    rest = f" {wording.plural(more, 'further cell')} in the data only." if more else ""
    caption = (
        f"One run of each cell, the first valid one. The line is the mean of its devices or hosts, the band spans them. Drawn: "
        f"{'; '.join(which)}.{panels.sentence()}"
    )
    beside = {"Mean over the run": "mean", "Least": "least", "Most": "most"}
    return plot.drawn(
        data,
        series,
        lambda: _picture(panels),
        {
            "What": lambda row: f"{row['quantity']} ({row['unit']})",
            "Configuration": columns.text("configuration"),
            "Workload": columns.described(axes),
            **{
                heading: lambda row, name=name: bars.told_beside(row[name], row["unit"])
                for heading, name in beside.items()
            },
            "Parts": columns.count("parts"),
            "Run": lambda row: f"{row['cell_id']}.{row['repetition']}",
        },
        data=rows,
        caption=caption,
        limits=(*panels.limits(), rest),
        findings=_findings(series, drawn),
        coverage=coverage_of_cells(data.cells, rows["cell_id"]),
    )


def _rows(data: FigureData) -> pd.DataFrame:
    """Build one row per cell, quantity and hundredth of the run.

    It has the mean over devices or hosts, and the lowest and the highest value of any of them, in readable units.
    """
    if data.telemetry.empty:
        return pd.DataFrame()
    units = {name: (says, unit, divisor) for name, says, unit, divisor in _QUANTITIES}
    known = data.telemetry[data.telemetry["quantity"].isin(units) & data.telemetry["value"].notna()]
    known = known[known["cell_id"].isin(data.cells["cell_id"])]
    if known.empty:
        return pd.DataFrame()
    keys = ["cell_id", "repetition", "quantity"]
    length_s = known.groupby("cell_id", sort=False)["time_s"].transform("max").clip(lower=1e-9)
    bins = np.minimum((known["time_s"].clip(lower=0) / length_s * _BINS).astype("int64"), _BINS - 1)
    parts = known.groupby([*keys, "host", "part", bins.rename("bin")], sort=False)[["time_s", "value"]].mean()
    groups = parts.groupby([*keys, "bin"], sort=True)
    rows = groups["value"].agg(["mean", "min", "max", "count"]).assign(time_s=groups["time_s"].mean()).reset_index()
    rows = rows.rename(columns={"min": "least", "max": "most", "count": "parts"})
    largest = rows.groupby("quantity", sort=False)["most"].max()
    told = {name: bars.told_in(units[name][1], float(most)) for name, most in largest.items()}
    factor = rows["quantity"].map({name: each[1] / units[name][2] for name, each in told.items()})
    rows = rows.assign(**{name: rows[name] * factor for name in ("mean", "least", "most")})
    rows = rows.assign(
        place=rows["quantity"].map({name: place for place, name in enumerate(units)}),
        unit=rows["quantity"].map({name: each[0] for name, each in told.items()}),
        quantity=rows["quantity"].map({name: each[0] for name, each in units.items()}),
    )
    cells = data.cells[[*_CELL, *comparable_cells.option_columns(data.cells)]].reset_index(names="plan_place")
    joined = cells.merge(rows, on="cell_id").sort_values(
        ["place", "plan_place", "bin"], kind="stable", ignore_index=True
    )
    return joined.drop(columns=["place", "plan_place", "bin"])


def _drawn(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows to draw.

    They are of the workloads sampled on the most configurations, each with one batch, precision and set of options.
    """
    cells = rows.drop_duplicates("cell_id")
    axes = ["batch", "precision", *comparable_cells.option_columns(rows)]
    spread = (
        cells.groupby("workload", sort=False)["configuration"].nunique().sort_values(ascending=False, kind="stable")
    )
    kept: list[str] = []
    for workload in spread.index[:_WORKLOADS]:
        groups = [group for _, group in cells[cells["workload"] == workload].groupby(axes, sort=False, dropna=False)]
        best = max(groups, key=lambda group: (group["configuration"].nunique(), float(group["batch"].iloc[0])))
        each = best.drop_duplicates("configuration")
        # Spread over the plan, in which similar configurations are neighbours.
        places = np.unique(np.linspace(0, len(each) - 1, min(_LINES, len(each))).round().astype(int))
        kept += list(each.iloc[places]["cell_id"])
    return rows[rows["cell_id"].isin(kept)].reset_index(drop=True)


def _series(rows: pd.DataFrame) -> pd.DataFrame:
    """Summarise the rows over the whole run, with one row per quantity and cell."""
    keys = ["quantity", "cell_id"]
    groups = rows.groupby(keys, sort=False)
    summed = groups.agg(mean=("mean", "mean"), least=("least", "min"), most=("most", "max"), parts=("parts", "max"))
    told = rows.drop_duplicates(keys).drop(columns=["mean", "least", "most", "parts", "time_s"])
    return told.merge(summed.reset_index(), on=keys, how="left")


def _findings(series: pd.DataFrame, drawn: pd.DataFrame) -> tuple[str, ...]:
    """Return a sentence per quantity on the drawn run in which it varied most."""
    said = []
    shown = series[series["cell_id"].isin(drawn["cell_id"])]
    for quantity, group in shown.groupby("quantity", sort=False):
        most: Any = group.loc[(group["most"] - group["least"]).idxmax()]
        name = f"{str(quantity)[0].upper()}{str(quantity)[1:]}"
        least, high = (bars.told(most[end], most["unit"]) for end in ("least", "most"))
        if least == high:
            said.append(f"{name} stays at {high} in every run drawn.")
            continue
        where = ", ".join([str(most["configuration"]), str(most["workload"])])
        said.append(
            f"{name} varies most in the run of {where}: between {least} and {high}, {bars.told(most['mean'], most['unit'])} "
            "on average."
        )
    return tuple(said)


def _picture(panels: plot.Panels) -> str:
    """Draw one panel per quantity and workload, with a line per configuration and a band over its devices. Return SVG."""
    looks = plot.looks(plot.in_panels(panels, "configuration"))
    dashes = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 3)))
    lines: dict[str, dict[str, Any]] = {
        name: {"color": each.colour, "linestyle": dashes[position % len(dashes)], "linewidth": 1.2}
        for position, (name, each) in enumerate(looks.items())
    }

    several = len(set(plot.in_panels(panels, "quantity"))) > 1

    def paint(axes: Any, own: pd.DataFrame) -> None:
        """Draw a line per configuration, and a band over its devices or hosts if it has several."""
        for name, rows in own.groupby("configuration", sort=False):
            axes.plot(rows["time_s"], rows["mean"], **lines[str(name)])
            if (rows["parts"] > 1).any():
                how = {"color": looks[name].colour, "alpha": 0.15, "linewidth": 0}
                axes.fill_between(rows["time_s"], rows["least"], rows["most"], **how)
        axes.set_xlim(left=0)
        axes.set_ylim(0, 104.0 if own["unit"].iloc[0] == "%" else 1.05 * float(own["most"].max()) or 1.0)
        # The titles of panels name the quantity if there are several. A long axis label would reach into the next panel.
        axes.set_ylabel(f"{'mean' if several else own['quantity'].iloc[0]} ({own['unit'].iloc[0]})")

    handles = [plot.ink_key(name, **how) for name, how in lines.items()]
    return plot.multiples(panels, paint, handles, "time (s)", height_in=2.1)
