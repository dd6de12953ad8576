"""Dataset of a rank as a file on the storage under test - batches of raw tensors, written once and read repeatedly.

The module needs torch. A batch is one record, padded to whole blocks so that O_DIRECT can read it. The file has no name from its
creation on, so it
cannot outlive its rank, however the rank ends.
"""

from __future__ import annotations

import errno
import fcntl
import os
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from campaign.common.files import find_file_system
from campaign.workloads.trainer.models import Sample

BLOCK_BYTES = 4096
_ALIGNED_BYTES = 64  # alignment of each tensor within a record
_DISTINCT_BYTES = 64 * 2**20  # beyond this size, records are repeated
_CALL_BYTES = 16 * 2**20
_IN_MEMORY = {"tmpfs", "ramfs"}


class BatchMemory:
    """Memory of one batch, with `tensors` as views. It starts on a whole block, as O_DIRECT requires."""

    def __init__(self, example: Sample, pinned: bool) -> None:
        spans = [tensor.numel() * tensor.element_size() for tensor in example]
        starts = [0]
        for span in spans:
            starts.append(_up(starts[-1] + span, _ALIGNED_BYTES))
        self.size_bytes = _up(starts[-1], BLOCK_BYTES)
        whole = torch.zeros(self.size_bytes + BLOCK_BYTES, dtype=torch.uint8, pin_memory=pinned)
        begin = -whole.data_ptr() % BLOCK_BYTES
        memory = whole[begin : begin + self.size_bytes]
        self.bytes = memory.numpy().data.cast("B")
        self.tensors: Sample = tuple(
            memory[start : start + span].view(tensor.dtype).view(tensor.shape)
            for tensor, start, span in zip(example, starts, spans, strict=False)
        )

    def fill(self, batch: Sequence[Tensor]) -> None:
        """Copy a batch into the memory."""
        for own, tensor in zip(self.tensors, batch, strict=True):
            own.copy_(tensor)


def _up(size: int, multiple: int) -> int:
    """Round a size up to a multiple."""
    return -(-size // multiple) * multiple


class LinkRate:
    """Emulated link, which lets reads pass one after the other at a fixed rate. Several threads may use it."""

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s = bytes_per_s
        self._lock = threading.Lock()
        self._free_s = 0.0

    def due_s(self, size_bytes: int, asked_s: float) -> float:
        """Queue a read on the link, and return the time at which it is finished, in seconds of the same clock.

        The link first finishes the reads before it.

        Args:
            size_bytes: size of the read.
            requested_s: time of the request in seconds.
        """
        with self._lock:
            self._free_s = max(self._free_s, asked_s) + size_bytes / self._bytes_per_s
            return self._free_s

    def wait(self, due_s: float) -> None:
        """Wait until this time (`time.perf_counter`, seconds)."""
        while (left_s := due_s - time.perf_counter()) > 0:
            time.sleep(left_s)


class Dataset:
    """Batches in a file without a name. Several threads may call `read_record` at once.

    Attributes:
        records: number of batches.
        is_direct: true if reads bypass the page cache.
        is_in_memory: true if the file system keeps its files in memory.
        is_paced: true if reads are limited to a rate.
    """

    def __init__(
        self,
        directory: Path,
        batch: Callable[[int], Sample],
        records: int,
        *,
        gb_per_s: float | None = None,
    ) -> None:
        """Write the batches, and check that the first one can be read back.

        Raises OSError, with the directory, if the dataset cannot be written.

        Args:
            directory: directory of the file.
            make_batch: function that returns a batch by its number from 0.
            records: number of batches.
            gb_per_s: maximum read rate in GB/s; None for no limit.
        """
        started_s = time.perf_counter()
        self.directory = directory
        self.records = records
        self.direct = False
        self.paced = gb_per_s is not None
        self._link = None if gb_per_s is None else LinkRate(gb_per_s * 1e9)
        first = BatchMemory(batch(0), pinned=False)
        first.fill(batch(0))
        self.record_bytes = first.size_bytes
        try:
            self._file = tempfile.TemporaryFile(dir=directory, buffering=0)  # noqa: SIM115  # stays open as long as this object
            self._write(first, batch)
            self.in_memory = find_file_system(directory)[0] in _IN_MEMORY
        except OSError as error:
            raise OSError(
                error.errno,
                f"{error.strerror}: a dataset of {records * self.record_bytes / 2**20:.0f} MiB cannot be written here; free "
                "space, or ask for less with option dataset_mib",
                str(directory),
            ) from error
        self._forget()
        self._ask_direct()
        self._verify(first, batch(0))
        self.written_s = time.perf_counter() - started_s

    def read(self, index: int, record: BatchMemory) -> None:
        """Read record `index` (modulo the number of records) into memory. Raises OSError if the file ends early."""
        asked_s = time.perf_counter()
        offset = index % self.records * self.record_bytes
        done = 0
        while done < self.record_bytes:
            part = record.bytes[done : done + _CALL_BYTES]
            got = os.preadv(self._file.fileno(), [part], offset + done)
            if got == 0:
                raise OSError(
                    errno.EIO, "the file of samples ends early: something else has cut it", str(self.directory)
                )
            done += got
        if not self.direct:
            self._forget(offset, self.record_bytes)
        if self._link is not None:
            self._link.wait(self._link.due_s(self.record_bytes, asked_s))

    def _write(self, first: BatchMemory, batch: Callable[[int], Sample]) -> None:
        """Write all records to the file. The first distinct ones are repeated for large datasets."""
        distinct = min(self.records, max(1, _DISTINCT_BYTES // self.record_bytes))
        made = [bytes(first.bytes)]
        scratch = BatchMemory(batch(0), pinned=False)
        for index in range(self.records):
            if 0 < index < distinct:
                scratch.fill(batch(index))
                made.append(bytes(scratch.bytes))
            rest = memoryview(made[index % distinct])
            while rest:
                rest = rest[self._file.write(rest) :]
        os.fsync(self._file.fileno())

    def _ask_direct(self) -> None:
        """Enable O_DIRECT if the file system supports it. Some file systems accept the flag but refuse the read."""
        file = self._file.fileno()
        flags = fcntl.fcntl(file, fcntl.F_GETFL)
        record = BatchMemory((torch.empty(BLOCK_BYTES, dtype=torch.uint8),), pinned=False)
        try:
            fcntl.fcntl(file, fcntl.F_SETFL, flags | os.O_DIRECT)
            os.preadv(file, [record.bytes], 0)
        except OSError:
            fcntl.fcntl(file, fcntl.F_SETFL, flags)
        else:
            self.direct = True

    def _verify(self, first: BatchMemory, example: Sample) -> None:
        """Read the first record back, and raise OSError if it differs from the written one."""
        back = BatchMemory(example, pinned=False)
        self.read(0, back)
        if back.bytes != first.bytes:
            raise OSError(errno.EIO, "reads give other bytes than were written", str(self.directory))

    def _forget(self, offset: int = 0, size_bytes: int = 0) -> None:
        # Otherwise every round but the first would measure the page cache. Size 0 means the whole file.
        """Drop a range of the file from the page cache. A size of 0 means the whole file."""
        os.posix_fadvise(self._file.fileno(), offset, size_bytes, os.POSIX_FADV_DONTNEED)
