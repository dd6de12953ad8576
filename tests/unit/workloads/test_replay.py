"""Replays: their file, the compute time of a batch, and what a campaign is told of cells that they cannot have."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from campaign.errors import ConfigError
from campaign.model.description import interpolated
from campaign.workloads.log_reader import Log
from campaign.workloads.protocol import Ended, Storage
from campaign.workloads.replay import ReplayWorkload
from campaign.workloads.trainer.rank_interface import RankResult, write_result
from campaign.workloads.trainer_runs import SLOW_COLLECTIVES
from tests.campaign_files import one_cell, one_run

DOCUMENT: dict[str, Any] = yaml.safe_load(ReplayWorkload.example)


def file(**keys: Any) -> ReplayWorkload:
    return ReplayWorkload.model_validate({**DOCUMENT, **keys})


ROWS = {2: 1.0, 4: 1.5, 8: 3.5}


@pytest.mark.parametrize(
    ("rows", "batch", "seconds"),
    [
        ({4: 2.0}, 8, 4.0),  # a single row is proportional
        (ROWS, 2, 1.0),
        (ROWS, 3, 1.25),
        (ROWS, 6, 2.5),
        (ROWS, 16, 7.5),  # along the last segment
        (ROWS, 1, 0.75),  # along the first
        ({2: 1.0, 4: 3.0}, 1, 0.5),  # which would lead to nothing
        ({2: 1.0, 4: 0.9}, 8, 0.9),  # or back
    ],
)
def test_seconds_between_and_outside_of_known_batches(rows: dict[int, float], batch: int, seconds: float) -> None:
    assert interpolated(rows, batch) == pytest.approx(seconds)


@given(
    st.dictionaries(st.integers(1, 512), st.floats(1e-4, 10), min_size=1, max_size=5),
    st.integers(1, 2048),
    st.integers(1, 512),
)
def test_interpolated_seconds_are_positive_and_grow_with_the_batch(
    rows: dict[int, float], batch: int, more: int
) -> None:
    seconds = sorted(rows.values())
    growing = dict(zip(sorted(rows), seconds, strict=True))
    assert 0 < interpolated(growing, batch) <= interpolated(growing, batch + more) * (1 + 1e-9)
    assert all(interpolated(growing, known) == pytest.approx(value) for known, value in growing.items())


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"layers": [{"tensors": [3]}], "optimizer": 0}, "no compute time"),
        ({"layers": [{"forward": 1}]}, "no layer has 'tensors'"),
        ({"compute": [DOCUMENT["compute"][0]] * 2}, "two rows for cpu-rank, fp32, batch 1"),
        ({"compute": [{**DOCUMENT["compute"][0], "precision": "bf16"}]}, "'precisions' has only fp32"),
        ({"layers": [{"tensors": [0]}]}, "greater than or equal to 1"),
    ],
)
def test_a_file_that_cannot_be_replayed_says_why(keys: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        file(**keys)


def test_a_device_without_a_compute_row_is_refused_with_the_row_to_add() -> None:
    assert file().refusal(one_cell()) is None
    for cell in (
        one_cell(precision="bf16"),
        replace(one_cell(), configuration=replace(one_cell().configuration, device="v100")),
    ):
        said = file().refusal(cell) or ""
        row = f"- {{device: {cell.configuration.device}, precision: {cell.precision}, batch: 4, seconds: ...}}"
        assert "it has cpu-rank with fp32" in said
        assert row in said


@pytest.mark.parametrize(
    ("options", "runs_on", "said"),
    [
        ({}, "cuda", "runs_on: cpu"),
        ({"accumulation": 3}, "cpu", "cannot be divided"),
        ({"parallel": "fsdp", "overlap": False}, "cpu", "layer by layer"),
        ({"parallel": "dp"}, "cpu", None),
    ],
)
def test_what_cannot_be_replayed_is_unsupported(options: dict[str, Any], runs_on: str, said: str | None) -> None:
    objection = file().objection(one_cell(options=options), runs_on)
    assert (said in (objection or "")) if said else objection is None


def test_options_at_their_default_are_no_part_of_a_cells_identity() -> None:
    assert file().counted_options({"parallel": "ddp", "accumulation": 2}) == {"accumulation": 2}


def test_words_for_people_are_no_part_of_a_cells_identity() -> None:
    (row, *rows), (layer, *layers) = DOCUMENT["compute"], DOCUMENT["layers"]
    worded = file(compute=[{**row, "source": "elsewhere"}, *rows], layers=[{**layer, "name": "input"}, *layers])
    assert worded.identity() == file().identity()
    assert file(compute=[{**row, "seconds": 1}, *rows]).identity() != file().identity()


def read_s(directory: Path, gb_per_s: float | None, workers: int, **keys: Any) -> float | None:
    cell = one_cell(devices=2, batch=4, options={"input": "storage", "loader_workers": workers})
    run = replace(one_run(directory, cell), storage=Storage(directory, gb_per_s), scale=0.5)
    return file(**keys).read_s(run)


def test_ranks_of_a_host_share_its_storage_and_its_cores(tmp_path: Path) -> None:
    """Two ranks on a host of four cores; its storage has 2 GB/s and is emulated at half of that."""
    assert file().read_s(one_run(tmp_path, one_cell())) is None
    assert read_s(tmp_path, 1.0, 0, input_bytes=1e9) == pytest.approx(4.0)
    assert read_s(tmp_path, 1.0, 0, input_bytes=1e9, input_core_s=0.5) == pytest.approx(
        4.0 + 2.0
    )  # one after the other
    assert read_s(tmp_path, 1.0, 1, input_bytes=1e9, input_core_s=0.5) == pytest.approx(4.0)  # decoded meanwhile
    assert read_s(tmp_path, 1.0, 8, input_bytes=1, input_core_s=3) == pytest.approx(4 * 3 / 2)  # two cores a rank
    with pytest.raises(ConfigError, match="needs the rate of storage 'local'"):
        read_s(tmp_path, None, 0)


@pytest.mark.parametrize(("own_s", "flags"), [(None, ()), (0.02, ()), (0.06, (SLOW_COLLECTIVES,))])
def test_a_step_that_this_machine_lengthens_by_itself_is_flagged(
    tmp_path: Path, own_s: float | None, flags: tuple[str, ...]
) -> None:
    """Of steps of a second."""
    run = one_run(tmp_path, one_cell(devices=1))
    steps = {"step_times_s": (1.0,) * 3, "window_s": 3.0}
    write_result(tmp_path, RankResult(rank=0, world_size=1, host="h", status="ok", collectives_own_s=own_s, **steps))
    assert file().read(run, Ended((0,), 0.0, 1.0), Log.of("")).flags == flags
