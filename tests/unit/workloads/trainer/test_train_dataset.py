"""A dataset on storage: what is read is what was written, in order, no faster than its link, and nothing stays behind."""

from __future__ import annotations

import errno
import hashlib
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from campaign.workloads.trainer import dataset
from campaign.workloads.trainer.dataset import BLOCK_BYTES, BatchMemory, Dataset, EmulatedLink
from campaign.workloads.trainer.input_pipeline import StorageFeed, make_feed
from campaign.workloads.trainer.model_catalog import MODELS
from campaign.workloads.trainer.models import Sample, build_model, make_batch
from campaign.workloads.trainer.rank_interface import TrainSpec
from tests.unit.workloads.trainer.rank_driver import Driver

CPU = torch.device("cpu")


def spec_of(directory: Path, **changes: object) -> TrainSpec:
    options = {"input": "storage", **changes.pop("options", {})}  # type: ignore[dict-item]
    document = {
        "model": "mobilenetv2-32px",
        "batch": 2,
        "measured_steps": 3,
        "warmup_steps": 1,
        "storage_dir": directory,
    }
    return TrainSpec.model_validate({**document, "options": options, **changes})


def batch(index: int) -> Sample:
    return torch.full((3, 5), index % 251, dtype=torch.uint8), torch.tensor([index, -index, 2**40 + index])


@pytest.mark.parametrize("workers", [0, 2])
def test_every_batch_from_storage_is_the_batch_that_was_made(tmp_path: Path, workers: int) -> None:
    spec = spec_of(tmp_path, options={"loader_workers": workers})
    trainable = build_model(spec.model, spec.resolve_options(), "meta")
    feed, size_bytes = make_feed(spec, trainable, rank=1, world_size=2, device=CPU)
    assert size_bytes == 2 * (3 * 32 * 32 + 8)
    for step in range(9):  # four batches are stored, so that this is more than two rounds
        image, target = feed()
        first = (step % 4 * 2 + 1) * 2
        made = make_batch(trainable, range(first, first + 2), spec.seed)
        assert torch.equal(image, (made[0].float() - 127.5) / 73.9)
        assert torch.equal(target, made[1])
    assert list(tmp_path.iterdir()) == []  # the file has no name, so nothing is left behind
    assert feed.waited_s is not None
    assert feed.waited_s > 0
    assert feed.written_s is not None


def test_the_first_batch_has_on_storage_the_checksum_that_it_had_in_memory(tmp_path: Path) -> None:
    written, read = BatchMemory(batch(0), is_pinned=False), BatchMemory(batch(0), is_pinned=False)
    written.copy_batch(batch(0))
    Dataset(tmp_path, batch, 3).read_record(0, read)
    assert hashlib.sha256(read.bytes).digest() == hashlib.sha256(written.bytes).digest()
    assert torch.equal(read.tensors[1], batch(0)[1])


@settings(deadline=None, max_examples=20)
@given(pixels=st.integers(1, 9000), tokens=st.integers(1, 600))
def test_memory_of_a_batch_is_whole_blocks_at_the_start_of_one(pixels: int, tokens: int) -> None:
    example = torch.zeros(2, pixels, dtype=torch.uint8), torch.zeros(2, tokens, dtype=torch.int64)
    record = BatchMemory(example, is_pinned=False)
    record.copy_batch(example)
    assert record.size_bytes % BLOCK_BYTES == 0
    assert 0 <= record.size_bytes - 2 * pixels - 16 * tokens < BLOCK_BYTES + 64
    assert record.tensors[0].data_ptr() % BLOCK_BYTES == 0
    assert [tensor.shape for tensor in record.tensors] == [tensor.shape for tensor in example]


def test_a_large_dataset_repeats_its_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataset, "_MAX_DISTINCT_BYTES", 2 * BLOCK_BYTES)
    stored, record = Dataset(tmp_path, batch, 5), BatchMemory(batch(0), is_pinned=False)
    read = []
    for index in range(5):
        stored.read_record(index, record)
        read.append(int(record.tensors[1][0]))
    assert read == [0, 1, 0, 1, 0]


def test_the_size_asked_for_is_the_size_written(tmp_path: Path) -> None:
    trainable = build_model("mobilenetv2-32px", spec_of(tmp_path).resolve_options(), "meta")
    for asked, records in (({"dataset_mib": 1}, 2**20 // (2 * (3 * 32 * 32 + 8))), ({}, 4)):
        feed, _ = make_feed(spec_of(tmp_path, options=asked), trainable, 0, 1, CPU)
        assert isinstance(feed, StorageFeed)
        assert feed.dataset.records == records


def test_a_file_that_something_cuts_is_an_error_that_names_the_directory(tmp_path: Path) -> None:
    stored = Dataset(tmp_path, batch, 4)
    os.ftruncate(stored._file.fileno(), 2 * stored.record_bytes)
    record = BatchMemory(batch(0), is_pinned=False)
    stored.read_record(1, record)
    with pytest.raises(OSError, match=f"ends early.*{tmp_path.name}"):
        stored.read_record(2, record)


def test_the_error_of_a_loader_reaches_the_step(tmp_path: Path) -> None:
    stored = Dataset(tmp_path, batch, 4)
    feed = StorageFeed(stored, batch(0), CPU, workers=2)
    feed()
    os.ftruncate(stored._file.fileno(), 0)
    ahead = 2 * 2  # they may have been read before the cut
    with pytest.raises(OSError, match="ends early"):
        [feed() for _ in range(ahead + 1)]


def test_storage_that_is_full_is_named_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=rf"No space left.*dataset_mib.*{tmp_path.name}") as caught:
        Dataset(tmp_path, batch, 4)
    assert caught.value.errno == errno.ENOSPC
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"No such file or directory.*nowhere"):
        Dataset(tmp_path / "nowhere", batch, 4)


def test_bytes_that_come_back_changed_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.preadv

    def flipped(file: int, parts: list[memoryview], offset: int) -> int:
        got = real(file, parts, offset)
        parts[0][0] ^= 1
        return got

    monkeypatch.setattr(os, "preadv", flipped)
    with pytest.raises(OSError, match="other bytes than were written"):
        Dataset(tmp_path, batch, 2)


def test_where_o_direct_is_refused_reads_still_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = dataset.fcntl.fcntl

    def refuses(file: int, command: int, flags: int = 0) -> int:
        if command == dataset.fcntl.F_SETFL and flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "Invalid argument")
        return real(file, command, flags)

    monkeypatch.setattr(dataset.fcntl, "fcntl", refuses)
    stored, record = Dataset(tmp_path, batch, 2), BatchMemory(batch(0), is_pinned=False)
    stored.read_record(1, record)
    assert not stored.is_direct
    assert int(record.tensors[1][0]) == 1


@settings(max_examples=50)
@given(st.lists(st.tuples(st.floats(0, 1), st.integers(1, 10**6)), min_size=1, max_size=20))
def test_a_link_never_carries_more_than_its_rate(asked: list[tuple[float, int]]) -> None:
    link = EmulatedLink(1e6)
    now_s, carried = 0.0, 0
    for pause_s, size_bytes in asked:
        now_s += pause_s
        due_s = link.schedule_read(size_bytes, now_s)
        carried += size_bytes
        assert due_s >= now_s + size_bytes / 1e6 - 1e-9
        assert carried / 1e6 <= due_s + 1e-9
        now_s = due_s


def test_readers_of_one_link_wait_for_each_other() -> None:
    link = EmulatedLink(100.0)
    assert [link.schedule_read(50, 1.0), link.schedule_read(50, 1.0), link.schedule_read(50, 9.0)] == [1.5, 2.0, 9.5]


def test_emulated_storage_is_no_faster_than_its_share_and_says_so(tmp_path: Path) -> None:
    trainable = build_model("mobilenetv2-32px", spec_of(tmp_path).resolve_options(), "meta")
    spec = spec_of(tmp_path, storage_gb_per_s=0.002, storage_ranks=2)
    feed, _ = make_feed(spec, trainable, 0, 1, CPU)
    assert "storage emulated" in feed.flags
    before_s = feed.waited_s or 0.0
    for _ in range(4):
        feed()
    assert (feed.waited_s or 0.0) - before_s >= 4 * 8192 / 1e6  # two blocks a batch at 1 MB/s


def test_the_page_cache_is_dropped_before_the_first_read_and_after_every_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dropped = []
    monkeypatch.setattr(
        os, "posix_fadvise", lambda file, offset, size_bytes, advice: dropped.append((offset, size_bytes))
    )
    monkeypatch.setattr(Dataset, "_enable_direct_reads", lambda self: None)
    stored, record = Dataset(tmp_path, batch, 3), BatchMemory(batch(0), is_pinned=False)
    stored.read_record(2, record)
    size = stored.record_bytes
    assert dropped == [
        (0, 0),
        (0, size),
        (2 * size, size),
    ]  # after writing, after the look at the first, after the third


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
    assert (result.status, result.reason) == ("crashed", "the run ended with an uncaught FileNotFoundError")
    assert str(missing) in result.evidence


def test_resident_input_reads_nothing(driver: Driver, tmp_path: Path, nano_spec: Any) -> None:
    result = driver.run(tmp_path / "run", nano_spec()).results[0]
    assert result is not None
    assert result.input_read_s is None
    assert "dataset" not in result.phases_s
