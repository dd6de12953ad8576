"""Which comparisons are within leases and which between compositions, and what each allows to say."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from campaign.analysis.statistics import comparable_cells, comparisons, verdict
from campaign.analysis.tables.cells import CellPlan, build_cells_table
from campaign.analysis.tables.runs import build_runs_table
from campaign.common import intervals
from campaign.spec.record import Record
from tests import planted_campaigns
from tests.unit.report import report_data as synthetic

PLAIN, FAST = (synthetic.cell(synthetic.configuration(), precision=name) for name in ("fp32", "fp16"))
# A system that gets slower from block to block, by far more than the effect.
DRIFT = (1.0, 0.9, 0.8, 0.7, 0.6)


def measured(**changes: dict[int, dict]) -> list[Record]:
    """Both cells in five blocks, the fast one 2 % faster. changes: by cell and repetition, what is otherwise with a run."""
    random = np.random.default_rng(1)
    return [
        synthetic.record(
            cell,
            n,
            **{
                "rate": 100 * effect * DRIFT[n - 1] * random.normal(1, 0.001),
                **changes.get(cell.precision, {}).get(n, {}),
            },
        )
        for cell, effect in ((PLAIN, 1.0), (FAST, 1.02))
        for n in range(1, 6)
    ]


def compared(records: list[Record], order: str = "blocks") -> pd.Series:
    runs = build_runs_table(records)
    cells = build_cells_table([CellPlan(cell, 5, "l") for cell in (PLAIN, FAST)], runs)
    rows = comparable_cells.compare_precisions(cells, comparisons.build_design(runs, {"order": order}))
    return rows.set_index("precision").loc["fp16"]


def test_runs_of_one_block_are_paired_and_the_effect_is_seen_through_the_drift() -> None:
    row = compared(measured())
    assert (row["paired"], row["n_pairs"], row["method"]) == (True, 5, intervals.T_PAIRED_BY_BLOCK)
    assert row["ratio_low"] < 1.02 < row["ratio_high"] < row["ratio_low"] + 0.01
    assert row["p_holm"] < 0.001
    # What the table of means says is what the ratio says.
    assert row["ratio"] == pytest.approx(row["mean"] / row["against_mean"], rel=1e-12)


ANOTHER = {n: {"lease_id": "another"} for n in range(1, 6)}
FAILED = {"fp16": {1: {"status": "nan"}}, "fp32": {n: {"status": "nan"} for n in (2, 3)}}


@pytest.mark.parametrize(
    ("change", "method"),
    [
        ({"fp16": ANOTHER}, intervals.RUN_VARIATION_ONLY),
        ({"fp16": {n: {"lease_id": "another"} for n in (1, 2, 3)}}, intervals.T_BORROWED_SPREAD),
        (FAILED, intervals.T_OVER_RUNS_OF_COMPOSITION),
    ],
)
def test_runs_of_other_leases_or_blocks_are_not(change: dict, method: str) -> None:
    row = compared(measured(**change))
    assert (row["paired"], row["method"]) == (False, method)
    assert not row["p_holm"] < 0.05


def test_one_composition_each_is_not_tested_and_its_interval_is_of_runs() -> None:
    row = compared(measured(fp16=ANOTHER))
    assert not row["tested"]
    assert np.isnan(row[["p", "p_holm", "least_detectable_pct"]].astype(float)).all()
    assert row["ratio_low"] < row["ratio"] < row["ratio_high"]
    assert "measured on one composition each" in verdict.explain_missing_test(row)


def test_cells_of_several_shared_leases_are_compared_lease_by_lease() -> None:
    again = {n: {"lease_id": f"lease {n}"} for n in range(1, 6)}
    row = compared(measured(fp16=again, fp32=again))
    assert (row["paired"], row["n_pairs"], row["method"]) == (True, 5, intervals.T_PAIRED_BY_LEASE)
    assert row["ratio_low"] < 1.02 < row["ratio_high"] < row["ratio_low"] + 0.01


def test_a_run_that_failed_takes_its_block_out() -> None:
    row = compared(measured(fp16={2: {"status": "oom_device"}}))
    assert (row["paired"], row["n_pairs"], row["n_ok"]) == (True, 4, 4)
    assert row["ratio_low"] < 1.02 < row["ratio_high"]


def test_a_campaign_that_went_cell_by_cell_has_no_blocks() -> None:
    assert not compared(measured(), order="sequential")["paired"]


def test_cells_of_different_compositions_are_not_paired() -> None:
    near, apart = synthetic.configuration(each=2), synthetic.configuration(hosts=2, each=1)
    cells = [synthetic.cell(at) for at in (near, apart)]
    records = [
        synthetic.record(cell, n, 100.0 + n, lease_id=f"{cell.configuration.name}.c{n % 2}")
        for cell in cells
        for n in range(1, 5)
    ]
    runs = build_runs_table(records)
    rows = comparable_cells.compare_host_counts(
        build_cells_table([CellPlan(c, 4, "l") for c in cells], runs), comparisons.build_design(runs)
    )
    assert not rows["paired"].any()
    assert rows.set_index("hosts")["method"].to_dict() == {
        1: intervals.NO_INTERVAL_REFERENCE,
        2: intervals.T_OVER_COMPOSITIONS,
    }


def test_reasons_for_no_interval_are_told() -> None:
    runs = build_runs_table(
        [synthetic.record(PLAIN, n, 100.0 + n) for n in (1, 2)] + [synthetic.record(FAST, 1, None, "oom_device")]
    )
    known = PLAIN.id
    found = comparisons.compute_ratios(
        pd.Series([known, FAST.id, known]), pd.Series([known, known, None]), comparisons.build_design(runs)
    )
    assert found.method.tolist() == [
        intervals.NO_INTERVAL_REFERENCE,
        intervals.NO_INTERVAL_NO_RUN,
        intervals.NO_INTERVAL_WITHOUT_REFERENCE,
    ]
    assert found.estimate.compute_bounds()[0][0] == found.estimate.compute_bounds()[1][0] == 1.0
    assert np.isnan(found.compute_p_values()).all()


def test_a_metric_of_which_less_is_better_is_faster_where_it_is_less() -> None:
    cells = {"a": 10.0, "b": 20.0}
    runs = pd.DataFrame(
        [
            {"cell_id": cell, "workload": "w", "configuration": cell, "lease_id": f"{cell}{n}", "repetition": n, "status": "ok",
             "started": float(n), "latency_us": value + 0.01 * n}
            for cell, value in cells.items()
            for n in (1, 2, 3)
        ]
    )  # fmt: skip
    by = comparisons.build_design(runs, column="latency_us", higher_is_better=False)
    assert comparisons.compute_ratios(pd.Series(["a"]), pd.Series(["b"]), by).estimate.ratio[0] == pytest.approx(
        2, rel=0.01
    )
    assert by.value.tolist() == pytest.approx([10.02, 20.02])


def test_other_numbers_of_steps_and_an_order_that_is_not_random_are_part_of_a_comparison() -> None:
    truth = planted_campaigns.Truth(configurations=2, compositions=3, runs=3)
    runs = planted_campaigns.runs(truth, 1, 1)
    runs = runs.assign(warmup_steps=np.where(runs["at"] == 0, 5, 10), measured_steps=20)
    runs.loc[runs.index[runs["at"] == 1][0], "warmup_steps"] = 12
    of, to = planted_campaigns.pairs(truth, 1)
    told = comparisons.compute_ratios(of, to, comparisons.build_design(runs))
    assert list(told.step_differences) == ["10 to 12 warm-up steps against 5"]
    assert not told.is_in_order.any()
    assert list(told.compositions) == list(told.against_compositions) == [3]
    alike = comparisons.compute_ratios(of, to, comparisons.build_design(runs.assign(warmup_steps=5)))
    assert list(alike.step_differences) == [""]
    in_plan_order = comparisons.build_design(runs, {"lease_order": "least-recomposition"})
    assert comparisons.compute_ratios(of, to, in_plan_order).is_in_order.all()
    # Batches share their leases: the order of leases is nothing to them, that of runs is.
    same = pd.Series(runs["cell_id"].unique()[:1]), pd.Series(runs["cell_id"].unique()[:1] + 100)
    both = pd.concat([runs[runs["at"] == 0], runs[runs["at"] == 0].assign(cell_id=same[1].iloc[0])], ignore_index=True)
    assert not comparisons.compute_ratios(
        *same, comparisons.build_design(both, {"lease_order": "least-recomposition"})
    ).is_in_order.any()
    assert comparisons.compute_ratios(*same, comparisons.build_design(both, {"order": "sequential"})).is_in_order.all()


@pytest.mark.parametrize("cells", [1, 4])
def test_a_workload_is_compared_as_if_it_were_alone_on_its_leases(cells: int) -> None:
    """Its variances and their freedom are its own, whichever workloads share its leases, and wherever they come in the order."""
    truth = planted_campaigns.Truth(workloads=3, cells=cells)
    runs = planted_campaigns.runs(truth, 1, 1)
    of, to = planted_campaigns.pairs(truth, 1)
    together = comparisons.compute_ratios(of, to, comparisons.build_design(runs))
    workload = of.map(runs.drop_duplicates("cell_id").set_index("cell_id")["workload"])
    for name, own in runs.groupby("workload"):
        here = (workload == name).to_numpy()
        alone = comparisons.compute_ratios(of[here], to[here], comparisons.build_design(own))
        np.testing.assert_allclose(together.estimate.variance[here], alone.estimate.variance)
        np.testing.assert_allclose(together.estimate.freedom[here], alone.estimate.freedom)


def wild(campaigns: int, wild_sd: float) -> comparisons.Ratios:
    """Four equal configurations: three quiet ones of three compositions, and the last one of one, whose runs are wild."""
    truth = planted_campaigns.Truth(4, compositions=(3, 3, 3, 1), runs=3, lease=0.0005, run=0.0005)
    runs = planted_campaigns.runs(truth, campaigns, seed=4)
    last = runs["configuration"] == "3"
    noise = np.random.default_rng(5).normal(0, wild_sd, len(runs))
    runs["value"] *= np.exp(np.where(last, noise, 0.0))
    of, to = planted_campaigns.pairs(truth, campaigns)
    return comparisons.compute_ratios(of[2::3], to[2::3], comparisons.build_design(runs))


def test_no_spread_is_borrowed_from_quiet_cells_that_the_own_runs_contradict() -> None:
    found = wild(300, 0.009)
    differs = np.nan_to_num(found.compute_p_values(), nan=1.0) < 0.05
    assert differs.mean() < 0.13
    assert (found.method == intervals.RUN_VARIATION_ONLY).mean() > 0.75
    # The interval holds the runs' own variation, which is the whole one here.
    _, low, high = found.estimate.compute_bounds()
    assert ((low < 1) & (high > 1)).mean() > 0.85
    # Of ties of clearly wild runs, hardly one is called a difference.
    assert (np.nan_to_num(wild(300, 0.03).compute_p_values(), nan=1.0) < 0.05).mean() < 0.07
    assert (wild(300, 0.0005).method == intervals.T_BORROWED_SPREAD).mean() > 0.9


def test_a_noisy_configuration_is_named_in_what_a_comparison_rests_on() -> None:
    """Three times as noisy with fewer compositions: every third one is found by its two or three compositions."""
    for compositions, share in ((2, 0.3), (3, 0.45)):
        truth = planted_campaigns.Truth(4, compositions=(compositions, 5, 5, 5), runs=10, noisy=3, noisy_at=0)
        found = comparisons.compute_ratios(
            *planted_campaigns.pairs(truth, 300), comparisons.build_design(planted_campaigns.runs(truth, 300, 1))
        )
        assert np.mean(found.noisy_side == "the reference") > share
    row = {
        name: column[np.argmax(found.noisy_side != "")]
        for name, column in found.build_basis_columns(pd.RangeIndex(900)).items()
    }
    row |= {"p": 0.5, "lent_by": ""}
    assert "compositions of the reference vary more than those of other configurations" in verdict.describe_basis(row)
    equal = planted_campaigns.Truth(4, compositions=5, runs=10)
    calm = comparisons.compute_ratios(
        *planted_campaigns.pairs(equal, 300), comparisons.build_design(planted_campaigns.runs(equal, 300, 1))
    )
    assert np.mean(calm.noisy_side == "this configuration") < 0.08
