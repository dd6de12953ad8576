"""The runs, cells and leases tables: one row for everything asked for, and no number that is not believed."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from campaign.analysis.tables.cells import CellPlan, build_cells_table, count_texts
from campaign.analysis.tables.io import Tables, read_tables, write_all_tables, write_csv, write_runs_and_cells
from campaign.analysis.tables.leases import build_leases_table
from campaign.analysis.tables.runs import RUN_COLUMNS, build_runs_table
from campaign.common import intervals
from campaign.common.errors import RecordError
from campaign.report.context_schema import ContextDocument
from campaign.spec.metric import Metric
from tests.unit.report import report_data as synthetic

ONE = synthetic.cell(synthetic.configuration(each=2, attach="local"))


@pytest.fixture(scope="module")
def plan() -> list[CellPlan]:
    return synthetic.planned()


@pytest.fixture(scope="module")
def runs(plan: list[CellPlan]) -> pd.DataFrame:
    return build_runs_table(synthetic.records(plan))


def test_one_row_a_run_with_axes_and_derived_numbers() -> None:
    told = synthetic.record(ONE, 1, 100.0).model_copy(update={"ran_on": ("cuda:0 5f6b", "cuda:1 7a2c")})
    assert build_runs_table([told]).iloc[0]["ran_on"] == "cuda:0 5f6b, cuda:1 7a2c"
    row = build_runs_table([synthetic.record(ONE, 1, 100.0)]).iloc[0]
    assert (row["ranks"], row["devices"], row["batch_global"]) == (2, 2, 16)
    assert row["throughput_per_device_per_s"] == 50.0
    assert (row["host_names"], row["wall_s"]) == ("host0", 20.0)
    assert row["memory_device_mib"] == 1032.0


def test_warm_up_steps_are_those_that_were_made_where_the_program_says_so() -> None:
    told = [synthetic.record(ONE, 1, 100.0), synthetic.record(ONE, 2, 100.0, warmup_steps=35)]
    assert build_runs_table(told)["warmup_steps"].tolist() == [5, 35]


def test_the_value_of_a_run_is_its_primary_metric() -> None:
    record = synthetic.record(ONE, 1, 100.0, metrics={"latency_us": 7.0, "value": 9.0})
    assert build_runs_table([record]).iloc[0]["value"] == 100.0
    for name, value in (("latency_us", 7.0), ("value", 9.0), ("throughput_per_device_per_s", 50.0), ("loss", None)):
        found = build_runs_table([record], metric=Metric(name, "", "lower")).iloc[0]["value"]
        assert found == value if value is not None else np.isnan(found)


@pytest.mark.parametrize("status", ["ok", "crashed"])
def test_what_is_not_positive_or_not_valid_is_no_value(status: str) -> None:
    rate = -1.0 if status == "ok" else 100.0
    record = synthetic.record(ONE, 1, rate, status)
    table = build_runs_table([record, record.model_copy(update={"repetition": 2, "throughput_per_s": min(rate, 0.0)})])
    assert table["value"].isna().all()


@pytest.mark.parametrize("status", ["nan", "incomplete", "oom_device"])
def test_the_rate_of_a_run_that_is_not_believed_stands_apart(status: str) -> None:
    row = build_runs_table([synthetic.record(ONE, 1, 100.0, status)]).iloc[0]
    assert np.isnan(row["throughput_per_s"])
    assert np.isnan(row["throughput_per_device_per_s"])
    assert row["throughput_printed_per_s"] == 100.0
    assert row["status"] == status
    assert status in row["failure_reason"]


def test_steps_are_those_of_the_slowest_rank() -> None:
    slow, fast = (0.2, 0.2, 0.4), (0.1, 0.1, 0.1)
    by_window = synthetic.record(ONE, 1, 1.0, step_times_s=(fast, slow), window_s=(0.3, 0.8))
    by_sum = synthetic.record(ONE, 2, 1.0, step_times_s=(slow, fast), window_s=())
    table = build_runs_table([by_window, by_sum, synthetic.record(ONE, 3, None)])
    assert list(table["step_median_s"][:2]) == [0.2, 0.2]
    assert table["step_p95_s"][0] == pytest.approx(np.percentile(slow, 95))
    assert table["step_cv_pct"][0] == pytest.approx(100 * np.std(slow, ddof=1) / np.mean(slow))
    assert np.isnan(table["step_median_s"][2])


def test_options_keep_their_type_and_metrics_never_hide_a_column() -> None:
    at = ONE.configuration
    cells = [synthetic.cell(at, seq_len=64, mode="a", half=0.5), synthetic.cell(at, seq_len=128, mode=3, half=1)]
    table = build_runs_table([synthetic.record(c, 1, 1.0, metrics={"wall_s": 7.0, "power_w": 3.0}) for c in cells])
    assert sorted(table["option_seq_len"]) == [64, 128]
    assert table["option_seq_len"].dtype == np.int64
    assert table["option_half"].dtype == np.float64
    assert sorted(table["option_mode"]) == ["3", "a"]
    assert list(table["wall_s"]) == [20.0, 20.0]
    assert list(table["metric_wall_s"]) == [7.0, 7.0]
    assert list(table["power_w"]) == [3.0, 3.0]


def test_the_order_of_records_does_not_matter(plan: list[CellPlan], runs: pd.DataFrame) -> None:
    records = list(synthetic.records(plan))
    random.Random(1).shuffle(records)
    pd.testing.assert_frame_equal(build_runs_table(records), runs)


def test_no_record_at_all_still_gives_all_columns(plan: list[CellPlan]) -> None:
    empty = build_runs_table([])
    assert list(empty.columns) == list(RUN_COLUMNS)
    cells = build_cells_table(plan, empty)
    assert len(cells) == len(plan)
    assert set(cells["state"]) == {"missing"}
    assert build_cells_table([], empty).empty


def test_every_planned_cell_has_a_row_in_the_order_of_the_plan(plan: list[CellPlan], runs: pd.DataFrame) -> None:
    cells = build_cells_table(plan, runs)
    assert list(cells["cell_id"]) == [entry.cell.id for entry in plan]
    assert (cells["n_ok"] + cells["n_failed"] + cells["n_missing"] == cells["n_planned"]).all()
    assert cells["state"].value_counts().to_dict() == {"measured": 153, "failed": 14, "missing": 1}


def test_a_measured_cell_is_summarised() -> None:
    records = [synthetic.record(ONE, n, rate) for n, rate in enumerate([10.0, 12.0, 14.0, 16.0], start=1)]
    row = build_cells_table([CellPlan(ONE, 4, "l")], build_runs_table(records)).iloc[0]
    # Total work over total time: of equal work, 4 / (1/10 + 1/12 + 1/14 + 1/16).
    assert row["mean"] == pytest.approx(4 / (1 / 10 + 1 / 12 + 1 / 14 + 1 / 16))
    assert (row["median"], row["min"], row["max"], row["n_ok"]) == (13.0, 10.0, 16.0, 4)
    assert row["cv_pct"] == pytest.approx(19.861453)
    times = 1 / np.array([10.0, 12.0, 14.0, 16.0])
    error = times.std(ddof=1) / times.mean() / 2
    assert row["ci_high"] == pytest.approx(row["mean"] * np.exp(3.182446 * error))
    assert row["interval_method"] == intervals.T_OVER_RUNS_OF_COMPOSITION


def test_a_run_far_from_the_others_is_named_and_counts() -> None:
    rates = [100.0, 100.4, 80.0, 99.7, 100.1, 99.9]
    records = [synthetic.record(ONE, n, rate) for n, rate in enumerate(rates, start=1)]
    records.append(synthetic.record(ONE, 7, None, "nan"))
    other = synthetic.cell(ONE.configuration, batch=64)
    records += [synthetic.record(other, n, 50.0 + n) for n in (1, 2, 3)]
    cells = build_cells_table([CellPlan(other, 3, "l"), CellPlan(ONE, 7, "l")], build_runs_table(records))
    assert cells["n_outliers"].tolist() == [0, 1]
    assert cells["outliers"].tolist() == ["", "composition 1, run 3 (-20.0 %)"]
    assert (cells["n_ok"][1], cells["min"][1]) == (6, 80.0)
    # It counts, but as one that is near: the mean of all is 96.7.
    assert 99 < cells["mean"][1] < 100


def test_the_median_has_an_interval_beside_that_of_the_mean() -> None:
    records = [synthetic.record(ONE, n, rate) for n, rate in enumerate([10.0, 12.0, 14.0, 22.0], start=1)]
    row = build_cells_table([CellPlan(ONE, 4, "l")], build_runs_table(records)).iloc[0]
    assert (row["median"], row["mean"]) == (13.0, pytest.approx(4 / (1 / 10 + 1 / 12 + 1 / 14 + 1 / 22)))
    half = 3.182446 * row["sd"] / 2
    assert (row["median_low"], row["median_high"]) == pytest.approx((13 - 1.026 * half, 13 + 1.026 * half))
    assert row["median_method"] == intervals.STUDENT_T_FOR_MEDIAN
    many = [synthetic.record(ONE, n, 10.0 + n % 7) for n in range(1, 31)]
    row = build_cells_table([CellPlan(ONE, 30, "l")], build_runs_table(many)).iloc[0]
    assert (row["interval_method"], row["median_method"]) == (
        intervals.T_OVER_RUNS_OF_COMPOSITION,
        intervals.BCA_BOOTSTRAP,
    )


def test_failures_and_missing_runs_are_told_with_their_reasons() -> None:
    records = [
        synthetic.record(ONE, 1, 10.0),
        synthetic.record(ONE, 2, 99.0, "nan"),
        synthetic.record(ONE, 3, None, "nan"),
    ]
    row = build_cells_table([CellPlan(ONE, 5, "l", {4: "fabric down"})], build_runs_table(records)).iloc[0]
    assert (row["n_ok"], row["n_failed"], row["n_missing"], row["state"]) == (1, 2, 2, "measured")
    assert row["failures"] == "nan x2"
    assert row["missing_reasons"] == "fabric down, no record"
    assert (row["mean"], row["interval_method"]) == (10.0, "none: one run")
    assert np.isnan(row["ci_low"])


def test_a_run_that_is_ok_without_a_rate_is_neither_failed_nor_missing() -> None:
    row = build_cells_table([CellPlan(ONE, 1, "l")], build_runs_table([synthetic.record(ONE, 1, None)])).iloc[0]
    assert (row["state"], row["n_ok"], row["n_failed"], row["n_missing"]) == ("measured", 0, 0, 0)
    assert np.isnan(row["mean"])


def test_a_cell_says_what_its_measured_windows_suffer_from() -> None:
    def window(decay: float) -> str:
        told = [
            synthetic.record(ONE, n, 100.0, step_times_s=(tuple(2 * (decay + n / 1e4) ** i for i in range(40)),))
            for n in (1, 2, 3)
        ]
        return str(build_cells_table([CellPlan(ONE, 3, "l")], build_runs_table(told))["window"].iloc[0])

    assert window(0.99) == "not steady"
    assert window(1.0) == ""
    assert build_cells_table([CellPlan(ONE, 3, "l")], build_runs_table([]))["window"].iloc[0] == ""


def test_runs_of_unplanned_cells_are_left_out_and_further_repetitions_count() -> None:
    other = synthetic.cell(ONE.configuration, batch=64)
    records = [synthetic.record(ONE, 1, 10.0), synthetic.record(ONE, 2, 20.0), synthetic.record(other, 1, 5.0)]
    cells = build_cells_table([CellPlan(ONE, 1, "l")], build_runs_table(records))
    assert len(cells) == 1
    assert (cells["n_ok"][0], cells["mean"][0], cells["n_missing"][0]) == (2, pytest.approx(40 / 3), 0)


def test_leases_are_taken_apart_into_phases() -> None:
    leases = build_leases_table(
        [
            {
                "lease_id": "a", "configuration": "c", "state": "released", "requested_s": 100.0, "fabric_done_s": 103.0,
                "host_visible_s": 107.0, "ready_s": 108.0, "release_started_s": 200.0, "released_s": 202.0,
                "operations": ["x", "y"], "retries": 1, "mismatches": ["m"], "faults": [],
            },
            {"lease_id": "b", "configuration": "c", "state": "failed", "requested_s": 100.0, "released_s": None},
            # Nobody looked on its hosts.
            {"lease_id": "d", "configuration": "c", "requested_s": 0.0, "fabric_done_s": 3.0, "ready_s": 5.0, "state": "released"},
        ]
    )  # fmt: skip
    first, second, third = leases.to_dict("records")
    assert np.isnan(third["visible_s"])
    assert [third[name] for name in ("fabric_s", "readying_s", "compose_s")] == [3.0, 2.0, 5.0]
    assert [first[name] for name in ("fabric_s", "visible_s", "readying_s", "compose_s")] == [3.0, 4.0, 1.0, 8.0]
    assert (first["held_s"], first["release_s"], first["operations"], first["retries"]) == (92.0, 2.0, 2, 1)
    assert np.isnan([second["compose_s"], second["release_s"]]).all()
    assert (second["operations"], second["mismatches"]) == (0, 0)


def test_files_are_equal_byte_for_byte_and_keep_their_types(plan, runs: pd.DataFrame, tmp_path: Path) -> None:
    cells = build_cells_table(plan, runs)
    for name in ("one", "two"):
        write_runs_and_cells(tmp_path / name, runs.copy(), cells.copy())
    names = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert names == ["cells.csv", "cells.parquet", "runs.csv", "runs.parquet"]
    for name in names:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "one" / "runs.parquet"), runs)


def test_tables_of_earlier_versions_are_read_unless_they_hold_predictions(
    plan: list[CellPlan], runs: pd.DataFrame, tmp_path: Path
) -> None:
    context = {**synthetic.context_document(), "inputs": {}, "prediction": ""}
    cells = build_cells_table(plan, runs).assign(predicted=False)
    made = Tables(runs.assign(predicted=False), cells, [], [], context)
    write_all_tables(made, tmp_path)
    assert len(read_tables(tmp_path).cells) == len(cells)
    assert ContextDocument.model_validate(read_tables(tmp_path).context).campaign.name == made.name
    write_all_tables(replace(made, context={**context, "prediction": "steps was replayed."}), tmp_path)
    with pytest.raises(RecordError, match="hold predictions of an earlier version"):
        read_tables(tmp_path)


def test_a_directory_that_cannot_be_written_is_an_error_that_names_it(runs: pd.DataFrame, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(RecordError, match="file"):
        write_runs_and_cells(blocked, runs, runs)


def test_tally_counts_in_order_of_appearance() -> None:
    assert count_texts(["nan", "oom_device", "nan", ""]) == "nan x2, oom_device"


def test_logs_that_name_no_lease_are_of_no_known_lease() -> None:
    cell = synthetic.planned()[0].cell
    runs = build_runs_table([
        synthetic.record(cell, 1, 10.0, lease_id=f"m.{cell.configuration.name}.imported-0123456789ab"),
        synthetic.record(cell, 2, 10.0, lease_id=f"m.{cell.configuration.name}.second"),
    ])  # fmt: skip
    assert runs["lease_id"].tolist() == ["", f"m.{cell.configuration.name}.second"]


def test_no_text_of_a_csv_is_a_formula_and_numbers_stay_numbers(tmp_path: Path) -> None:
    texts = ["=1+1", "+x", "-O3", "@sum", "\tx", "-5", "+1.5e3", "-inf", "plain", None]
    table = pd.DataFrame(
        {"text": texts, "mixed": [-1.5, "=x", *[None] * 8], "number": [-1.0] * 10, "kind": pd.Categorical(texts)}
    )
    write_csv(table, tmp_path / "x.csv")
    read = pd.read_csv(tmp_path / "x.csv", dtype="str", keep_default_na=False)
    expected = ["'=1+1", "'+x", "'-O3", "'@sum", "'\tx", "-5", "+1.5e3", "-inf", "plain", ""]
    assert read["text"].tolist() == expected
    assert read["kind"].tolist() == expected
    assert read["mixed"].tolist()[:2] == ["-1.5", "'=x"]
    assert set(read["number"]) == {"-1"}
