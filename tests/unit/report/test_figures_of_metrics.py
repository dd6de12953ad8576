"""Figures of counters, cost, size and software: planted effects come out, and what nobody counted is absent."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure as MplFigure

from campaign.analysis.statistics import verdict
from campaign.analysis.tables.cells import build_cells_table
from campaign.analysis.tables.runs import build_runs_table
from campaign.common import intervals
from campaign.report import bars, plot
from campaign.report.figure import ANSWERS, Drawing, FigureData, load_figure
from scripts.figures import overhead_by_size, pareto
from tests.unit.report import metrics_data as study
from tests.unit.report import report_data as synthetic
from tests.unit.report.figure_columns import UNPAINTED, check, with_pictures

PICTURES = ("software_options", "transfer_rates", "time_series", "energy", "pareto", "overhead_by_size", "utilisation")
PAGES = (*PICTURES, "workload_characteristics", "software_stack")
SIZES = ("mobilenetv2", "resnet50", "bert-large")
MODULES = {name: load_figure(name) for name in PAGES}


@pytest.fixture(scope="module")
def data() -> FigureData:
    return study.study(models=SIZES)


@pytest.fixture(scope="module")
def painted(data: FigureData) -> dict[str, tuple[Drawing, list[MplFigure]]]:
    return {name: with_pictures(module, data) for name, module in MODULES.items()}


@pytest.fixture(scope="module")
def drawn(painted: dict[str, tuple[Drawing, list[MplFigure]]]) -> dict[str, Drawing]:
    return {name: drawing for name, (drawing, _) in painted.items()}


@pytest.mark.parametrize("name", PAGES)
def test_a_figure_says_what_stands_behind_it(name: str, painted: dict[str, tuple[Drawing, list[MplFigure]]]) -> None:
    drawing, pictures = painted[name]
    check(MODULES[name], drawing, pictures)
    assert len(drawing.caption.split()) <= 40
    assert (drawing.svg is not None) == (name in PICTURES)
    if name in PICTURES:
        assert "(4 runs" in drawing.caption or name == "time_series"
        assert "planned cells were measured" in drawing.coverage


@pytest.mark.parametrize("name", PAGES)
def test_nothing_is_shown_of_what_nobody_counted(name: str) -> None:
    only = [replace(each, repetitions=2) for each in study.plan(2, ["resnet50"])[:1]]
    records = [synthetic.record(entry.cell, n, 100.0 + n, metrics={}) for entry in only for n in (1, 2)]
    runs = build_runs_table(records)
    protocol = {"repetitions": 2}
    bare = FigureData(runs, build_cells_table(only, runs), pd.DataFrame(), study.BASELINE, protocol)
    drawing = MODULES[name].draw(bare)
    assert drawing.svg is None
    assert not drawing.rows
    assert len(drawing.empty_reason) > 20


def test_options_are_compared_with_the_plain_one_of_their_configuration(drawn: dict[str, Drawing]) -> None:
    rows = drawn["software_options"].data.set_index(["configuration", "variant"])
    assert set(rows["against_variant"]) == {"ddp, fp32"}
    for configuration in ("local-8", "fabric-8"):
        said = rows.loc[configuration]["ratio"].to_dict()
        known = {"ddp, fp32": 1.0, "dp, fp32": 0.55, "fsdp, fp16": 1.8, "ddp, fp16": 2.0}
        assert {name: said[name] for name in known} == pytest.approx(known, rel=0.02)
    assert "dp, fp32 reaches 0.5" in " ".join(drawn["software_options"].findings)


def test_a_way_to_share_work_that_failed_is_a_gap_with_its_class() -> None:
    planned = study.plan(2, ["bert-large"])
    records = []
    for entry in planned:
        gone = entry.cell.options["parallel"] == "dp"
        done = study.records([entry])
        records += [synthetic.record(entry.cell, n, None, "oom_device") for n in (1, 2)] if gone else done
    runs = build_runs_table(records)
    data = replace(study.study(2, ["bert-large"]), runs=runs, cells=build_cells_table(planned, runs))
    drawing = MODULES["software_options"].draw(data)
    assert "out of memory, 2 runs" in drawing.svg
    assert any("oom_device x2" in row for row in drawing.rows)
    assert not [finding for finding in drawing.findings if finding.startswith("dp, ")]


def test_the_planted_slope_is_within_its_interval_and_a_flat_one_is_no_trend(drawn: dict[str, Drawing]) -> None:
    rows = drawn["overhead_by_size"].data
    by_parameters = (
        rows[rows["size_unit"].str.startswith("parameters")].drop_duplicates("treatment").set_index("treatment")
    )
    fabric = by_parameters.loc["fabric, storage local"]
    assert fabric["slope_low"] < study.FABRIC_SLOPE < fabric["slope_high"]
    assert fabric["workloads"] == len(SIZES)
    assert fabric["correlation"] > 0.99
    said = " ".join(drawn["overhead_by_size"].findings)
    assert "The overhead of fabric, storage local grows with size, by 20" in said
    assert "No significant trend of the overhead of local, storage fabric-nvme" in said


def test_two_sizes_give_no_line_and_no_figure() -> None:
    drawing = MODULES["overhead_by_size"].draw(study.study(2, ["resnet50", "bert-large"]))
    assert drawing.empty_reason == "no overhead is known for comparable workloads of 3 sizes"


def test_points_far_off_one_line_are_no_sure_trend() -> None:
    means = pd.DataFrame({"size": [1.0, 2.0, 3.0, 4.0], "overhead_pct": [5.0, 1.0, 6.0, 2.0]})
    found = overhead_by_size.fit_line(means, 100.0)
    assert found["slope_low"] < 0 < found["slope_high"]
    assert found["slope_p"] > 0.05


def test_rates_are_of_all_devices_and_both_directions(data: FigureData, drawn: dict[str, Drawing]) -> None:
    rows = drawn["transfer_rates"].data
    total = rows[rows["quantity"] == "PCIe traffic of all devices in both directions"].set_index("cell_id")["mean"]
    runs = data.runs.drop_duplicates("cell_id").set_index("cell_id")
    expected = runs["ranks"] * (runs["pcie_rx_mean_gb_per_s"] + runs["pcie_tx_mean_gb_per_s"])
    assert set(rows.loc[rows["quantity"] == "PCIe traffic of all devices in both directions", "unit"]) == {"GB/s"}
    assert total.to_dict() == pytest.approx(expected.to_dict())
    said = drawn["transfer_rates"].findings[0]
    assert said.startswith("bert-large has 95.32× [")
    assert said.endswith("95.32×] the PCIe traffic of mobilenetv2 on fabric-8 (within 2 compositions).")


def test_small_rates_are_told_in_small_units(data: FigureData, drawn: dict[str, Drawing]) -> None:
    rows = drawn["transfer_rates"].data
    disk = rows[rows["quantity"] == "disk read rate per host"]
    assert set(disk["unit"]) == {"MB/s"}
    assert disk["mean"].tolist() == pytest.approx([20.0] * len(disk))
    assert "everywhere" in " ".join(drawn["transfer_rates"].findings)


def test_energy_is_for_equal_work(data: FigureData, drawn: dict[str, Drawing]) -> None:
    rows = drawn["energy"].data
    per_sample, per_step, host = (
        rows[rows["quantity"] == name].set_index("cell_id")["mean"]
        for name in (
            "device energy per sample",
            "device energy per step",
            "processor energy per sample",
        )
    )
    cells = data.cells.set_index("cell_id")
    assert per_step.to_dict() == pytest.approx((per_sample * cells["batch_global"]).to_dict())
    watts = cells["attach"].map({"local": 250.0, "hybrid": 250.0, "fabric": 210.0})
    assert per_sample.to_dict() == pytest.approx((8 * watts / cells["mean"]).to_dict(), rel=0.01)
    assert host.to_dict() == pytest.approx((300.0 / cells["mean"]).to_dict(), rel=0.01)
    # It is part of the overview of the page.
    assert MODULES["energy"].part == ANSWERS
    assert drawn["energy"].glance
    lowest = per_sample[cells["workload"] == "mobilenetv2"].min()
    pattern = rf"mobilenetv2: device energy per sample ranges from {lowest:.3g} J \(fabric-8\) to \S+ J \(.*\)\."
    assert re.fullmatch(pattern, drawn["energy"].findings[0])


def test_the_front_is_marked_and_named(drawn: dict[str, Drawing]) -> None:
    rows = drawn["pareto"].data
    energy = rows[rows["cost_kind"].str.startswith("energy") & (rows["workload"] == "resnet50")]
    assert set(energy.loc[energy["front"] > 0, "configuration"]) == {"local-8", "fabric-8"}
    assert any(
        said.startswith("fabric-8") and " kWh per 1 M samples) and local-8" in said and said.endswith(" for resnet50.")
        for said in drawn["pareto"].findings
    )
    hours = rows[rows["cost_kind"].str.startswith("device") & (rows["workload"] == "bert-large")]
    assert set(hours.loc[hours["near"], "configuration"]) <= {"local-8", "local-8-fabric-nvme"}
    expected = 1e6 / hours["mean"] * hours["devices"] / 3600
    assert hours["cost"].tolist() == pytest.approx(expected.tolist())


def test_prices_are_a_cost_of_their_own_where_devices_have_some(data: FigureData) -> None:
    assert not any("price" in kind for kind in MODULES["pareto"].draw(data).data["cost_kind"].unique())
    cells = data.cells.assign(
        price_per_h=np.where(data.cells["attach"] == "fabric", 2.0, np.nan) * data.cells["devices"]
    )
    priced = replace(data, cells=cells, context={**data.context, "system": {"name": "s", "currency": "EUR"}})
    drawing = MODULES["pareto"].draw(priced)
    rows = drawing.data[drawing.data["cost_kind"] == "price per 1 M samples (EUR)"]
    assert set(rows["attach"]) == {"fabric"}, "what has no price is left out"
    assert rows["cost"].tolist() == pytest.approx((2.0 * rows["devices"] * 1e6 / 3600 / rows["mean"]).tolist())
    assert (rows["cost_low"] <= rows["cost"]).all()
    assert any(" is the cheapest" in said and " EUR per 1 M samples) and " in said for said in drawing.findings)


POINTS = st.lists(st.tuples(st.integers(1, 20), st.integers(1, 20)), min_size=1, max_size=30)


@settings(max_examples=60, deadline=None)
@given(POINTS)
def test_a_front_holds_exactly_what_no_other_beats(points: list[tuple[int, int]]) -> None:
    rate, cost = np.array(points, dtype=float).T
    front = pareto.rank_pareto_front(rate, cost)
    beaten = [
        any((r >= rate[i] and c < cost[i]) or (r > rate[i] and c <= cost[i]) for r, c in points)
        for i in range(len(points))
    ]
    assert {points[i] for i in np.flatnonzero(front)} == {points[i] for i in range(len(points)) if not beaten[i]}
    assert sorted(front[front > 0]) == list(range(1, int(front.max()) + 1))


@settings(max_examples=60, deadline=None)
@given(POINTS)
def test_surely_behind_is_what_it_says(points: list[tuple[int, int]]) -> None:
    rate, cost = np.array(points, dtype=float).T
    low, high, cheap, dear = rate - 2, rate + 2, cost - 1, cost + 1
    expected = [bool(((low > high[i]) & (dear < cheap[i])).any()) for i in range(len(points))]
    assert pareto.find_clearly_dominated(low, high, cheap, dear).tolist() == expected


def test_time_series_are_means_of_devices_over_time(drawn: dict[str, Drawing]) -> None:
    rows = drawn["time_series"].data
    busy = rows[rows["quantity"] == "device utilisation"]
    first = busy[busy["cell_id"] == busy["cell_id"].iloc[0]]
    assert len(first) == 100
    assert first["time_s"].is_monotonic_increasing
    warm = first[first["time_s"] > 16]
    assert set(warm["parts"]) == {4}
    assert (warm["most"] - warm["least"]).tolist() == pytest.approx([3.0] * len(warm), abs=1.0)
    assert warm["mean"].mean() == pytest.approx(90.5, abs=0.5)
    assert first.loc[first["time_s"] < 14, "mean"].max() < 6
    assert "The first valid run of each cell" in drawn["time_series"].caption


def test_every_number_of_a_time_series_has_its_unit(drawn: dict[str, Drawing]) -> None:
    busy = next(said for said in drawn["time_series"].findings if said.startswith("Device utilisation"))
    assert re.search(r"from \S+ % to \S+ %, with a mean of \S+ %", busy)


def test_names_of_axes_are_not_what_panels_have_in_common(data: FigureData) -> None:
    one_cost = replace(data, runs=data.runs.drop(columns="energy_per_sample_j"))
    one_size = replace(data, runs=data.runs.drop(columns="parameters"))
    for name, kind, alone in (("pareto", "cost_kind", one_cost), ("overhead_by_size", "size_unit", one_size)):
        drawing = MODULES[name].draw(alone)
        assert drawing.data[kind].nunique() == 1
        assert drawing.data[kind].iloc[0] not in drawing.caption
        assert "  " not in drawing.caption


def test_numbers_of_a_front_stand_within_its_panel(painted: dict[str, tuple[Drawing, list[MplFigure]]]) -> None:
    for axes in painted["pareto"][1][0].axes:
        assert axes.get_xscale() == "log"
        (left, right), (lowest, highest) = axes.get_xlim(), axes.get_ylim()
        for number in axes.texts:
            x, y = number.xy
            assert 0.05 < np.log(x / left) / np.log(right / left) < 0.95
            assert lowest < y < highest
        assert len([tick for tick in axes.get_xticks() if left <= tick <= right]) > 1


def test_what_is_known_of_workloads_is_counted_or_open(drawn: dict[str, Drawing]) -> None:
    rows = drawn["workload_characteristics"].data.set_index("workload")
    assert rows["parameters"].to_dict() == {name: study.MODELS[name][0] for name in SIZES}
    assert rows.loc["bert-large", ["domain", "depth_layers"]].tolist() == ["language", 24]
    assert rows.loc["resnet50", "allreduce_mb_per_step"] == pytest.approx(102.2, rel=0.01)
    unknown = study.study(1, ["resnet50"])
    bare = {name: value for name, value in unknown.context.items() if name != "campaign_yaml"}
    drawing = MODULES["workload_characteristics"].draw(replace(unknown, context=bare))
    assert drawing.svg is None
    assert drawing.rows[0][1] == drawing.rows[0][-1] == "–"
    assert drawing.rows[0][2] == "25.6 M"


def test_workloads_of_unknown_size_are_named() -> None:
    whole = study.study(1, ["resnet50", "mobilenetv2"])
    without = whole.runs["parameters"].mask(whole.runs["workload"] == "mobilenetv2")
    bare = {name: value for name, value in whole.context.items() if name != "campaign_yaml"}
    drawing = MODULES["workload_characteristics"].draw(
        replace(whole, runs=whole.runs.assign(parameters=without), context=bare)
    )
    assert drawing.findings[0] == ("2 workloads have 25.6 M (resnet50) parameters; the size of mobilenetv2 is unknown.")


def test_rates_far_below_their_unit_are_told_in_a_smaller_one() -> None:
    assert bars.format_with_unit(4.12e-5, "GB/s") == "41.2 kB/s"
    assert bars.format_with_unit(4.12e-5, "MB/s") == "0.0412 kB/s"
    assert bars.format_with_unit(3.1, "GB/s") == "3.10 GB/s"
    assert bars.format_with_unit(0.0, "GB/s") == "0.00 GB/s"
    assert bars.format_with_unit(0.03, "%") == "0.0300 %"
    assert bars.format_value(4.12e-5, "GB/s") == "41.2 kB/s"
    assert bars.format_value(0.5, "GB/s") == "0.500"


def test_hosts_that_differ_are_named(data: FigureData, drawn: dict[str, Drawing]) -> None:
    assert "Hosts differ in GPU driver: 535.54 on host1; 550.90 on host2." in drawn["software_stack"].findings
    assert drawn["software_stack"].findings[-1].endswith("apptainer pytorch.sif.")
    one = {"e" * 20: study.context()["environments"]["e" * 20]}
    alone = MODULES["software_stack"].draw(replace(data, context={**data.context, "environments": one}))
    assert alone.findings == ("The software is that of host host1.",)
    lacking = {**one, "f" * 20: {**one["e" * 20], "host": "host9", "packages": {"torch": "2.13.0"}}}
    fewer = MODULES["software_stack"].draw(replace(data, context={**data.context, "environments": lacking}))
    assert any("numpy" in finding for finding in fewer.findings)


def test_the_system_of_an_import_is_no_host_and_all_reduce_programs_are_no_measured_links(data: FigureData) -> None:
    stated = {"host": "uob", "imported_by": "composable-campaign 1.0", "packages": {"nccl": "2.19"}}
    context = {**data.context, "environments": {"e" * 20: stated}}
    drawing = MODULES["software_stack"].draw(replace(data, context=context))
    assert drawing.caption.startswith("Imported runs: as stated in the import map. Unknown versions are left out.")
    assert not drawing.findings
    assert "uob" not in drawing.coverage
    assert drawing.coverage.startswith("0 of ")
    reason = load_figure("allreduce").draw(replace(data, links=[])).empty_reason
    assert reason.startswith("no all-reduce over two or more devices was measured")
    assert "results of all-reduce workloads" in reason


@pytest.mark.parametrize("name", ["software_options", "pareto", "overhead_by_size", "energy"])
def test_one_run_a_cell_is_drawn_without_an_interval(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if name != "pareto":  # all draw their intervals alike
        monkeypatch.setattr(plot, "to_svg", lambda _: UNPAINTED)
    drawing = MODULES[name].draw(study.study(1, SIZES))
    assert "(1 run, so no interval)" in drawing.caption
    assert "nan" not in " ".join(drawing.findings).split()


def test_the_same_input_gives_the_same_bytes(data: FigureData, drawn: dict[str, Drawing]) -> None:
    assert MODULES["software_options"].draw(data).svg == drawn["software_options"].svg


def test_many_configurations_are_left_to_the_table() -> None:
    whole = study.study(1, ["resnet50"])
    kept = [name for name in whole.runs if not name.startswith(("device_", "host_"))]
    base = replace(whole, runs=whole.runs[kept])
    count = 40
    cells = pd.concat(
        [base.cells.assign(cell_id=base.cells["cell_id"] + f"{n}", configuration=f"c{n}") for n in range(count)],
        ignore_index=True,
    ).drop_duplicates("configuration", ignore_index=True)
    runs = pd.concat(
        [base.runs.assign(cell_id=base.runs["cell_id"] + f"{n}", configuration=f"c{n}") for n in range(count)],
        ignore_index=True,
    )
    drawing = MODULES["utilisation"].draw(replace(base, cells=cells, runs=runs))
    assert "16 further configurations are only in the data table." in drawing.limits
    assert drawing.data["configuration"].nunique() == count


def test_intervals_of_counters_are_over_compositions(data: FigureData, drawn: dict[str, Drawing]) -> None:
    assert set(drawn["energy"].data["interval_method"]) == {intervals.T_OVER_COMPOSITIONS}
    # Each composition of a configuration has another level: runs of one composition know nothing of that.
    again = data.runs["lease_id"].str.endswith(".c2")
    level = data.runs["device_power_mean_w"] * np.where(again, 1.1, 1.0)
    moved = MODULES["energy"].draw(replace(data, runs=data.runs.assign(device_power_mean_w=level))).data
    power = moved[moved["quantity"] == "power per device"]
    assert ((power["ci_high"] - power["ci_low"]) > 0.05 * power["mean"]).all()


def test_no_cell_is_behind_the_front_where_everything_was_composed_once(data: FigureData) -> None:
    cells = data.cells.assign(interval_method=intervals.T_OVER_RUNS_OF_COMPOSITION)
    drawing = MODULES["pareto"].draw(replace(data, cells=cells))
    assert drawing.data["near"].all()
    assert f"not tested: {verdict.RUN_VARIATION_ONLY}" in drawing.findings[0]
