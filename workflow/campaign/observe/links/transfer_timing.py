"""Timed messages between two ranks, and timed copies between a device and its host's memory. Needs torch.

Every message of a sample is answered. The sender measures from before the send until the receiver confirms with a word (4 bytes)
that all data has arrived. A GPU queues operations, and the clock stops after the last of them (`synchronize`). Times therefore
include the start of kernels, as in every program that uses NCCL.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

from campaign.workloads.trainer.rank_device import get_device_module

PING_PONGS = 10
"""Number of ping-pongs per latency sample."""
MAX_COPY_BYTES = 2**28
MAX_COPY_BYTES_ON_CPU = 2**26
"""Maximum size of a copy within main memory. It exceeds all caches, so larger copies give no further information."""


class MessageTimer:
    """Timer for messages between this rank and one other rank at a time."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._empty_word = torch.zeros(1, device=device)
        self._answer = torch.zeros(1, device=device)

    def create_buffer(self, size_bytes: int) -> torch.Tensor:
        """Create a buffer of zeros on the device. Zeros stay zero in repeated all-reduce sums."""
        return torch.zeros(size_bytes // 4, device=self.device)

    def synchronize(self) -> None:
        if self.device.type != "cpu":
            get_device_module(self.device.type).synchronize(self.device)

    def time_ping_pong(self, buffer: torch.Tensor, peer: int, begins: bool) -> float:
        """Return the one-way latency in seconds: half the median of several round trips, or half their mean on a GPU."""
        self.synchronize()
        trips_s = []
        started_s = before_s = time.perf_counter()
        for _ in range(PING_PONGS):
            if begins:
                self._send(buffer, peer)
                self._receive(buffer, peer)
            else:
                self._receive(buffer, peer)
                self._send(buffer, peer)
            trips_s.append((now_s := time.perf_counter()) - before_s)
            before_s = now_s
        self.synchronize()
        mean_trip_s = (time.perf_counter() - started_s) / PING_PONGS
        # A GPU queues the round trips, so only their total time is known. On a CPU, the median excludes disturbed round trips.
        return (median(trips_s) if self.device.type == "cpu" else mean_trip_s) / 2

    def time_one_way(self, buffer: torch.Tensor, peer: int, sends: bool) -> float:
        """Send or receive a message, and return the seconds until it was acknowledged (meaningful only at the sender)."""
        self.synchronize()
        started_s = time.perf_counter()
        if sends:
            self._send(buffer, peer)
            self._receive(self._empty_word, peer)
        else:
            self._receive(buffer, peer)
            self._send(self._empty_word, peer)
        self.synchronize()
        return time.perf_counter() - started_s

    def time_both_ways(
        self, send_buffer: torch.Tensor, receive_buffer: torch.Tensor, peer: int, _: bool = True
    ) -> float:
        """Exchange buffers with a peer, and return the seconds until both ranks have received the other's buffer completely."""
        self.synchronize()
        started_s = time.perf_counter()
        self._exchange_buffers(send_buffer, receive_buffer, peer)
        # Each rank sends its word after it has received all data, so the word of the peer confirms that the peer has, too.
        self._exchange_buffers(self._empty_word, self._answer, peer)
        self.synchronize()
        return time.perf_counter() - started_s

    # Even single operations are sent as a batch, because NCCL then uses the communicator of all ranks instead of one per pair.
    def _send(self, buffer: torch.Tensor, peer: int) -> None:
        _run_operations(dist.P2POp(dist.isend, buffer, peer))

    def _receive(self, buffer: torch.Tensor, peer: int) -> None:
        _run_operations(dist.P2POp(dist.irecv, buffer, peer))

    def _exchange_buffers(self, send_buffer: torch.Tensor, receive_buffer: torch.Tensor, peer: int) -> None:
        _run_operations(dist.P2POp(dist.isend, send_buffer, peer), dist.P2POp(dist.irecv, receive_buffer, peer))


def _run_operations(*operations: dist.P2POp) -> None:
    for work in dist.batch_isend_irecv(list(operations)):
        work.wait()


def time_copies(device: torch.device, size_bytes: int, warmup: int, repeats: int) -> tuple[list[float], list[float]]:
    """Time repeated copies to a device and from it. Return both lists of durations in seconds.

    Host memory is pinned. If the device is a CPU, copies are made within main memory.
    """
    host = torch.zeros(size_bytes // 4, pin_memory=device.type != "cpu")
    device_buffer = torch.zeros(size_bytes // 4, device=device)
    time_copy = _time_by_clock if device.type == "cpu" else partial(_time_by_events, get_device_module(device.type))
    to_device = [time_copy(lambda: device_buffer.copy_(host, non_blocking=True)) for _ in range(warmup + repeats)]
    from_device = [time_copy(lambda: host.copy_(device_buffer, non_blocking=True)) for _ in range(warmup + repeats)]
    return to_device[warmup:], from_device[warmup:]


def _time_by_events(module: Any, copy: Callable[[], object]) -> float:
    before, after = module.Event(enable_timing=True), module.Event(enable_timing=True)
    before.record()
    copy()
    after.record()
    after.synchronize()
    return float(before.elapsed_time(after)) * 1e-3


def _time_by_clock(copy: Callable[[], object]) -> float:
    started_s = time.perf_counter()
    copy()
    return time.perf_counter() - started_s
