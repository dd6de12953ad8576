"""Figure: utilisation, power and traffic of devices and hosts over the time of one run per cell."""

from typing import Any

import numpy as np
import pandas as pd

from campaign.analysis.statistics import comparable_cells
from campaign.common import wording
from campaign.report import bars, columns, plot
from campaign.report.figure import Drawing, FigureData, describe_cell_coverage, nothing
from campaign.spec.run_numbers import format_run_number

TITLE = "Time series"
SECTION = "What happens during a run?"
METHOD = "points of time series are means over 1 % of the run"
WITH = "utilisation"
PLACE = 160
UNITS = {"parts": ""}
COUNTERPARTS = {
    "Falcon: Figs 9, 10, 13, 14 (over time)": "the same quantities over the time of a run",
}

# Quantity of the telemetry table, label, unit, divisor to that unit.
_QUANTITIES = (
    ("utilisation_pct", "device utilisation", "%", 1.0),
    ("cpu_utilisation_pct", "CPU utilisation", "%", 1.0),
    ("power_w", "power per device", "W", 1.0),
    ("memory_mib", "device memory", "GiB", 1024.0),
    ("memory_reserved_mib", "device memory including the driver's", "GiB", 1024.0),
    ("host_memory_mib", "host memory", "GiB", 1024.0),
    ("pcie_rx_gb_per_s", "PCIe received per device", "GB/s", 1.0),
    ("pcie_tx_gb_per_s", "PCIe sent per device", "GB/s", 1.0),
    ("nvlink_rx_gb_per_s", "NVLink received per device", "GB/s", 1.0),
    ("network_rx_gb_per_s", "network received per host", "GB/s", 1.0),
    ("loopback_rx_gb_per_s", "traffic between processes of a host", "GB/s", 1.0),
    ("disk_read_gb_per_s", "disk read rate per host", "GB/s", 1.0),
    ("memory_access_pct", "time with device memory in use", "%", 1.0),
    ("temperature_c", "device temperature", "°C", 1.0),
    ("clock_sm_mhz", "device clock", "MHz", 1.0),
)
_BIN_COUNT = 100
_MAX_CONFIGURATIONS = 6
_MAX_WORKLOADS = 2
_CELL_COLUMNS = ["cell_id", "configuration", "workload", "batch", "precision", "state", "n_ok", "n_planned"]


def draw(data: FigureData) -> Drawing:
    """Draw telemetry over the time of one run per cell, with one panel per quantity and workload."""
    rows = _bin_telemetry(data)
    if rows.empty:
        return nothing("no run has telemetry over time")
    drawn_rows = _select_drawn(rows)
    changing_rows = drawn_rows[drawn_rows.groupby(["quantity", "workload"], sort=False)["most"].transform("max") > 0]
    panels = plot.split_into_panels(drawn_rows if changing_rows.empty else changing_rows, ["quantity", "workload"])
    options = comparable_cells.list_option_columns(rows)
    axes = ["workload", "batch", "precision", *options]
    series = _summarise_series(rows)
    workload_texts = sorted(
        {wording.format_axes(row, axes) for row in drawn_rows.drop_duplicates(axes).to_dict("records")}
    )
    caption = (
        "The first valid run of each cell, from its start. Lines are means over devices or hosts; bands span their range."
        f"{panels.format_common_sentence()}"
    )
    value_columns = {"Mean over the run": "mean", "Minimum": "least", "Maximum": "most"}
    return plot.build_drawing(
        data,
        series,
        lambda: _draw_panels(panels),
        {
            "Quantity": lambda row: f"{row['quantity']} ({row['unit']})",
            "Configuration": columns.text_column("configuration"),
            "Workload": columns.description_column(axes),
            **{
                heading: lambda row, name=name: bars.format_value(row[name], row["unit"])
                for heading, name in value_columns.items()
            },
            "Devices or hosts": columns.count_column("parts"),
            "Run": lambda row: f"{row['cell_id']}, {format_run_number(row['repetition'])}",
        },
        data=rows,
        caption=caption,
        limits=(*panels.list_limits(), f"Drawn: {'; '.join(workload_texts)}."),
        findings=_describe_ranges(series, drawn_rows),
        coverage=describe_cell_coverage(data.cells, rows["cell_id"]),
    )


def _bin_telemetry(data: FigureData) -> pd.DataFrame:
    """Build one row per cell, quantity and hundredth of the run.

    It has the mean over devices or hosts, and the lowest and the highest value of any of them, in readable units.
    """
    if data.telemetry.empty:
        return pd.DataFrame()
    units = {name: (label, unit, divisor) for name, label, unit, divisor in _QUANTITIES}
    samples = data.telemetry[data.telemetry["quantity"].isin(units) & data.telemetry["value"].notna()]
    samples = samples[samples["cell_id"].isin(data.cells["cell_id"])]
    if samples.empty:
        return pd.DataFrame()
    keys = ["cell_id", "repetition", "quantity"]
    length_s = samples.groupby("cell_id", sort=False)["time_s"].transform("max").clip(lower=1e-9)
    bins = np.minimum((samples["time_s"].clip(lower=0) / length_s * _BIN_COUNT).astype("int64"), _BIN_COUNT - 1)
    parts = samples.groupby([*keys, "host", "part", bins.rename("bin")], sort=False)[["time_s", "value"]].mean()
    groups = parts.groupby([*keys, "bin"], sort=True)
    rows = groups["value"].agg(["mean", "min", "max", "count"]).assign(time_s=groups["time_s"].mean()).reset_index()
    rows = rows.rename(columns={"min": "least", "max": "most", "count": "parts"})
    largest = rows.groupby("quantity", sort=False)["most"].max()
    unit_scales = {
        name: bars.choose_unit(units[name][1], float(largest_value)) for name, largest_value in largest.items()
    }
    factor = rows["quantity"].map({name: entry[1] / units[name][2] for name, entry in unit_scales.items()})
    rows = rows.assign(**{name: rows[name] * factor for name in ("mean", "least", "most")})
    rows = rows.assign(
        place=rows["quantity"].map({name: place for place, name in enumerate(units)}),
        unit=rows["quantity"].map({name: entry[0] for name, entry in unit_scales.items()}),
        quantity=rows["quantity"].map({name: entry[0] for name, entry in units.items()}),
    )
    cells = data.cells[[*_CELL_COLUMNS, *comparable_cells.list_option_columns(data.cells)]].reset_index(
        names="plan_place"
    )
    cell_rows = cells.merge(rows, on="cell_id").sort_values(
        ["place", "plan_place", "bin"], kind="stable", ignore_index=True
    )
    return cell_rows.drop(columns=["place", "plan_place", "bin"])


def _select_drawn(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows to draw.

    They are of the workloads sampled on the most configurations, each with one batch, precision and set of options.
    """
    cells = rows.drop_duplicates("cell_id")
    axes = ["batch", "precision", *comparable_cells.list_option_columns(rows)]
    spread = (
        cells.groupby("workload", sort=False)["configuration"].nunique().sort_values(ascending=False, kind="stable")
    )
    cell_ids: list[str] = []
    for workload in spread.index[:_MAX_WORKLOADS]:
        groups = [group for _, group in cells[cells["workload"] == workload].groupby(axes, sort=False, dropna=False)]
        best = max(groups, key=lambda group: (group["configuration"].nunique(), float(group["batch"].iloc[0])))
        candidates = best.drop_duplicates("configuration")
        # Spread over the plan, in which similar configurations are neighbours.
        places = np.unique(
            np.linspace(0, len(candidates) - 1, min(_MAX_CONFIGURATIONS, len(candidates))).round().astype(int)
        )
        cell_ids += list(candidates.iloc[places]["cell_id"])
    return rows[rows["cell_id"].isin(cell_ids)].reset_index(drop=True)


def _summarise_series(rows: pd.DataFrame) -> pd.DataFrame:
    """Summarise the rows over the whole run, with one row per quantity and cell."""
    keys = ["quantity", "cell_id"]
    groups = rows.groupby(keys, sort=False)
    totals = groups.agg(mean=("mean", "mean"), least=("least", "min"), most=("most", "max"), parts=("parts", "max"))
    labels = rows.drop_duplicates(keys).drop(columns=["mean", "least", "most", "parts", "time_s"])
    return labels.merge(totals.reset_index(), on=keys, how="left")


def _describe_ranges(series: pd.DataFrame, drawn_rows: pd.DataFrame) -> tuple[str, ...]:
    """Return a sentence per quantity on the drawn run in which it varied most."""
    sentences = []
    shown_series = series[series["cell_id"].isin(drawn_rows["cell_id"])]
    for quantity, group in shown_series.groupby("quantity", sort=False):
        widest: Any = group.loc[(group["most"] - group["least"]).idxmax()]
        name = f"{str(quantity)[0].upper()}{str(quantity)[1:]}"
        low_text, high_text = (bars.format_with_unit(widest[end], widest["unit"]) for end in ("least", "most"))
        if low_text == high_text:
            sentences.append(f"{name} stays at {high_text} in every drawn run.")
            continue
        run_text = ", ".join([str(widest["configuration"]), str(widest["workload"])])
        sentences.append(
            f"{name} varies most in the run of {run_text}: from {low_text} to {high_text}, with a mean of "
            f"{bars.format_with_unit(widest['mean'], widest['unit'])}."
        )
    return tuple(sentences)


def _draw_panels(panels: plot.Panels) -> str:
    """Draw one panel per quantity and workload, with a line per configuration and a band over its devices. Return SVG."""
    looks = plot.assign_looks(plot.collect_panel_values(panels, "configuration"))
    dashes = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 3)))
    lines: dict[str, dict[str, Any]] = {
        name: {"color": look.colour, "linestyle": dashes[position % len(dashes)], "linewidth": 1.2}
        for position, (name, look) in enumerate(looks.items())
    }

    has_several_quantities = len(set(plot.collect_panel_values(panels, "quantity"))) > 1

    def draw_panel(axes: Any, panel_rows: pd.DataFrame) -> None:
        """Draw a line per configuration, and a band over its devices or hosts if it has several."""
        for name, rows in panel_rows.groupby("configuration", sort=False):
            axes.plot(rows["time_s"], rows["mean"], **lines[str(name)])
            if (rows["parts"] > 1).any():
                band_style = {"color": looks[name].colour, "alpha": 0.15, "linewidth": 0}
                axes.fill_between(rows["time_s"], rows["least"], rows["most"], **band_style)
        axes.set_xlim(left=0)
        axes.set_ylim(0, 104.0 if panel_rows["unit"].iloc[0] == "%" else 1.05 * float(panel_rows["most"].max()) or 1.0)
        # The titles of panels name the quantity if there are several. A long axis label would reach into the next panel.
        axes.set_ylabel(
            f"{'mean' if has_several_quantities else panel_rows['quantity'].iloc[0]} ({panel_rows['unit'].iloc[0]})"
        )

    handles = [plot.build_ink_key(name, **line_style) for name, line_style in lines.items()]
    return plot.draw_multiples(panels, draw_panel, handles, "time (s)", height_in=2.1)
