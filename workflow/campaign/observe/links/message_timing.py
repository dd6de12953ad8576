"""Messages between two ranks, timed so that what counts is their arrival. Needs torch.

Every message of a sample is answered: the clock of the sender runs from before the send until the receiver's word (4 bytes) that
all of it is there. On CUDA operations are queued on the device, and the clock stops after the last of them (`synchronize`), so that
times hold the start of kernels, as they do in every program that uses NCCL.
"""

from __future__ import annotations

import time
from statistics import median

import torch
import torch.distributed as dist

PING_PONGS = 10  # in one latency sample


class Exchange:
    """This rank's end of messages with one other rank at a time."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._word = torch.zeros(1, device=device)
        self._answer = torch.zeros(1, device=device)

    def buffer(self, size_bytes: int) -> torch.Tensor:
        """Zeros: sums of them stay what they are."""
        return torch.zeros(size_bytes // 4, device=self.device)

    def synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def ping_pong(self, buffer: torch.Tensor, peer: int, *, begins: bool) -> float:
        """Seconds one way: half of a message there and back. On CUDA the mean of several that are queued, else their median."""
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
        whole_s = (time.perf_counter() - started_s) / PING_PONGS
        # On a queue only the whole has an end; elsewhere a trip during which something else ran says nothing of the link.
        return (whole_s if self.device.type == "cuda" else median(trips_s)) / 2

    def one_way(self, buffer: torch.Tensor, peer: int, *, sends: bool) -> float:
        """Seconds until the receiver's word is back; of no meaning at the receiver."""
        self.synchronize()
        started_s = time.perf_counter()
        if sends:
            self._send(buffer, peer)
            self._receive(self._word, peer)
        else:
            self._receive(buffer, peer)
            self._send(self._word, peer)
        self.synchronize()
        return time.perf_counter() - started_s

    def both_ways(self, out: torch.Tensor, into: torch.Tensor, peer: int) -> float:
        """Seconds until both have all of each other's buffer."""
        self.synchronize()
        started_s = time.perf_counter()
        self._swap(out, into, peer)
        # Sent when this rank has received all, so that receiving the other's says the same of the other.
        self._swap(self._word, self._answer, peer)
        self.synchronize()
        return time.perf_counter() - started_s

    # In batches also where it is one operation: NCCL then uses the communicator of all ranks and makes none for each pair.
    def _send(self, buffer: torch.Tensor, peer: int) -> None:
        _wait(dist.P2POp(dist.isend, buffer, peer))

    def _receive(self, buffer: torch.Tensor, peer: int) -> None:
        _wait(dist.P2POp(dist.irecv, buffer, peer))

    def _swap(self, out: torch.Tensor, into: torch.Tensor, peer: int) -> None:
        _wait(dist.P2POp(dist.isend, out, peer), dist.P2POp(dist.irecv, into, peer))


def _wait(*operations: dist.P2POp) -> None:
    for work in dist.batch_isend_irecv(list(operations)):
        work.wait()
