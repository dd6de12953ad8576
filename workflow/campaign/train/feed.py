"""Where a step's batch comes from: the device itself, pinned host memory, or a file on the storage under test."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle
from pathlib import Path

import torch
from torch import Tensor

from campaign.train.models import Sample, Trainable, batch_of
from campaign.train.spec import TrainSpec

Feed = Callable[[], Sample]
_FILE_BYTES = 256 * 2**20
_FILE_BATCHES = (2, 64)


def make_feed(
    spec: TrainSpec, trainable: Trainable, rank: int, world_size: int, device: torch.device
) -> tuple[Feed, int]:
    """The feed of one rank and the bytes of one batch as it is stored.

    Step k of rank r gets samples (k x world_size + r) x batch and on, so one rank with the batch of two sees what two see together.
    """

    def batch(step: int) -> Sample:
        first = (step * world_size + rank) * spec.batch
        return batch_of(trainable, range(first, first + spec.batch), spec.seed)

    example = batch(0)
    size_bytes = sum(tensor.numel() * tensor.element_size() for tensor in example)
    if spec.storage_dir is not None:
        fewest, most = _FILE_BATCHES
        count = min(max(_FILE_BYTES // size_bytes, fewest), most)
        file = _write(spec.storage_dir, (batch(step) for step in range(count)))
        return _from_file(file, example, count, device), size_bytes
    if spec.resolved_options()["input"] == "h2d":
        return _from_host(example, device), size_bytes
    resident = _on_device(example, device)
    return lambda: resident, size_bytes


def _on_device(batch: Sequence[Tensor], device: torch.device) -> Sample:
    """Copied to the device; images become floats of mean 0 and deviation 1 there, as input pipelines do."""
    moved = []
    for tensor in batch:
        tensor = tensor.to(device, non_blocking=True)
        if tensor.dtype == torch.uint8:
            tensor = tensor.float().sub_(127.5).div_(73.9)
            if device.type == "cuda" and tensor.dim() == 4:
                tensor = tensor.contiguous(memory_format=torch.channels_last)
        moved.append(tensor)
    return tuple(moved)


def _from_host(batch: Sample, device: torch.device) -> Feed:
    pinned = tuple(tensor.pin_memory() for tensor in batch)
    return lambda: _on_device(pinned, device)


def _write(directory: Path, batches: Iterator[Sample]) -> int:
    """Descriptor of a file of raw batches. It has no name any more, so it cannot outlive the rank, however that ends."""
    with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
        for batch in batches:
            for tensor in batch:
                file.write(_bytes_of(tensor))
        os.fsync(file.fileno())
        _forget(file.fileno())
        return os.dup(file.fileno())


def _from_file(file: int, example: Sample, count: int, device: torch.device) -> Feed:
    """Each call reads the next batch, in the step and not ahead of it: storage time is wholly exposed, an upper bound."""
    buffers = [torch.empty_like(tensor) for tensor in example]
    if device.type == "cuda":
        buffers = [buffer.pin_memory() for buffer in buffers]
    views = [_bytes_of(buffer) for buffer in buffers]
    size_bytes = sum(len(view) for view in views)
    positions = cycle(range(0, count * size_bytes, size_bytes))

    def read() -> Sample:
        if device.type == "cuda":
            torch.cuda.current_stream(device).synchronize()  # the copy out of these very buffers has to be over
        offset = next(positions)
        for view in views:
            done = 0
            while done < len(view):
                got = os.preadv(file, [view[done:]], offset + done)
                if got == 0:
                    raise OSError("the file of samples ends early")
                done += got
            offset += len(view)
        _forget(file)
        return _on_device(buffers, device)

    return read


def _bytes_of(tensor: Tensor) -> memoryview:
    return tensor.contiguous().flatten().view(torch.uint8).numpy().data.cast("B")


def _forget(file: int) -> None:
    # Without this the second round would measure the page cache.
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
