"""Dataset of a rank: a file on the storage under test with batches of raw tensors, written once and read repeatedly.

The module needs torch. A batch is one record, padded to whole blocks so that O_DIRECT can read it. The file never has a name,
so it cannot outlive its rank, however the rank ends.
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
_TENSOR_ALIGNMENT_BYTES = 64  # alignment of each tensor within a record
_MAX_DISTINCT_BYTES = 64 * 2**20  # beyond this size, records are repeated
_MAX_READ_BYTES = 16 * 2**20
_MEMORY_FILE_SYSTEMS = {"tmpfs", "ramfs"}


class BatchMemory:
    """Memory for one batch, with `tensors` as views of it. It is aligned to whole blocks, as O_DIRECT requires."""

    def __init__(self, example: Sample, is_pinned: bool) -> None:
        spans = [tensor.numel() * tensor.element_size() for tensor in example]
        starts = [0]
        for span in spans:
            starts.append(_round_up_to_multiple(starts[-1] + span, _TENSOR_ALIGNMENT_BYTES))
        self.size_bytes = _round_up_to_multiple(starts[-1], BLOCK_BYTES)
        allocation = torch.zeros(self.size_bytes + BLOCK_BYTES, dtype=torch.uint8, pin_memory=is_pinned)
        begin = -allocation.data_ptr() % BLOCK_BYTES
        memory = allocation[begin : begin + self.size_bytes]
        self.bytes = memory.numpy().data.cast("B")
        self.tensors: Sample = tuple(
            memory[start : start + span].view(tensor.dtype).view(tensor.shape)
            for tensor, start, span in zip(example, starts, spans, strict=False)
        )

    def copy_batch(self, batch: Sequence[Tensor]) -> None:
        """Copy the tensors of a batch into this memory."""
        for target, tensor in zip(self.tensors, batch, strict=True):
            target.copy_(tensor)


def _round_up_to_multiple(size: int, multiple: int) -> int:
    """Round a size up to the next multiple of a number."""
    return -(-size // multiple) * multiple


class EmulatedLink:
    """Emulated storage link, through which reads pass one after another at a fixed rate. Several threads may use it."""

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s = bytes_per_s
        self._lock = threading.Lock()
        self._free_s = 0.0

    def schedule_read(self, size_bytes: int, requested_s: float) -> float:
        """Queue a read on the link, and return the time at which it will be finished, in seconds of the same clock.

        Reads that were queued earlier are finished first.

        Args:
            size_bytes: size of the read in bytes.
            requested_s: time of the request in seconds.
        """
        with self._lock:
            self._free_s = max(self._free_s, requested_s) + size_bytes / self._bytes_per_s
            return self._free_s

    def wait_until(self, due_s: float) -> None:
        """Wait until a given time (seconds of `time.perf_counter`)."""
        while (remaining_s := due_s - time.perf_counter()) > 0:
            time.sleep(remaining_s)


class Dataset:
    """Dataset of batches in a file without a name. Several threads may call `read_record` at once.

    Attributes:
        records: number of batches.
        is_direct: true if reads bypass the page cache.
        is_in_memory: true if the file system keeps its files in memory.
        is_paced: true if reads are limited to a rate.
    """

    def __init__(
        self,
        directory: Path,
        make_batch: Callable[[int], Sample],
        records: int,
        *,
        gb_per_s: float | None = None,
    ) -> None:
        """Write the batches to a new file, and check that the first one can be read back.

        Raises OSError, which names the directory, if the dataset cannot be written.

        Args:
            directory: directory of the file.
            make_batch: function that returns a batch by its number from 0.
            records: number of batches.
            gb_per_s: maximum read rate in GB/s; None for no limit.
        """
        started_s = time.perf_counter()
        self.directory = directory
        self.records = records
        self.is_direct = False
        self.is_paced = gb_per_s is not None
        self._link = None if gb_per_s is None else EmulatedLink(gb_per_s * 1e9)
        first_record = BatchMemory(make_batch(0), is_pinned=False)
        first_record.copy_batch(make_batch(0))
        self.record_bytes = first_record.size_bytes
        try:
            self._file = tempfile.TemporaryFile(dir=directory, buffering=0)  # noqa: SIM115  # stays open as long as this object
            self._write_records(first_record, make_batch)
            self.is_in_memory = find_file_system(directory)[0] in _MEMORY_FILE_SYSTEMS
        except OSError as error:
            raise OSError(
                error.errno,
                f"{error.strerror}: a dataset of {records * self.record_bytes / 2**20:.0f} MiB cannot be written here; free "
                "space, or reduce the option dataset_mib",
                str(directory),
            ) from error
        self._drop_page_cache()
        self._enable_direct_reads()
        self._verify_first_record(first_record, make_batch(0))
        self.written_s = time.perf_counter() - started_s

    def read_record(self, index: int, record: BatchMemory) -> None:
        """Read record `index` (modulo the number of records) into memory. Raises OSError if the file ends early."""
        requested_s = time.perf_counter()
        offset = index % self.records * self.record_bytes
        read_bytes = 0
        while read_bytes < self.record_bytes:
            part = record.bytes[read_bytes : read_bytes + _MAX_READ_BYTES]
            part_bytes = os.preadv(self._file.fileno(), [part], offset + read_bytes)
            if part_bytes == 0:
                raise OSError(
                    errno.EIO, "the dataset ends early, so another process has truncated it", str(self.directory)
                )
            read_bytes += part_bytes
        if not self.is_direct:
            self._drop_page_cache(offset, self.record_bytes)
        if self._link is not None:
            self._link.wait_until(self._link.schedule_read(self.record_bytes, requested_s))

    def _write_records(self, first_record: BatchMemory, make_batch: Callable[[int], Sample]) -> None:
        """Write all records to the file. For large datasets, a limited number of distinct records is repeated."""
        distinct = min(self.records, max(1, _MAX_DISTINCT_BYTES // self.record_bytes))
        distinct_records = [bytes(first_record.bytes)]
        scratch = BatchMemory(make_batch(0), is_pinned=False)
        for index in range(self.records):
            if 0 < index < distinct:
                scratch.copy_batch(make_batch(index))
                distinct_records.append(bytes(scratch.bytes))
            unwritten = memoryview(distinct_records[index % distinct])
            while unwritten:
                unwritten = unwritten[self._file.write(unwritten) :]
        os.fsync(self._file.fileno())

    def _enable_direct_reads(self) -> None:
        """Enable O_DIRECT if the file system supports it. Some file systems accept the flag but then refuse to read."""
        file = self._file.fileno()
        flags = fcntl.fcntl(file, fcntl.F_GETFL)
        record = BatchMemory((torch.empty(BLOCK_BYTES, dtype=torch.uint8),), is_pinned=False)
        try:
            fcntl.fcntl(file, fcntl.F_SETFL, flags | os.O_DIRECT)
            os.preadv(file, [record.bytes], 0)
        except OSError:
            fcntl.fcntl(file, fcntl.F_SETFL, flags)
        else:
            self.is_direct = True

    def _verify_first_record(self, first_record: BatchMemory, example: Sample) -> None:
        """Read the first record back, and raise OSError if it differs from the one that was written."""
        record = BatchMemory(example, is_pinned=False)
        self.read_record(0, record)
        if record.bytes != first_record.bytes:
            raise OSError(errno.EIO, "reads return other bytes than were written", str(self.directory))

    def _drop_page_cache(self, offset: int = 0, size_bytes: int = 0) -> None:
        """Drop a range of the file from the page cache. A size of 0 means the whole file."""
        # Otherwise every pass over the dataset except the first would measure the page cache.
        os.posix_fadvise(self._file.fileno(), offset, size_bytes, os.POSIX_FADV_DONTNEED)
