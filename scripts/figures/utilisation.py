"""Figure: how busy devices and hosts were, and what they took, by configuration and workload."""

import math
from typing import Any

import pandas as pd

from campaign import comparison, plot, statistics, wording
from campaign.figure import Drawing, Figure, FigureData, nothing, page_table, write

TITLE = "Utilisation"
ANCHOR = "utilisation"
SECTION = (
    "What were devices and hosts doing while they were measured? Samplers on every host read their counters beside each run. A "
    "device counts as busy while any program runs on it, also one that only waits for others; so a high utilisation is no high "
    "efficiency."
)

# Column of the runs table, what it is, unit, divisor to that unit.
QUANTITIES = (
    ("device_utilisation_mean_pct", "device utilisation", "%", 1.0),
    ("device_memory_peak_mib", "device memory, peak", "GiB", 1024.0),
    ("device_power_mean_w", "power of a device", "W", 1.0),
    ("cpu_utilisation_mean_pct", "CPU utilisation", "%", 1.0),
    ("host_memory_used_peak_mib", "host memory, peak", "GiB", 1024.0),
    ("pcie_rx_mean_gb_per_s", "PCIe received by a device", "GB/s", 1.0),
)
_CELL = ["configuration", "workload", "batch", "precision"]


def draw(data: FigureData) -> Drawing:
    rows = _rows(data)
    if rows.empty:
        return nothing("no run was sampled for long enough")
    options = comparison.option_columns(rows)
    drawn = _drawn(rows, options)
    findings = _findings(drawn)
    of_which = sorted({wording.describe(row, ["workload", "batch", "precision", *options]) for row in _each(drawn)})
    # Panels have ranges of their own.
    cut = next((said for _, group in drawn.groupby("quantity") if (said := plot.cut(group, plot.RATE))), "")
    others = " Other batches and precisions are in the data table." if len(drawn) < len(rows) else ""
    caption = (
        f"{wording.runs_behind(drawn['n_ok'])} a bar, mean with 95 % interval (Student t) over runs, of one device or one host, "
        f"over the time that was measured. Drawn: {'; '.join(of_which)}.{others}{cut} "
        f"Protocol: {wording.protocol(data.protocol)}."
    )
    with plot.style(data.style):
        svg = _picture(drawn, " ".join(findings))
    table = page_table(
        rows,
        {
            "What": lambda row: f"{row['quantity']} ({row['unit']})",
            "Configuration": lambda row: row["configuration"],
            "Workload": lambda row: wording.describe(row, ["workload", "batch", "precision", *options]),
            "Mean": lambda row: wording.number(row["mean"]),
            "95 % interval": lambda row: wording.between(row["ci_low"], row["ci_high"]),
            "Runs": lambda row: wording.count(row["n_ok"]),
        },
    )
    return Drawing(svg=svg, caption=caption, alt=" ".join(findings), findings=findings, data=rows, **table)


def _each(rows: pd.DataFrame) -> list[Any]:
    return rows.to_dict("records")


def _rows(data: FigureData) -> pd.DataFrame:
    """One row a quantity and cell that was sampled, in the order of the plan: mean over ok runs with its interval."""
    runs = data.runs[data.runs["status"] == "ok"]
    options = comparison.option_columns(data.cells)
    cells = data.cells[["cell_id", *_CELL, *options]]
    found = []
    for name, quantity, unit, divisor in QUANTITIES:
        if name not in runs or not runs[name].notna().any():
            continue
        groups = (runs[name] / divisor).groupby(runs["cell_id"], sort=False)
        table = pd.DataFrame({"n_ok": groups.count(), "mean": groups.mean(), "sd": groups.std()}).reset_index()
        table = table[table["n_ok"] > 0].assign(quantity=quantity, unit=unit)
        found.append(cells.merge(table, on="cell_id"))
    if not found:
        return pd.DataFrame()
    rows = pd.concat(found, ignore_index=True)
    rows["ci_low"], rows["ci_high"] = statistics.student_interval(rows["mean"], rows["sd"], rows["n_ok"])
    return rows


def _drawn(rows: pd.DataFrame, options: list[str]) -> pd.DataFrame:
    """Of each workload the batch, precision and options that were sampled on the most configurations, the largest batch first."""
    kept = []
    for _, of_workload in rows.groupby("workload", sort=False):
        groups = of_workload.groupby(["batch", "precision", *options], sort=False, dropna=False)
        kept.append(
            max((group for _, group in groups), key=lambda group: (group["configuration"].nunique(), _rank(group)))
        )
    return pd.concat(kept).sort_index()


def _rank(group: pd.DataFrame) -> tuple[float, tuple[int, str]]:
    precision, name = comparison.precision_rank(group["precision"].iloc[0])
    return float(group["batch"].iloc[0]), (-precision, name)


def _findings(rows: pd.DataFrame) -> tuple[str, ...]:
    """The range of each quantity over the configurations."""
    said = []
    for quantity, group in rows.groupby("quantity", sort=False):
        ordered = group.sort_values("mean", kind="stable")
        low, high = ordered.iloc[0], ordered.iloc[-1]
        words = [f"{wording.number(row['mean'])} {row['unit']} ({_where(row, rows)})" for row in (low, high)]
        said.append(
            f"{f'{str(quantity)[0].upper()}{str(quantity)[1:]}'}: "
            + (words[0] if len(group) == 1 else f"from {words[0]} to {words[1]}")
            + "."
        )
    return tuple(said)


def _where(row: Any, rows: pd.DataFrame) -> str:
    named = ["workload"] if rows["workload"].nunique() > 1 else []
    return ", ".join([str(row["configuration"]), *(wording.describe(row, [name]) for name in named)])


def _picture(rows: pd.DataFrame, alt: str) -> str:
    workloads = list(rows["workload"].unique())
    configurations = list(rows["configuration"].unique())
    bars = plot.Bars({name: name for name in workloads})
    panels = list(rows.groupby("quantity", sort=False))
    longest = max(len(name) for name in configurations)
    figure, axes = plot.grid(len(panels), height_in=2.1 + 0.055 * min(longest, 30))
    for (quantity, group), (only,) in zip(panels, axes, strict=True):
        plot.title(only, str(quantity))
        by_place = {(row["configuration"], row["workload"]): row for row in _each(group)}
        groups = [
            (name, [(each, by_place[name, each]) for each in workloads if (name, each) in by_place])
            for name in configurations
        ]
        bars.draw(only, [(label, pairs) for label, pairs in groups if pairs], lambda row: "")
        only.tick_params(axis="x", rotation=90)
        only.set_ylabel(group["unit"].iloc[0])
        if group["unit"].iloc[0] == "%":
            only.set_ylim(0, max(100.0, math.ceil(float(group["mean"].max()))))
    if len(workloads) > 1:
        bars.legend(figure)
    return plot.to_svg(figure, ANCHOR, TITLE, alt)


if "snakemake" in globals():
    write(Figure(ANCHOR, TITLE, SECTION, draw), snakemake.input, snakemake.output)
