"""Adaptive repetitions: one rule, the same after a crash, and never outside its bounds."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from campaign.analysis.tables.cells import build_cells_table
from campaign.analysis.tables.runs import build_runs_table
from campaign.common.intervals import student_interval, student_quantile
from campaign.plan.missing_runs import list_missing_runs
from campaign.plan.repetitions import (
    CellProgress,
    StopFiles,
    explain_end,
    format_repetition_count,
    has_ended,
    list_planned_runs,
    min_remaining_runs,
)
from campaign.run.adaptive_repetitions import RepetitionTracker, summarize_runs
from campaign.spec.cell import Cell, Settings
from campaign.spec.record import RecordStore
from campaign.spec.run_numbers import with_composition
from tests.unit.report import report_data as synthetic

ADAPTIVE = Settings(repetitions=10, repetitions_min=3, target_half_width_pct=2.0)

RATES = st.lists(st.none() | st.floats(50.0, 150.0), min_size=20, max_size=20)
SETTINGS = st.builds(
    Settings,
    repetitions=st.integers(3, 20),
    repetitions_min=st.integers(2, 3),
    target_half_width_pct=st.floats(0.1, 90.0),
)


def measured_cell(wanted: Settings = ADAPTIVE) -> Cell:
    return replace(synthetic.cell(synthetic.configuration()), settings=wanted)


def drive(store: RecordStore, cell: Cell, rates: list[float | None], most: int = 1000) -> list[tuple[int, str]]:
    """What the driver does with a cell: repetition and reason of each record it writes; at most so many, as if killed then."""
    rule = RepetitionTracker(store)
    written = []
    for _, repetition in list_missing_runs([cell], store.list_keys(), StopFiles(store.results).read_all()):
        if rule.is_over(cell) or len(written) == most:
            break
        rate = rates[repetition - 1]
        record = synthetic.record(cell, repetition, rate, "ok" if rate else "crashed")
        record = record.model_copy(update={"stopped": rule.format_stop_reason(cell, record)})
        rule.withdraw_stop(cell)
        store.write(record)
        written.append((repetition, record.stopped))
        if len(written) == most:
            break  # killed between the record and what is noted of the cell
        rule.is_over(cell, record)
    return written


def left_over(store: RecordStore, cell: Cell) -> int:
    return len(list_missing_runs([cell], store.list_keys(), StopFiles(store.results).read_all()))


@given(RATES, SETTINGS)
@settings(max_examples=60)
def test_a_cell_is_never_over_before_the_least_nor_repeated_beyond_the_most(
    rates: list[float | None], wanted: Settings
) -> None:
    over = [n for n in range(1, wanted.repetitions + 1) if has_ended(summarize_runs(rates[:n]), wanted)]
    done = over[0] if over else wanted.repetitions
    assert wanted.repetitions_min <= done <= wanted.repetitions
    for n in range(1, done):
        assert explain_end(summarize_runs(rates[:n]), wanted) == ""
    assert explain_end(summarize_runs(rates[:done]), wanted)
    everything = {("a", n) for n in range(1, done + 1)}
    assert list_planned_runs(wanted, "a", everything, {("a", 1): summarize_runs(rates[:done])}) == tuple(
        range(1, done + 1)
    )
    assert 0 <= min_remaining_runs(wanted, wanted.repetitions - done + 1) <= wanted.repetitions - done + 1


def test_the_interval_is_that_of_student() -> None:
    rates = [100.0, 101.0, 99.5, 100.5]
    mean = float(np.mean(rates))
    _, high = student_interval(mean, np.std(rates, ddof=1), 4)
    found = summarize_runs([*rates[:2], None, *rates[2:]])
    assert (found.repetitions, found.failures) == (5, 1)
    half_pct = 100 * (high - mean) / mean
    assert found.half_width_pct is not None
    assert half_pct <= found.half_width_pct < half_pct + 1e-3
    assert summarize_runs([5.0]).half_width_pct is None
    assert summarize_runs([5.0, 5.0]) == CellProgress(2, 0, 0)


@pytest.mark.parametrize("killed_after", [1, 2, 3, 4, 5])
def test_a_driver_that_is_killed_and_started_again_decides_the_same(tmp_path: Path, killed_after: int) -> None:
    rates: list[float | None] = [100.0, 103.0, 98.0, 100.5, 100.2, 100.1, 99.9, 100.0, 100.0, 100.0]
    cell = measured_cell()
    at_once, pieces = RecordStore(tmp_path / "a"), RecordStore(tmp_path / "b")
    whole = drive(at_once, cell, rates)
    assert 3 < len(whole) < 10
    again: list[tuple[int, str]] = []
    while part := drive(pieces, cell, rates, killed_after):
        again += part
    assert again == whole
    ends = {(cell.id, 1): summarize_runs(rates[: len(whole)])}
    assert StopFiles(pieces.results).read_all() == StopFiles(at_once.results).read_all() == ends
    assert left_over(pieces, cell) == 0


def test_the_record_says_why_its_cell_is_over(tmp_path: Path) -> None:
    (*_, (repetition, words)) = drive(RecordStore(tmp_path / "a"), measured_cell(), [100.0, 101.0, 100.0, *[100.0] * 7])
    assert repetition == 3
    assert words == "after 3 repetitions, the 95 % interval is ±1.5 % of the mean, the target is ±2 %"
    spread: list[float | None] = [100.0, 120.0] * 5
    *before, (repetition, words) = drive(RecordStore(tmp_path / "b"), measured_cell(), spread)
    assert (repetition, {each for _, each in before}) == (10, {""})
    assert (
        words == "the maximum of 10 repetitions is reached; the 95 % interval is ±6.9 % of the mean, the target is ±2 %"
    )


def test_a_cell_that_fails_is_not_repeated_to_the_end(tmp_path: Path) -> None:
    written = drive(RecordStore(tmp_path), measured_cell(), [None, 100.0, None, None, *[100.0] * 6])
    assert written[-1] == (4, "3 of 4 repetitions failed, and 3 failures end a cell")


def test_a_smaller_target_goes_on_and_a_larger_one_does_not(tmp_path: Path) -> None:
    store = RecordStore(tmp_path)
    rates: list[float | None] = [100.0, 101.0, 100.0, 100.4, 100.5, 100.3, 100.4, 100.5, 100.4, 100.4]
    drive(store, measured_cell(), rates)

    def left(**changes: Any) -> int:
        return left_over(store, measured_cell(replace(ADAPTIVE, **changes)))

    assert left() == 0
    assert left(target_half_width_pct=20.0) == 0
    assert left(target_half_width_pct=0.5) == 7
    assert left(target_half_width_pct=None) == 7
    assert left(repetitions_min=5) == 7
    smaller = measured_cell(replace(ADAPTIVE, target_half_width_pct=0.5))
    more = drive(store, smaller, rates)
    assert 0 < len(more) < 7
    assert left_over(store, smaller) == 0
    assert len(list(StopFiles(tmp_path).directory.rglob("*.json"))) == 1


def test_a_record_that_is_taken_away_is_measured_again_and_judged_anew(tmp_path: Path) -> None:
    store, cell = RecordStore(tmp_path), measured_cell()
    drive(store, cell, [100.0, 101.0, 100.0, *[100.0] * 7])
    store.path(cell.id, 2).unlink()
    assert list_missing_runs([cell], store.list_keys(), StopFiles(tmp_path).read_all())[0][1] == 2
    written = drive(store, cell, [100.0, 150.0, 100.0, 150.0, *[100.0] * 6])
    assert [repetition for repetition, _ in written] == [2, *range(4, 11)]


def test_a_target_holds_in_each_composition_by_itself(tmp_path: Path) -> None:
    store = RecordStore(tmp_path)
    wanted = replace(ADAPTIVE, compositions=2)  # 3 to 10 runs: 2 to 5 in each composition
    first, second = (measured_cell(with_composition(wanted, composition)) for composition in (1, 2))
    quiet: list[float | None] = [100.0, 100.0, 100.0, 100.0, 100.0]
    assert [run for run, _ in drive(store, first, quiet)] == [1, 2]
    *_, (run, words) = drive(store, second, [100.0, 120.0] * 500 + [100.0, 120.0, 100.0, 120.0, 100.0, 120.0])
    assert (run, words.split(";")[0]) == (1005, "the maximum of 5 repetitions is reached in composition 2")
    known = list_missing_runs([measured_cell(wanted)], store.list_keys(), StopFiles(tmp_path).read_all())
    assert known == []
    assert set(StopFiles(tmp_path).read_all()) == {(first.id, 1)}
    assert format_repetition_count(wanted) == "4-10"
    # More compositions leave what is over as it is.
    more = measured_cell(replace(wanted, compositions=3, repetitions=15))
    assert {run for _, run in list_missing_runs([more], store.list_keys(), StopFiles(tmp_path).read_all())} == set(
        range(2001, 2006)
    )


def test_the_tables_tell_what_ended_a_cell(tmp_path: Path) -> None:
    store, cell = RecordStore(tmp_path), measured_cell()
    drive(store, cell, [100.0, 101.0, 100.0, *[100.0] * 7])
    runs = build_runs_table(list(store))
    known = list_planned_runs(cell.settings, cell.id, store.list_keys(), StopFiles(tmp_path).read_all())
    (row,) = build_cells_table([synthetic.CellPlan(cell, len(known), "l", runs=known)], runs).to_dict("records")
    assert (row["n_planned"], row["n_ok"], row["n_missing"]) == (3, 3, 0)
    assert row["stopped"].endswith("of the mean, the target is ±2 %")


def test_optional_stopping_covers_what_the_documentation_says() -> None:
    """CV 2 %, target 2 %, 3 to 10 repetitions: 92.3 % of 20,000; these are 2,000 of the same kind."""
    random = np.random.default_rng(7)
    wanted, covered, cells = ADAPTIVE, 0, 2000
    quantile = {n: float(student_quantile(n - 1)) / np.sqrt(n) for n in range(3, 11)}
    for rates in random.normal(100.0, 2.0, (cells, 10)):
        for n in range(3, 11):
            mean, half = rates[:n].mean(), quantile[n] * rates[:n].std(ddof=1)
            if has_ended(CellProgress(n, 0, math.ceil(1e6 * half / mean)), wanted):
                break
        covered += abs(mean - 100.0) <= half
    assert covered / cells == pytest.approx(0.923, abs=0.02)
