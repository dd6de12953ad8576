"""Link measurements of one rank: every pair in turn, size by size, within the time budget. Needs torch.

One pair is measured at a time. All other ranks wait for their turn over gloo, even if devices use NCCL, so that their devices are
idle. Rank 0 decides by its clock which sizes fit. Every turn transmits its decision, so that all ranks measure the same sizes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from itertools import combinations, permutations
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from campaign.common.accelerators import ACCELERATORS
from campaign.observe.links.spec import CollectiveTimes, LeftOut, LinkSpec, PairTimes, RankLinks
from campaign.observe.links.transfer_timing import MAX_COPY_BYTES, MAX_COPY_BYTES_ON_CPU, MessageTimer, time_copies
from campaign.workloads.trainer.rank_device import bind_to_socket, choose_device, get_device_module
from campaign.workloads.trainer.rank_interface import RankEnvironment

_BUFFERS_PER_SIZE = 3
"""Maximum number of buffers of one message size that a rank holds at once."""
PairSchedule = Callable[[range, int], Iterable[tuple[int, ...]]]
_INITIAL_TIME_RATIO = 2.0
"""Assumed ratio of the time for one size to the time of its one-way messages, before the first size is measured."""
_MAX_SIZE_RATIO = 16
"""Maximum ratio of a message size to the preceding one."""
_NUMBER_BYTES = 4


def build_size_ladder(sizes_bytes: Sequence[int]) -> Iterator[tuple[int, bool]]:
    """Yield message sizes in ascending order as pairs (bytes, whether the size is measured).

    Sizes that are not measured are auxiliary: a message of such a size is sent only once. They ensure that each size is at most
    16 times the preceding one, so that the first message over a slow link never takes minutes.
    """
    previous_size = None
    for size in sorted(set(sizes_bytes)):
        while previous_size is not None and size > previous_size * _MAX_SIZE_RATIO:
            previous_size = previous_size * _MAX_SIZE_RATIO // _NUMBER_BYTES * _NUMBER_BYTES
            if previous_size < size:
                yield previous_size, False
        yield size, True
        previous_size = size


@dataclass
class PassForecast:
    """Forecast of how long a pass over all pairs of devices takes, by message size.

    The duration is linear in the size, because each message takes latency + size / bandwidth (Hockney 1994).
    """

    passes: list[tuple[int, float]] = field(default_factory=list)

    def add_pass(self, size_bytes: int, pass_s: float) -> None:
        """Add the duration (seconds) of a measured pass. Passes must be added in ascending order of size."""
        self.passes.append((size_bytes, pass_s))

    def predict_pass_s(self, size_bytes: int) -> float:
        """Predict the duration (seconds) of a pass with a larger message size. The result is 0 before the first pass.

        The duration is extrapolated from the last two sizes. The result is never less than the last duration, because noise can
        give the line a negative slope if latency dominates.
        """
        if not self.passes:
            return 0.0
        size, seconds = self.passes[-1]
        if len(self.passes) == 1:
            return seconds
        size_before, seconds_before = self.passes[-2]
        slope = (seconds - seconds_before) / (size - size_before)
        return seconds + max(0.0, slope) * (size_bytes - size)


class RankMeasurement:
    """Link measurement by one rank.

    `run` takes the measurements, and `build_result` returns them, even after an error. `leave_group` must be called at the end.
    """

    def __init__(self, spec: LinkSpec, place: RankEnvironment) -> None:
        self.spec = spec
        self.place = place
        self.device = torch.device("cpu")
        self._started_s = time.monotonic()
        self._latency: list[PairTimes] = []
        self._unidirectional: list[PairTimes] = []
        self._bidirectional: list[PairTimes] = []
        self._allreduce: list[CollectiveTimes] = []
        self._copies: list[CollectiveTimes] = []
        self._left_out: list[LeftOut] = []
        self._forecast = PassForecast()
        self._share = _INITIAL_TIME_RATIO
        self._stopped = False

    def run(self) -> None:
        """Measure all links of this rank's device within the time budget. Exceptions of torch are not caught."""
        torch.set_num_threads(1)
        self.device = choose_device(self.spec.device, self.place.local_rank)
        bind_to_socket(self.device)  # The ranks of runs are bound in the same way.
        self._join_group()
        self._exchange = MessageTimer(self.device)
        self._measure_host_device()
        if self.place.world_size == 1:
            return
        self._check_allreduce()
        for number, (size, counts) in enumerate(build_size_ladder(self.spec.sizes_bytes)):
            if not self._fits_in_memory(size):
                self._leave_out(size, "does not fit into the memory of a rank", counts)
            elif not self._share_decision(number == 0 or self._fits_in_time(size, counts)):
                self._leave_out(size, f"would exceed the time limit of the stage ({self.spec.budget_s:g} s)", counts)
            elif not (self._measure_size(size, first=number == 0) if counts else self._probe_size(size)):
                self._leave_out(size, f"stopped at the time limit of the stage ({self.spec.budget_s:g} s)", counts)

    def build_result(self, error: str = "") -> RankLinks:
        """Build the result of this rank from its measurements so far, with an error message if the measurement failed."""
        to_device, from_device = self._copies or (None, None)
        return RankLinks(
            rank=self.place.rank,
            world_size=self.place.world_size,
            error=error,
            backend=ACCELERATORS[self.spec.device].backend,
            torch_version=torch.__version__,
            device_name="CPU process" if self._gpus is None else self._gpus.get_device_name(self.device),
            took_s=time.monotonic() - self._started_s,
            latency=tuple(self._latency),
            unidirectional=tuple(self._unidirectional),
            bidirectional=tuple(self._bidirectional),
            allreduce=tuple(self._allreduce),
            to_device=to_device,
            from_device=from_device,
            p2p=self._list_reachable_peers(),
            left_out=tuple(self._left_out),
        )

    def leave_group(self) -> None:
        """Leave the process group that connects all ranks."""
        if dist.is_initialized():
            dist.destroy_process_group()

    @property
    def _gpus(self) -> Any:
        """Module of torch for this kind of device, such as `torch.cuda`, or None for CPUs."""
        return None if self.device.type == "cpu" else get_device_module(self.device.type)

    def _join_group(self) -> None:
        kind = ACCELERATORS[self.spec.device]
        if self.place.world_size > 1:
            dist.init_process_group(
                "gloo" if self.device.type == "cpu" else f"cpu:gloo,{self.device.type}:{kind.backend}",
                rank=self.place.rank,
                world_size=self.place.world_size,
                timeout=timedelta(seconds=self.spec.time_out_s),
            )

    def _share_decision(self, decision: bool) -> bool:
        """Wait for all ranks, and return the decision of rank 0 on every rank."""
        flag = torch.tensor([int(decision and self.place.rank == 0)])
        dist.all_reduce(flag)
        return bool(flag.item())

    def _wait_for_turn(self, may_stop: bool) -> bool:
        """Wait for all ranks before a turn. Return False if rank 0 stops the measurement because the time has run out."""
        return self._share_decision(not may_stop or self._remaining_s() > 0)

    def _remaining_s(self) -> float:
        return self.spec.budget_s - (time.monotonic() - self._started_s)

    def _fits_in_time(self, size: int, is_measured: bool) -> bool:
        """Return whether a pass with this message size is expected to finish within the remaining time."""
        times = (self.spec.warmup + self.spec.repeats) * self._share if is_measured else 1.0
        return self._forecast.predict_pass_s(size) * times <= self._remaining_s()

    def _fits_in_memory(self, size: int) -> bool:
        """Return whether all ranks have enough free memory for messages of this size (bytes)."""
        # Hosts whose devices are CPU processes may all be on one machine.
        is_shared = self._gpus is None
        free = (
            _read_available_memory_bytes() // self.place.world_size
            if is_shared
            else self._gpus.mem_get_info(self.device)[0]
        )
        flag = torch.tensor([int(_BUFFERS_PER_SIZE * size > free)])
        dist.all_reduce(flag)
        return not flag.item()

    def _leave_out(self, size: int, reason: str, counts: bool) -> None:
        """Drop the measurements of a message size. If the size `counts`, list it as left out with the reason."""
        # All ranks stop between the same two pairs, when some have already measured this size with some peers.
        time_lists: list[list[Any]] = [self._unidirectional, self._bidirectional, self._allreduce]
        for times in time_lists:
            times[:] = [pair_times for pair_times in times if pair_times.size_bytes != size]
        if counts:
            self._left_out.append(LeftOut(size_bytes=size, why=reason))

    def _probe_size(self, size: int) -> bool:
        """Send one message of an auxiliary size between each pair, to improve the forecast for the next size."""
        buffer = self._exchange.create_buffer(size)
        started_s = time.monotonic()
        for peer, sends in self._iterate_turns(permutations, may_stop=True):
            self._exchange.time_one_way(buffer, peer, sends)
        self._forecast.add_pass(size, time.monotonic() - started_s)
        return not self._stopped

    def _measure_size(self, size: int, first: bool) -> bool:
        """Measure all links with one message size. Return False if the time ran out.

        The first size is always measured, because latencies are derived from it.
        """
        started_s = time.monotonic()
        exchange, send_buffer, receive_buffer = (
            self._exchange,
            self._exchange.create_buffer(size),
            self._exchange.create_buffer(size),
        )
        if not self._measure_pairs(
            self._unidirectional, size, permutations, partial(exchange.time_one_way, send_buffer), not first
        ):
            return False
        one_way_s = time.monotonic() - started_s
        both_ways = partial(exchange.time_both_ways, send_buffer, receive_buffer)
        if not (
            self._measure_pairs(self._bidirectional, size, combinations, both_ways, not first)
            and self._measure_allreduce(send_buffer, first)
        ):
            return False
        self._forecast.add_pass(size, one_way_s / (self.spec.warmup + self.spec.repeats))
        self._share = max(1.0, (time.monotonic() - started_s) / one_way_s)
        return not first or self._measure_pairs(
            self._latency, size, permutations, partial(exchange.time_ping_pong, send_buffer), False
        )

    def _measure_pairs(
        self,
        pair_times: list[PairTimes],
        size: int,
        pairs: PairSchedule,
        sample: Callable[[int, bool], float],
        may_stop: bool,
    ) -> bool:
        """Measure message times between all pairs in turn, and return False if the time ran out.

        Of each pair, the rank that begins stores the times.
        """
        for peer, begins in self._iterate_turns(pairs, may_stop):
            times = self._repeat_sample(partial(sample, peer, begins))
            if begins:
                pair_times.append(PairTimes(peer=peer, size_bytes=size, times_s=times))
        return not self._stopped

    def _iterate_turns(self, pairs: PairSchedule, may_stop: bool) -> Iterator[tuple[int, bool]]:
        """Yield the peer of this rank in each turn, and whether this rank begins. Sets `_stopped` if the time ran out."""
        rank = self.place.rank
        for pair in pairs(range(self.place.world_size), 2):
            self._stopped = not self._wait_for_turn(may_stop)
            if self._stopped:
                return
            if rank in pair:
                yield sum(pair) - rank, rank == pair[0]

    def _measure_allreduce(self, buffer: torch.Tensor, first: bool) -> bool:
        """Time all-reduce operations of one size over all ranks, and return False if the time ran out."""
        times = []
        for _ in range(self.spec.warmup + self.spec.repeats):
            if not self._wait_for_turn(may_stop=not first):
                return False
            started_s = time.perf_counter()
            dist.all_reduce(buffer)
            self._exchange.synchronize()
            times.append(time.perf_counter() - started_s)
        self._allreduce.append(CollectiveTimes(size_bytes=buffer.nbytes, times_s=tuple(times[self.spec.warmup :])))
        return True

    def _check_allreduce(self) -> None:
        """Run a first all-reduce, which creates the communicator. Raises RuntimeError if the sum is wrong."""
        ones = torch.ones(2, device=self.device)
        dist.all_reduce(ones)
        if wrong_sums := [value for value in ones.tolist() if value != self.place.world_size]:
            raise RuntimeError(f"an all-reduce of ones over {self.place.world_size} ranks gave {wrong_sums[0]}")

    def _repeat_sample(self, sample: Callable[[], float]) -> tuple[float, ...]:
        return tuple([sample() for _ in range(self.spec.warmup + self.spec.repeats)][self.spec.warmup :])

    def _measure_host_device(self) -> None:
        """Time copies between host and device, one device at a time, because devices of a host share the path to memory."""
        max_bytes = MAX_COPY_BYTES_ON_CPU if self._gpus is None else MAX_COPY_BYTES
        size = min(max_bytes, self.spec.sizes_bytes[-1])
        for rank in range(self.place.world_size):
            if self.place.world_size > 1:
                self._wait_for_turn(may_stop=False)
            if rank == self.place.rank:
                copy_times = time_copies(self.device, size, self.spec.warmup, self.spec.repeats)
                self._copies = [CollectiveTimes(size_bytes=size, times_s=tuple(times)) for times in copy_times]

    def _list_reachable_peers(self) -> dict[int, bool]:
        """Check for each peer on the same host whether this device can access its memory. The result is by rank."""
        gpus = self._gpus
        if gpus is None or gpus.device_count() == 1:
            return {}
        own_host, device_index = self.spec.hosts[self.place.rank], self.device.index
        ranks_on_host = [rank for rank, host in enumerate(self.spec.hosts) if host == own_host]
        return {
            rank: gpus.can_device_access_peer(device_index, index)
            for rank in ranks_on_host
            if (index := device_index + rank - self.place.rank) != device_index and 0 <= index < gpus.device_count()
        }


def _read_available_memory_bytes() -> int:
    lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
