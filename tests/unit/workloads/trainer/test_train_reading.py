"""Whole runs that read their samples: what their results say, and how a storage that fails ends them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from campaign.workloads.trainer.model_catalog import MODELS
from tests.unit.workloads.trainer.rank_driver import Driver


@pytest.mark.parametrize("workers", [0, 1])
def test_ranks_read_their_own_datasets_and_say_how_long_they_waited(
    driver: Driver, tmp_path: Path, nano_spec: Any, workers: int
) -> None:
    storage = tmp_path / "storage"
    storage.mkdir()
    options = {"seq_len": 64, "input": "storage", "loader_workers": workers}
    spec = nano_spec(options=options, storage_dir=str(storage), storage_gb_per_s=1.0, storage_ranks=2)
    outcome = driver.run(tmp_path / "run", spec, world_size=2)
    for rank, result in enumerate(outcome.results):
        assert result is not None
        assert result.status == "ok", outcome.log
        assert result.input_bytes_per_step == 2 * (2 * 64 + 2) * 8
        assert result.input_read_s is not None
        assert result.window_s is not None
        assert 0 < result.input_read_s < result.window_s
        assert {"dataset", "input"} <= set(result.phases_s)
        assert all(duration_s >= 0 for duration_s in result.phases_s.values())
        assert "storage emulated" in result.flags
        forward = MODELS["bert-nano"].forward_flops_per_sample
        assert forward is not None
        assert result.flops_per_step == (3 * 2 * forward if rank == 0 else None)
    assert list(storage.iterdir()) == []


def test_a_storage_that_is_not_there_ends_the_rank_with_its_path(
    driver: Driver, tmp_path: Path, nano_spec: Any
) -> None:
    missing = tmp_path / "not-mounted"
    outcome = driver.run(tmp_path / "run", nano_spec(options={"input": "storage"}, storage_dir=str(missing)))
    result = outcome.results[0]
    assert result is not None
    assert (result.status, result.reason) == ("crashed", "ended with FileNotFoundError")
    assert str(missing) in result.evidence


def test_resident_input_reads_nothing(driver: Driver, tmp_path: Path, nano_spec: Any) -> None:
    result = driver.run(tmp_path / "run", nano_spec()).results[0]
    assert result is not None
    assert result.input_read_s is None
    assert "dataset" not in result.phases_s
