"""Comparisons find the effects that were put into the synthetic campaign, and compare only what is otherwise equal."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from campaign.analysis.statistics import comparable_cells, comparisons
from campaign.analysis.statistics.comparisons import Design
from campaign.analysis.tables.cells import CellPlan, build_cells_table
from campaign.analysis.tables.leases import build_leases_table, summarize_composition_times
from campaign.analysis.tables.runs import build_runs_table
from campaign.common import intervals
from tests.unit.report import report_data as synthetic


@pytest.fixture(scope="module")
def runs() -> pd.DataFrame:
    return build_runs_table(synthetic.records(synthetic.planned()))


@pytest.fixture(scope="module")
def cells(runs: pd.DataFrame) -> pd.DataFrame:
    return build_cells_table(synthetic.planned(), runs)


@pytest.fixture(scope="module")
def design(runs: pd.DataFrame) -> Design:
    return comparisons.build_design(runs)


def measure(*rates: tuple[synthetic.Cell, float | None]) -> tuple[pd.DataFrame, Design]:
    """Cells measured twice without noise; None is a cell that ran out of memory."""
    plan = [CellPlan(cell, 2, "l") for cell, _ in rates]
    records = [synthetic.record(cell, n, rate, "ok" if rate else "oom_device") for cell, rate in rates for n in (1, 2)]
    runs = build_runs_table(records)
    return build_cells_table(plan, runs), comparisons.build_design(runs)


def test_tests_are_adjusted_over_all_rows_of_a_figure(cells: pd.DataFrame, design: Design) -> None:
    everything = [
        comparable_cells.compare_precisions(cells, design),
        comparable_cells.compare_device_counts(cells, design),
        comparable_cells.compare_speedups_by_batch(cells, design),
        comparable_cells.compare_host_counts(cells, design),
        comparable_cells.compare_partial_hosts(cells, design),
        comparable_cells.compute_attachment_overhead(cells, synthetic.BASELINE, design),
    ]
    for rows in everything:
        tested = rows[rows["p"].notna()]
        assert len(tested) > 10
        np.testing.assert_array_equal(rows["p_holm"], intervals.adjust_p_values(rows["p"]))
        assert (tested["p_holm"] >= tested["p"]).all()
        assert set(rows["n_tests"]) == {len(tested)}
        assert (tested["least_detectable_pct"] > 0).all()
        # A row without a test is its own reference, or says why it has none.
        assert rows[rows["p"].isna()]["method"].str.startswith("none").all()


def test_only_cells_of_one_lease_are_paired(cells: pd.DataFrame, design: Design) -> None:
    by_precision = comparable_cells.compare_precisions(cells, design)
    assert by_precision[by_precision["p"].notna()]["paired"].all()
    assert not comparable_cells.compute_attachment_overhead(cells, synthetic.BASELINE, design)["paired"].any()


def test_a_reference_is_one_and_is_not_tested(cells: pd.DataFrame, design: Design) -> None:
    rows = comparable_cells.compare_host_counts(cells, design)
    itself = rows[rows["cell_id"] == rows["against_cell"]]
    assert len(itself) > 10
    assert (itself[["ratio", "ratio_low", "ratio_high"]] == 1.0).all(axis=None)
    assert itself[["p", "p_holm", "least_detectable_pct"]].isna().all(axis=None)


def test_scaling_is_tested_against_the_ideal() -> None:
    one, two, four = (synthetic.configuration(each=n) for n in (1, 2, 4))
    random = np.random.default_rng(2)
    plan = [CellPlan(synthetic.cell(at), 6, "l") for at in (one, two, four)]
    rates = dict(zip((entry.cell.id for entry in plan), (100.0, 200.0, 320.0), strict=True))
    records = [
        synthetic.record(
            entry.cell,
            n,
            rates[entry.cell.id] * random.normal(1, 0.005),
            lease_id=f"{entry.cell.configuration.name}.{n}",
        )
        for entry in plan
        for n in range(1, 7)
    ]
    runs = build_runs_table(records)
    rows = comparable_cells.compare_device_counts(
        build_cells_table(plan, runs), comparisons.build_design(runs)
    ).set_index("ranks")
    assert np.isnan(rows["p_holm"][1])
    assert rows["p_holm"][2] > 0.05 > 0.001 > rows["p_holm"][4]


def test_the_effect_of_the_batch_is_the_change_between_its_ends(cells: pd.DataFrame, design: Design) -> None:
    speedups = comparable_cells.compare_speedups_by_batch(cells, design)
    effects = comparable_cells.estimate_batch_effect(speedups, design)
    assert set(zip(effects["batch"], effects["batch_large"], strict=True)) <= {(8, 32), (8, 16)}
    whole = effects[effects["batch_large"] == 32]
    true_pct = 100 * ((0.95 + 0.032) / (0.95 + 0.008) - 1)
    four = whole[(whole["ranks"] == 2) & (whole["attach"] == "local")]
    assert four["change_pct"].mean() == pytest.approx(true_pct, abs=0.5)
    inside = (whole["change_low"] <= whole["change_pct"]) & (whole["change_pct"] <= whole["change_high"])
    assert inside.all()
    rows, effects = comparable_cells.adjust_as_one_family(speedups, effects)
    both = intervals.adjust_p_values([*speedups["p"], *effects["p"]])
    assert [*rows["p_holm"], *effects["p_holm"]] == pytest.approx(both.tolist(), nan_ok=True)
    assert comparable_cells.estimate_batch_effect(speedups[speedups["batch"] == 8], design).empty


def test_node_spread_finds_the_drops(cells: pd.DataFrame, design: Design) -> None:
    rows = comparable_cells.compare_host_counts(cells, design)
    drops = rows[rows["n_ok"] > 0].groupby("hosts")["drop_pct"].mean()
    assert drops.to_dict() == {1: pytest.approx(0), 2: pytest.approx(8, abs=0.4), 4: pytest.approx(13, abs=0.4)}
    assert set(rows["attach"]) == {"fabric"}


def test_part_of_host_finds_no_effect(cells: pd.DataFrame, design: Design) -> None:
    rows = comparable_cells.compare_partial_hosts(cells, design)
    assert set(zip(rows["devices_used"], rows["devices_per_host"], strict=True)) == {(2, 2), (2, 8), (4, 4), (4, 8)}
    assert rows["case_cv_pct"].max() < 1.5


def test_precision_finds_the_speedup_and_keeps_the_gap(cells: pd.DataFrame, design: Design) -> None:
    rows = comparable_cells.compare_precisions(cells, design)
    faster = rows[(rows["precision"] == "fp16") & rows["ratio"].notna()]
    assert faster["ratio"].mean() == pytest.approx(1.9, abs=0.01)
    gap = rows[(rows["precision"] == "fp32") & (rows["batch"] == 32) & (rows["workload"] == "bert")]
    assert (gap["failures"] == "oom_device x4").all()
    assert gap["ratio"].isna().all()


@pytest.mark.parametrize(("attach", "workload", "truth"), [("fabric", "bert", 60), ("hybrid", "resnet", 3)])
def test_overhead_finds_the_cost_of_attachment(
    cells: pd.DataFrame, design: Design, attach: str, workload: str, truth: float
) -> None:
    rows = comparable_cells.compute_attachment_overhead(cells, synthetic.BASELINE, design)
    here = rows[(rows["attach"] == attach) & (rows["workload"] == workload) & rows["overhead_pct"].notna()]
    assert here["overhead_pct"].mean() == pytest.approx(truth, abs=1)
    assert (here["overhead_low"] <= here["overhead_pct"]).all()
    assert (here["overhead_pct"] <= here["overhead_high"]).all()


def test_peer_to_peer_is_an_attachment_like_any_other(cells: pd.DataFrame, design: Design) -> None:
    """Compared with the baseline as the others are."""
    joined = cells.assign(attach=cells["attach"].replace("hybrid", "fabric-p2p"))
    before, after = (
        comparable_cells.compute_attachment_overhead(each, synthetic.BASELINE, design) for each in (cells, joined)
    )
    key = ["cell_id", "overhead_pct"]
    assert after[after["attach"] == "fabric-p2p"][key].equals(before[before["attach"] == "hybrid"][key])
    assert (after["attach"] == "fabric-p2p").any()


def test_overhead_of_storage_is_apart_from_that_of_devices(cells: pd.DataFrame, design: Design) -> None:
    rows = comparable_cells.compute_attachment_overhead(cells, synthetic.BASELINE, design)
    storage = rows[(rows["storage"] == "fabric-nvme") & rows["overhead_pct"].notna()]
    assert set(storage["attach"]) == {"local"}
    assert storage["overhead_pct"].mean() == pytest.approx(2, abs=0.5)


def test_overhead_without_the_baseline_has_no_rows(cells: pd.DataFrame, design: Design) -> None:
    rows = comparable_cells.compute_attachment_overhead(cells, "not-planned", design)
    assert rows.empty
    assert "overhead_pct" in rows.columns


def test_scaling_is_against_the_fewest_devices_measured(cells: pd.DataFrame, design: Design) -> None:
    rows = comparable_cells.compare_device_counts(cells, design)
    known = rows[rows["ratio"].notna()]
    assert (known["against_ranks"] == 1).all()
    eight = known[(known["ranks"] == 8) & known["compact"] & (known["batch"] == 8)]
    assert eight["efficiency_pct"].mean() == pytest.approx(100 * 0.958**3, abs=0.7)
    assert set(known[known["compact"]]["hosts"]) == {1}
    assert set(known[known["ranks"] == 4]["hosts"]) == {1, 2, 4}


def test_names_of_configurations_do_not_matter() -> None:
    near = synthetic.cell(synthetic.configuration(each=2, name="zebra"))
    apart = synthetic.cell(synthetic.configuration(hosts=2, each=1, name="ant"))
    rows = comparable_cells.compare_host_counts(*measure((apart, 90.0), (near, 100.0)))
    assert rows.set_index("configuration")["drop_pct"].to_dict() == {"zebra": 0.0, "ant": pytest.approx(10)}


@pytest.mark.parametrize("change", [{"batch": 16}, {"precision": "fp16"}, {"workload": "bert"}, {"seq_len": 64}])
def test_cells_that_differ_in_anything_else_are_not_compared(change: dict) -> None:
    near = synthetic.cell(synthetic.configuration(each=2))
    apart = synthetic.cell(synthetic.configuration(hosts=2, each=1), **change)
    assert comparable_cells.compare_host_counts(*measure((near, 100.0), (apart, 90.0))).empty


def test_a_reference_that_failed_leaves_the_next_fewest_hosts_as_reference() -> None:
    cells = [synthetic.cell(synthetic.configuration(hosts=n, each=4 // n)) for n in (1, 2, 4)]
    rows = comparable_cells.compare_host_counts(*measure((cells[0], None), (cells[1], 100.0), (cells[2], 95.0)))
    assert rows["against_hosts"].dropna().unique().tolist() == [2]
    assert rows.set_index("hosts")["drop_pct"][4] == pytest.approx(5)


def test_speedup_by_batch_needs_the_same_reference_count_for_all_batches() -> None:
    one, two, four = (synthetic.configuration(each=n) for n in (1, 2, 4))
    rows = comparable_cells.compare_speedups_by_batch(
        *measure(
            (synthetic.cell(one, batch=8), 10.0),
            (synthetic.cell(two, batch=8), 18.0),
            (synthetic.cell(four, batch=8), 30.0),
            (synthetic.cell(one, batch=16), 10.0),
            (synthetic.cell(two, batch=16), 19.0),
            (synthetic.cell(four, batch=16), 36.0),
            (synthetic.cell(one, batch=32), None),
            (synthetic.cell(two, batch=32), 20.0),
            (synthetic.cell(four, batch=32), 39.0),
        )
    )
    assert rows.set_index(["batch", "ranks"])["ratio"].to_dict() == pytest.approx(
        {(8, 2): 1.8, (8, 4): 3.0, (16, 2): 1.9, (16, 4): 3.6}
    )


def test_composition_times_add_up() -> None:
    table = summarize_composition_times(build_leases_table(synthetic.leases()))
    parts = table["fabric_s"] + table["visible_s"] + table["readying_s"]
    assert parts.to_list() == pytest.approx(table["compose_s"].to_list())
    assert len(table) == len(synthetic.configurations()) - 1


@pytest.mark.parametrize(
    "compare",
    [
        comparable_cells.compare_device_counts,
        comparable_cells.compare_speedups_by_batch,
        comparable_cells.compare_host_counts,
        comparable_cells.compare_partial_hosts,
        comparable_cells.compare_precisions,
        lambda cells, design: comparable_cells.compute_attachment_overhead(cells, "x", design),
    ],
)
def test_nothing_planned_and_nothing_measured_are_no_rows(compare) -> None:
    empty = build_runs_table([])
    design = comparisons.build_design(empty)
    assert compare(build_cells_table([], empty), design).empty
    assert compare(build_cells_table(synthetic.planned(), empty), design).empty


def test_precisions_are_ordered_by_digits() -> None:
    assert sorted(["fp16", "odd", "tf32", "fp32"], key=comparable_cells.rank_precision) == [
        "fp32",
        "tf32",
        "fp16",
        "odd",
    ]
