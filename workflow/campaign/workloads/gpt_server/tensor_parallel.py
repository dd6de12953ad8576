"""The processes that share a decoder: a group over gloo, in which the first process says what the next iteration computes."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from campaign.workloads.gpt_server.batching import MOST_TOKENS, Feed
from campaign.workloads.rank_launchers import free_port

_JOIN = timedelta(seconds=120)
_IDLE = timedelta(days=30)  # processes wait for the next request in a collective operation


def start_others(size: int, words: Sequence[str]) -> list[subprocess.Popen[bytes]]:
    """Start all processes of a group but the first, which is this one, and set this one's environment."""
    shared = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port("127.0.0.1"))}
    os.environ.update(shared, RANK="0")
    return [subprocess.Popen(words, env={**os.environ, "RANK": str(rank)}) for rank in range(1, size)]


class ProcessGroup:
    """The processes of this run, by RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        if environment["MASTER_ADDR"].startswith("127."):
            # Without an interface gloo resolves the host's name, which need not lead to this host.
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        self.rank, self.size = int(environment["RANK"]), int(environment["WORLD_SIZE"])
        address, port, own = environment["MASTER_ADDR"], int(environment["MASTER_PORT"]), self.rank == 0
        store = dist.TCPStore(address, port, self.size, is_master=own, timeout=_JOIN)  # type: ignore[attr-defined]
        dist.init_process_group("gloo", store=store, rank=self.rank, world_size=self.size, timeout=_IDLE)

    def sum(self, part: Tensor) -> Tensor:
        dist.all_reduce(part)
        return part

    def gather(self, part: Tensor) -> Sequence[Tensor]:
        parts = [torch.empty_like(part) for _ in range(self.size)] if self.rank == 0 else []
        dist.gather(part, parts or None)
        return parts


class Orders:
    """What an iteration computes, told by the first process to all others in one broadcast of a fixed length."""

    def __init__(self, slots: int) -> None:
        self._message = torch.zeros(1 + 3 * slots + MOST_TOKENS, dtype=torch.int64)

    def give(self, feeds: Sequence[Feed]) -> None:
        """In the first process. No feeds: it is the end."""
        numbers = [len(feeds)]
        for feed in feeds:
            numbers += (feed.slot, feed.start, len(feed.tokens))
        numbers += (token for feed in feeds for token in feed.tokens)
        self._message[: len(numbers)] = torch.tensor(numbers)
        dist.broadcast(self._message, 0)

    def follow(self, next_tokens: Callable[[Sequence[Feed]], Sequence[int]]) -> None:
        """In another process: compute all iterations until the end."""
        while True:
            dist.broadcast(self._message, 0)
            count, *numbers = self._message.tolist()
            if not count:
                return
            tokens = iter(numbers[3 * count :])
            parts = [numbers[3 * index : 3 * index + 3] for index in range(count)]
            next_tokens([Feed(slot, start, [next(tokens) for _ in range(length)]) for slot, start, length in parts])
