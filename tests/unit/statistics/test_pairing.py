"""Which runs are paired: those that a lease measured in one block, and no others."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from campaign import statistics
from campaign.documents.record import Record
from campaign.statistics import comparable_cells, pairing
from campaign.tables.cells import PlannedCell, cells_table
from campaign.tables.runs import runs_table
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
    runs = runs_table(records)
    cells = cells_table([PlannedCell(cell, 5, "l") for cell in (PLAIN, FAST)], runs)
    rows = comparable_cells.precision(cells, pairing.blocks(runs, {"order": order}))
    return rows.set_index("precision").loc["fp16"]


def test_runs_of_one_block_are_paired_and_the_effect_is_seen_through_the_drift() -> None:
    row = compared(measured())
    assert (row["paired"], row["n_pairs"], row["method"]) == (True, 5, statistics.PAIRED)
    assert row["ratio_low"] < 1.02 < row["ratio_high"] < row["ratio_low"] + 0.01
    assert row["p_holm"] < 0.001
    # What the table of means says is what the ratio says.
    assert row["ratio"] == pytest.approx(row["mean"] / row["against_mean"], rel=1e-12)


@pytest.mark.parametrize(
    "change",
    [
        {"fp16": {n: {"lease_id": "another"} for n in range(1, 6)}},
        {"fp16": {n: {"lease_id": ""} for n in range(1, 6)}, "fp32": {n: {"lease_id": ""} for n in range(1, 6)}},
        {"fp16": {n: {"lease_id": "another"} for n in (1, 2, 3)}},
        {"fp16": {1: {"status": "nan"}}, "fp32": {n: {"status": "nan"} for n in (2, 3)}},
    ],
)
def test_runs_of_other_leases_or_blocks_are_not(change: dict) -> None:
    row = compared(measured(**change))
    assert (row["paired"], row["method"]) == (False, statistics.LOG_RATIO)
    assert row["p_holm"] > 0.05


def test_a_run_that_failed_takes_its_block_out() -> None:
    row = compared(measured(fp16={2: {"status": "oom_device"}}))
    assert (row["paired"], row["n_pairs"], row["n_ok"]) == (True, 4, 4)
    assert row["ratio_low"] < 1.02 < row["ratio_high"]


def test_a_campaign_that_went_cell_by_cell_has_no_blocks() -> None:
    assert not compared(measured(), order="sequential")["paired"]


def test_cells_of_different_compositions_are_not_paired() -> None:
    near, apart = synthetic.configuration(each=2), synthetic.configuration(hosts=2, each=1)
    cells = [synthetic.cell(at) for at in (near, apart)]
    runs = runs_table([synthetic.record(cell, n, 100.0 + n) for cell in cells for n in range(1, 5)])
    rows = comparable_cells.node_spread(
        cells_table([PlannedCell(c, 4, "l") for c in cells], runs), pairing.blocks(runs, {})
    )
    assert not rows["paired"].any()
    assert rows.set_index("hosts")["method"].to_dict() == {1: statistics.ITSELF, 2: statistics.LOG_RATIO}


def test_a_cell_over_itself_is_one_without_a_test() -> None:
    side = pd.DataFrame({"cell_id": ["a", "b", None], "mean": [3.0, np.nan, 1.0], "sd": 1.0, "n_ok": [4, 0, 4]})
    found = pairing.ratios(side, side)
    assert found.of.bounds()[0].tolist()[0] == found.of.bounds()[1].tolist()[0] == 1.0
    assert np.isnan(found.of.ratio[1])
    assert np.isnan(found.of.p()[:2]).all()
    assert found.method.tolist() == [statistics.ITSELF, statistics.ITSELF, statistics.NO_REFERENCE]


def test_reasons_for_no_interval_are_told() -> None:
    means, deviations = [1.0, np.nan, 0.0, 2.0], [0.1, np.nan, 0.0, np.nan]
    of = pd.DataFrame({"cell_id": list("abcd"), "mean": means, "sd": deviations, "n_ok": [3, 0, 3, 1]})
    to = pd.DataFrame({"cell_id": ["e", "e", "e", "e"], "mean": 1.0, "sd": 0.1, "n_ok": 3})
    found = pairing.ratios(of, to, runs_table([]))
    reasons = [statistics.LOG_RATIO, statistics.NO_RUN, statistics.NOT_POSITIVE, statistics.ONE_RUN]
    assert found.method.tolist() == reasons
    assert np.isfinite(found.of.bounds()[1]).tolist() == [True, False, False, False]
