"""Sources of the batches of a step: the device itself, pinned host memory, or a dataset on the storage under test."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch

from campaign.workloads.trainer.dataset import BatchMemory, Dataset
from campaign.workloads.trainer.models import Sample, Trainable, make_batch
from campaign.workloads.trainer.rank_device import get_device_module
from campaign.workloads.trainer.rank_interface import TrainSpec

_MAX_DEFAULT_DATASET_MIB = 256
_MIN_RECORDS = 2


def make_feed(
    spec: TrainSpec, trainable: Trainable, rank: int, world_size: int, device: torch.device
) -> tuple[Feed, int]:
    """Create the feed that provides one rank with batches. Return it, and the size of one batch in bytes.

    A dataset has as many batches as the run reads, at most 256 MiB of them, or the configured size. Step k of rank r gets the
    samples from number (k x world_size + r) x batch on. One rank with a batch of two thus gets the same samples as two ranks with
    a batch of one. Raises OSError, which names the directory, if the storage fails.
    """
    options = spec.resolve_options()
    samples = spec.batch * spec.replicas

    def make_step_batch(step: int) -> Sample:
        first = (step * world_size + rank) * samples
        return make_batch(trainable, range(first, first + samples), spec.seed)

    example = make_step_batch(0)
    size_bytes = sum(tensor.numel() * tensor.element_size() for tensor in example)
    channels_last = spec.uses_channels_last
    if options["input"] == "storage" and spec.storage_dir is not None:
        dataset_mib = options.get("dataset_mib")
        max_records = int((dataset_mib or _MAX_DEFAULT_DATASET_MIB) * 2**20) // size_bytes
        records = (
            max_records
            if dataset_mib
            else min(max_records, (spec.warmup_steps_max or spec.warmup_steps) + spec.measured_steps)
        )
        dataset = Dataset(
            spec.storage_dir,
            make_step_batch,
            max(records, _MIN_RECORDS),
            gb_per_s=None if spec.storage_gb_per_s is None else spec.storage_gb_per_s / spec.storage_ranks,
        )
        return StorageFeed(dataset, example, device, int(options["loader_workers"]), channels_last), size_bytes
    if options["input"] == "h2d":
        pinned_batch = tuple(tensor.pin_memory() for tensor in example)
        return RepeatedBatchFeed(lambda: _copy_to_device(pinned_batch, device, channels_last)), size_bytes
    resident_batch = _copy_to_device(example, device, channels_last)
    return RepeatedBatchFeed(lambda: resident_batch), size_bytes


def _copy_to_device(batch: Sequence[torch.Tensor], device: torch.device, channels_last: bool) -> Sample:
    """Copy a batch to the device. As is usual, images are converted there to floats with mean 0 and standard deviation 1."""
    device_tensors = []
    for tensor in batch:
        tensor = tensor.to(device, non_blocking=True)
        if tensor.dtype == torch.uint8:
            tensor = tensor.float().sub_(127.5).div_(73.9)
            if channels_last and tensor.dim() == 4:
                tensor = tensor.contiguous(memory_format=torch.channels_last)
        device_tensors.append(tensor)
    return tuple(device_tensors)


class RepeatedBatchFeed:
    """Feed that returns the same batch in every step. The batch either stays on the device or is copied to it each time.

    Nothing is read from storage. The fields are described at `StorageFeed`.
    """

    waited_s: float | None = None
    written_s: float | None = None
    flags: tuple[str, ...] = ()

    def __init__(self, provide_batch: Callable[[], Sample]) -> None:
        self._provide_batch = provide_batch

    def __call__(self) -> Sample:
        return self._provide_batch()


class StorageFeed:
    """Feed that returns the batches of a dataset in order, again and again.

    Without workers, each call reads its batch itself, so the full storage time delays the step (an upper bound). With n workers, n
    threads read up to 2n batches ahead. A batch is valid until the next call. If a thread fails with an OSError, the call that
    would have returned its batch raises the error.

    Attributes:
        waited_s: time in seconds that calls have so far spent on reading or on waiting for a read.
        written_s: time in seconds that writing the dataset took.
        flags: remarks on the input for readers of the results.
    """

    def __init__(
        self, dataset: Dataset, example: Sample, device: torch.device, workers: int, channels_last: bool = False
    ) -> None:
        self.dataset = dataset
        self._device = device
        self._channels_last = channels_last
        self._next_index = 0
        self._free_batches: list[_FreeBatch] = [
            (BatchMemory(example, device.type != "cpu"), None) for _ in range(2 * workers + 1)
        ]
        self._batch_in_use: _FreeBatch | None = None
        self._threads = ThreadPoolExecutor(workers, "loader") if workers else None
        self._pending_reads: deque[Future[BatchMemory]] = deque()
        self.waited_s: float | None = 0.0
        self.written_s: float | None = dataset.written_s
        emulation_flags = ("storage emulated",) if dataset.is_paced else ()
        self.flags = (*emulation_flags, "storage is the host's memory") if dataset.is_in_memory else emulation_flags

    def __call__(self) -> Sample:
        if self._batch_in_use is not None:
            self._free_batches.append(self._batch_in_use)
        if self._threads is None:
            record, copy_event = self._free_batches.pop()
            if copy_event is not None:
                copy_event.synchronize()
            started_s = time.perf_counter()
            self.dataset.read_record(self._next_index, record)
            self._next_index += 1
        else:
            started_s = time.perf_counter()
            while self._free_batches:
                self._pending_reads.append(
                    self._threads.submit(self._read_record, self._next_index, self._free_batches.pop())
                )
                self._next_index += 1
            record = self._pending_reads.popleft().result()
        self.waited_s = (self.waited_s or 0.0) + time.perf_counter() - started_s
        batch = _copy_to_device(record.tensors, self._device, self._channels_last)
        event = None
        if self._device.type != "cpu":
            module = get_device_module(self._device.type)
            event = module.Event()
            event.record(module.current_stream(self._device))
        self._batch_in_use = record, event
        return batch

    def _read_record(self, index: int, free_batch: _FreeBatch) -> BatchMemory:
        record, copy_event = free_batch
        if copy_event is not None:
            copy_event.synchronize()
        self.dataset.read_record(index, record)
        return record


_FreeBatch = tuple[BatchMemory, Any]  # memory, and the event after its copy to a device or None
"""Memory for a batch, and the device event that follows the last copy from it."""


Feed = RepeatedBatchFeed | StorageFeed
"""Source that returns the next batch on the device."""
