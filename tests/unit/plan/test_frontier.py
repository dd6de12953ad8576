"""The out-of-memory frontier: what a run that ran out of memory implies, and what it does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from campaign.analysis.tables.collect import read_campaign_results, write_campaign_tables
from campaign.plan.campaign.resolve import Campaign
from campaign.plan.matrix import Specifications, build_specification, expand_matrix
from campaign.plan.missing_runs import read_recorded_runs
from campaign.plan.oom_frontier import build_campaign_frontier, build_implied_record, smallest_implying_batch
from campaign.plan.order import order_runs, sort_batches
from campaign.run.adaptive_repetitions import record_implied_runs
from campaign.spec.cell import Cell
from campaign.spec.record import Record, RecordStore
from scripts.figures import memory_frontier
from tests.campaign_files import load
from tests.unit.report import report_data as synthetic
from tests.unit.report.test_figures import data

BATCHES = {"campaign.axes.batch": [8, 1, 4, 2], "campaign.protocol.repetitions": 2}


def small(directory: Path, **changes: Any) -> tuple[Campaign, dict[int, Cell]]:
    """A campaign, and its cells of one frontier by batch."""
    campaign = load(directory, BATCHES | {name.replace("__", "."): value for name, value in changes.items()})
    key = Specifications(campaign).hash_memory_use
    cells = expand_matrix(campaign).cells
    return campaign, {cell.batch: cell for cell in cells if key(cell) == key(cells[0])}


def ran(cell: Cell, status: str, repetition: int = 1) -> Record:
    return synthetic.record(cell, repetition, 10.0 if status == "ok" else None, status)


def write(campaign: Campaign, store: RecordStore, cell: Cell, status: str, repetition: int = 1) -> None:
    """As the driver does: first what it implies, then the record."""
    record = ran(cell, status, repetition)
    build_campaign_frontier(campaign, store).add_record(cell, record)
    store.write(record)


def record_all_implied(campaign: Campaign, store: RecordStore, missing: list[tuple[Cell, int]]) -> None:
    frontier, as_used = build_campaign_frontier(campaign, store), store.share_document(campaign.to_document())
    record_implied_runs(frontier, missing, lambda cell: build_specification(campaign, cell), as_used, lambda *_: None)


def implied(campaign: Campaign, store: RecordStore, cells: dict[int, Cell]) -> set[int]:
    frontier = build_campaign_frontier(campaign, store)
    return {batch for batch, cell in cells.items() if frontier.read_evidence(cell)}


@given(st.sets(st.integers(1, 50)), st.sets(st.integers(1, 50)), st.integers(1, 50))
def test_a_batch_is_implied_by_a_smaller_one_that_no_run_contradicts(
    ran_out: set[int], fits: set[int], batch: int
) -> None:
    by = smallest_implying_batch(batch, ran_out, fits)
    if by is None:
        assert all(out >= batch or any(fit >= out for fit in fits) for out in ran_out)
    else:
        assert by in ran_out
        assert max(fits, default=0) < by < batch


@pytest.mark.parametrize("status", ["oom_device", "oom_host"])
def test_larger_batches_are_implied_and_nothing_else(tmp_path: Path, status: str) -> None:
    campaign, cells = small(tmp_path)
    store = RecordStore(tmp_path / "results")
    assert implied(campaign, store, cells) == set()
    write(campaign, store, cells[2], status)
    assert implied(campaign, store, cells) == {4, 8}
    mine = {cell.id for cell in cells.values()}
    others = [cell for cell in expand_matrix(campaign).cells if cell.id not in mine]
    frontier = build_campaign_frontier(campaign, store)
    assert len(others) == 28
    assert not any(frontier.read_evidence(cell) for cell in others)


@pytest.mark.parametrize("status", ["time_limit", "crashed", "nan", "comm_timeout"])
def test_other_failures_imply_nothing(tmp_path: Path, status: str) -> None:
    campaign, cells = small(tmp_path)
    store = RecordStore(tmp_path / "results")
    write(campaign, store, cells[2], status)
    assert implied(campaign, store, cells) == set()
    assert not (tmp_path / "results" / "limits").exists()


@pytest.mark.parametrize(
    ("changes", "kept"),
    [
        ({"campaign__protocol__measured_steps": 9, "campaign__protocol__seed": 7}, {4, 8}),
        ({"campaign__protocol__repetitions": 5}, {4, 8}),
        ({"workloads__steps__sample_ms": 3.0}, set()),
        ({"workloads__steps__options": {"size": 9}}, set()),
        ({"campaign__protocol__memory_limit_mib": 10}, set()),
        ({"system__devices__cpu-rank__precisions": ["fp32", "bf16"]}, set()),
        ({"campaign__protocol__skip_implied": False}, set()),
    ],
)
def test_what_is_known_holds_for_equal_cells_alone(tmp_path: Path, changes: dict[str, Any], kept: set[int]) -> None:
    campaign, cells = small(tmp_path)
    store = RecordStore(tmp_path / "results")
    write(campaign, store, cells[2], "oom_device")
    assert implied(*_at(store, small(tmp_path, **changes))) == kept


def _at(store: RecordStore, known: tuple[Campaign, dict[int, Cell]]) -> tuple[Campaign, RecordStore, dict[int, Cell]]:
    return known[0], store, known[1]


def test_a_larger_batch_that_ran_outweighs_a_smaller_one_that_did_not(tmp_path: Path) -> None:
    campaign, cells = small(tmp_path)
    before, after = RecordStore(tmp_path / "before"), RecordStore(tmp_path / "after")
    write(campaign, before, cells[4], "ok")
    write(campaign, before, cells[2], "oom_device")
    write(campaign, after, cells[2], "oom_device")
    assert not build_campaign_frontier(campaign, after).contradicts_limit(cells[1])
    assert build_campaign_frontier(campaign, after).contradicts_limit(cells[4])
    write(campaign, after, cells[4], "ok")
    for store in (before, after):
        assert implied(campaign, store, cells) == set()
    write(campaign, before, cells[8], "oom_device")
    assert implied(campaign, before, cells) == set()
    # Also for the same hardware in an edited campaign, whose own cells say nothing of it.
    edited = small(tmp_path, campaign__protocol__measured_steps=9)
    assert implied(*_at(after, edited)) == set()


def test_a_limit_without_its_record_counts_for_nothing(tmp_path: Path) -> None:
    """The driver was killed between the two, or somebody moved the record away."""
    campaign, cells = small(tmp_path)
    store = RecordStore(tmp_path / "results")
    build_campaign_frontier(campaign, store).add_record(cells[2], ran(cells[2], "oom_device"))
    assert implied(campaign, store, cells) == set()
    store.write(ran(cells[2], "oom_device"))
    assert implied(campaign, store, cells) == {4, 8}
    record_all_implied(campaign, store, [(cells[4], 1), (cells[8], 2), (cells[1], 1)])
    assert store.list_keys() == {(cells[2].id, 1), (cells[4].id, 1), (cells[8].id, 2)}

    store.path(cells[2].id, 1).unlink()
    assert store.list_keys() == set()
    assert implied(campaign, store, cells) == set()
    write(campaign, store, cells[2], "ok")  # measured again, and this time it fits
    assert store.list_keys() == {(cells[2].id, 1)}
    assert implied(campaign, store, cells) == set()


def test_an_implied_record_names_its_evidence_and_gives_way_to_the_run_itself(tmp_path: Path) -> None:
    campaign, cells = small(tmp_path)
    store = RecordStore(tmp_path / "results")
    write(campaign, store, cells[2], "oom_host")
    evidence = build_campaign_frontier(campaign, store).read_evidence(cells[8])
    assert evidence is not None
    store.write(build_implied_record(build_specification(campaign, cells[8]), "a" * 20, cells[8], 1, evidence))
    record = store.read_latest(cells[8].id, 1)
    assert (record.status, record.implied_by, record.log) == ("implied", f"{cells[2].id}.1", "")
    assert record.failure is not None
    assert record.failure.reason == "batch 2 already ran out of host memory"
    assert record.failure.evidence.startswith(f"{cells[2].id}.1: oom_host at step 1")
    assert [each.key for each in store] == sorted(store.list_keys())

    assert (cells[8].id, 1) in read_recorded_runs(store, skip_implied=True).measured
    assert (cells[8].id, 1) not in read_recorded_runs(store, skip_implied=False).measured
    store.write(ran(cells[8], "oom_host"))
    assert store.read_latest(cells[8].id, 1).status == "oom_host"
    assert len(store.list_keys()) == 2


def test_tables_and_figure_tell_what_is_implied(tmp_path: Path) -> None:
    campaign, cells = small(tmp_path)
    store = RecordStore(tmp_path / "results")
    environment = store.share_document({"packages": {}})
    as_used = store.share_document(campaign.to_document())
    for batch, status in ((1, "ok"), (2, "oom_device")):
        record = ran(cells[batch], status).model_copy(update={"environment": environment, "campaign": as_used})
        build_campaign_frontier(campaign, store).add_record(cells[batch], record)
        store.write(record)
    record_all_implied(campaign, store, [(cells[b], r) for b in (4, 8) for r in (1, 2)])
    write_campaign_tables(read_campaign_results(campaign, store.results), tmp_path / "tables")
    table = pd.read_parquet(tmp_path / "tables" / "cells.parquet").set_index("cell_id")
    mine = table.loc[[cells[batch].id for batch in (1, 2, 4, 8)]]
    assert list(mine["state"]) == ["measured", "failed", "implied", "implied"]
    assert list(mine["n_implied"]) == [0, 0, 2, 2]
    assert list(mine["n_failed"]) == [0, 1, 0, 0]
    assert list(mine["n_missing"]) == [1, 1, 0, 0]


def test_the_figure_shows_the_frontier_and_tells_a_contradiction() -> None:
    plan, records = [], []
    for precision, limit in (("fp32", 4), ("fp16", 8)):
        for batch in (1, 2, 4, 8, 16):
            cell = synthetic.cell(synthetic.configuration(), batch=batch, precision=precision)
            plan.append(synthetic.CellPlan(cell, 1, "l"))
            status = "ok" if batch < limit else "oom_device" if batch == limit else "implied"
            by = f"{plan[-2].cell.id}.1" if status == "implied" else ""
            records.append(ran(cell, status).model_copy(update={"implied_by": by}))
    drawing = memory_frontier.draw(data(plan, records))
    assert drawing.svg
    assert [row[1:5] for row in drawing.rows] == [("2", "4", "device", "8, 16"), ("4", "8", "device", "16")]
    assert records[2].cell_id in drawing.rows[0][5]
    assert any("3 cells were not run, because a smaller batch" in finding for finding in drawing.findings)
    assert drawing.findings[0] == "Memory runs out earliest at batch 4 (fp32) and latest at batch 8 (fp16)."
    assert not any("Contradiction" in finding for finding in drawing.findings)

    records[4] = ran(plan[4].cell, "ok")
    drawing = memory_frontier.draw(data(plan, records))
    assert "Contradiction in fp32: batch 4 ran out of memory, but batch 16 ran." in drawing.findings

    records[7] = ran(plan[7].cell, "oom_device")
    drawing = memory_frontier.draw(data(plan, records))
    assert drawing.findings[0] == "Memory runs out at batch 4 in all 2 cases."


def test_alike_cells_run_from_small_to_large_in_the_first_block_alone(tmp_path: Path) -> None:
    campaign, _ = small(tmp_path, campaign__axes__batch=[8, 1, 4, 2, 16, 32])
    cells = [cell for cell in expand_matrix(campaign).cells if cell.configuration.name == "1x1-local"]
    runs = [(cell, repetition) for cell in cells for repetition in (1, 3)]
    order = order_runs(runs, campaign.protocol, "1x1-local")
    assert order == order_runs(runs[::-1], campaign.protocol, "1x1-local")
    assert set(map(str, order)) == set(map(str, runs))
    blocks = [[cell for cell, repetition in order if repetition == number] for number in (1, 3)]
    assert [repetition for _, repetition in order] == [1] * len(cells) + [3] * len(cells)
    for precision in ("fp32", "bf16"):
        first, second = ([cell.batch for cell in block if cell.precision == precision] for block in blocks)
        assert first == sorted(first)
        assert second != sorted(second)
    # Only alike cells change places: what stands where by everything but the batch stays random.
    precisions = [cell.precision for cell in blocks[0]]
    assert precisions != sorted(precisions)
    assert [cell.precision for cell in sort_batches(blocks[1])] == [cell.precision for cell in blocks[1]]
