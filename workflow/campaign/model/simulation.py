"""The simulation of steps. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from campaign.model.collectives import Collectives
from campaign.model.description import ComputeTime, StepCase, interpolated
from campaign.model.memory import memory_mib
from campaign.model.parameters import Draws, Floats
from campaign.model.passes import Passes, divided_passes, elements, passes

_UPDATED_BYTES = 4
"""Of a weight, as the optimizer updates it and as zero1 gathers it."""
_QUANTILES = 512
_SIDE_BY_SIDE = 400
"""Cases; with more, arrays no longer fit a processor's cache."""


@dataclass(frozen=True)
class StepPrediction:
    """What a step of a case is like under each draw; all arrays have one value a draw.

    step_s: seconds of a step. parts: seconds of `compute` (both passes, slowed down or not), `optimizer`, `communication` (that
    compute does not hide), `input` (waiting), `copy` and `fixed`, which add up to step_s. communication_s: that collectives run,
    hidden or not. link_bytes: by kind of link, bytes of a step over all of its ports, in and out. sent_bytes: of one rank, the most
    of any. busy: share of the step that a device computes or runs collectives (what tools call utilisation). host_busy: share of
    the step that the cores of a host read and decode, None without an input path. memory_mib: on the fullest device, nan where
    activations are not known. fits: share of the draws that fit into memory, None where that is not known.
    """

    step_s: Floats
    parts: Mapping[str, Floats]
    communication_s: Floats
    link_bytes: Mapping[str, Floats]
    sent_bytes: float
    busy: Floats
    host_busy: Floats | None
    memory_mib: Floats
    fits: float | None


def simulate(case: StepCase, draws: Draws) -> StepPrediction:
    """A step of the case under each draw. KeyError: a rate that the topology needs has no value."""
    of = _step([case], [draws])
    memory = memory_mib(case, draws)
    known = case.memory_mib is not None and np.isfinite(memory).all()
    return StepPrediction(
        step_s=of.step_s,
        parts={
            "compute": of.done.compute_s,
            "optimizer": of.optimizer,
            "communication": of.done.end_s - of.done.compute_s + of.after,
            "input": of.step_s - of.busy - of.copy - of.fixed,
            "copy": of.copy,
            "fixed": of.fixed,
        },
        communication_s=of.done.collectives_s + of.after,
        link_bytes=_carried(case, of.moved, len(draws)),
        sent_bytes=sum(each.sent for each in of.moved),
        busy=of.busy / of.step_s,
        host_busy=None if case.input is None else _decode_s(case, draws) / case.input.cores / of.step_s,
        memory_mib=memory,
        fits=float(np.mean(memory <= case.memory_mib)) if known and case.memory_mib is not None else None,
    )


def steps_s(cases: Sequence[StepCase], draws: Sequence[Draws]) -> Floats:
    """[case][draw]: seconds of a step of many cases, each under as many draws of its own. Cases that differ in nothing but their
    batch, compute time and topology, and share one `Network`, are run side by side."""
    found = np.empty((len(cases), len(draws[0]) if cases else 0))
    alike: dict[object, list[int]] = {}
    for place, case in enumerate(cases):
        several = len(case.topology.ranks) > 1
        key = id(case.network), case.sharing, case.precision, several, case.topology.algorithm
        alike.setdefault(place if case.sharing.division else key, []).append(place)
    for places in alike.values():
        for some in (places[start : start + _SIDE_BY_SIDE] for start in range(0, len(places), _SIDE_BY_SIDE)):
            step_s = _step([cases[n] for n in some], [draws[n] for n in some]).step_s
            found[some] = step_s.reshape(len(some), -1)
    return found


class _Step(NamedTuple):
    """Both passes; seconds of the optimizer, of what is sent after it, of copies, of what is fixed, of what the step itself reads,
    and what its workers take for a batch at least; and all collectives."""

    done: Passes
    optimizer: Floats
    after: Floats
    copy: Floats
    fixed: Floats
    inline: Floats
    ahead: Floats
    moved: Sequence[Collectives]

    @property
    def busy(self) -> Floats:
        """Seconds that a device computes or runs collectives."""
        return self.done.end_s + self.optimizer + self.after

    @property
    def step_s(self) -> Floats:
        return np.maximum(self.busy + self.copy + self.fixed + self.inline, self.ahead)


def _step(cases: Sequence[StepCase], draws: Sequence[Draws]) -> _Step:
    """Of cases that are alike, as `steps_s` says, side by side: their draws stand one after the other."""
    together = draws[0]
    if len(cases) > 1:
        together = Draws({name: np.concatenate([each.values[name] for each in draws]) for name in together.values})
    # Of one topology and the same draws, all cases reduce alike.
    known: dict[tuple[int, int], Collectives | None] = {}
    for case, own in zip(cases, draws, strict=True):
        if (key := (id(case.topology), id(own))) not in known:
            known[key] = _reduces(case, own)
    reduces = [found for case, own in zip(cases, draws, strict=True) if (found := known[id(case.topology), id(own)])]
    reduce = reduces[0] if len(reduces) == 1 else Collectives.side_by_side(reduces) if reduces else None
    case, sharing = cases[0], cases[0].sharing
    micro = np.concatenate([compute_s(case, own) for case, own in zip(cases, draws, strict=True)])
    unit, moved = micro / case.network.total_share, [reduce] if reduce else []
    optimizer, after = unit * case.network.optimizer, np.zeros(len(together))
    if division := sharing.division:
        done, more = divided_passes(case, together, unit, reduce, division)
        moved += more
        optimizer = optimizer * division.microbatches / (division.tensor * division.pipeline)
    else:
        done = passes(case, together, unit, reduce)
    if reduce and sharing.parallel in ("zero1", "fsdp"):
        optimizer = optimizer / reduce.ranks
    if reduce and sharing.parallel == "zero1":
        gather = reduce.broadcasts if case.topology.algorithm == "gloo" else reduce.gather
        after = gather(_UPDATED_BYTES * elements(case.network.layers))
    beside = [_beside(case, own) for case, own in zip(cases, draws, strict=True)]
    copy, fixed, inline, ahead = map(np.concatenate, zip(*beside, strict=True))
    return _Step(done, optimizer, after, copy, fixed, inline, ahead, moved)


def _reduces(case: StepCase, draws: Draws) -> Collectives | None:
    """Collectives of gradients; None of one rank."""
    division = case.sharing.division
    groups = division.data_groups if division else (tuple(range(len(case.topology.ranks))),)
    if (ranks := len(groups[0])) == 1:
        return None
    traffic, growth = (draws.of(name, case.sharing.parallel) for name in ("traffic", "growth"))
    return Collectives.of(case.topology, groups, draws, traffic * (ranks / 2) ** growth)


def compute_s(case: StepCase, draws: Draws) -> Floats:
    """Seconds of a micro-step's passes and optimizer on the slowest device, nothing communicated."""
    division = case.sharing.division
    batch = case.batch / case.sharing.accumulation
    if division:
        batch = case.batch * division.tensor * division.pipeline / division.microbatches
    slowest = np.max([_device_s(each, batch, draws) for each in case.compute], axis=0)
    ranks = len(case.topology.ranks)
    if any(place.fabric for place in case.topology.ranks):
        slowest = slowest * (1 + draws.of("attach"))
    crowd = draws.of("crowd") * (case.topology.on_host - 1)
    return np.asarray(slowest * (1 + crowd) * (1 + draws.of("jitter") * slowest_of(ranks)))


def _device_s(compute: ComputeTime, batch: float, draws: Draws) -> Floats:
    factor = draws.of("compute", compute.key)
    if len(compute.seconds) > 1:
        return factor * interpolated(compute.seconds, batch)
    ((known, seconds),) = compute.seconds.items()
    start = draws.of("start", compute.key)
    return factor * seconds * (start + (1 - start) * batch / known)


def _beside(case: StepCase, draws: Draws) -> tuple[Floats, Floats, Floats, Floats]:
    """Seconds of copies, of what is fixed, of what the step itself reads, and what its workers take for a batch at least."""
    path, nothing, ranks = case.input, np.zeros(len(draws)), case.topology.on_host
    copy = case.batch * case.network.copied_bytes / draws.of("copy")
    fixed = draws.of("fixed") if len(case.topology.ranks) > 1 else nothing
    if path is None:
        return copy, fixed, nothing, nothing
    rate = draws.of("read", path.storage) if draws.has("read", path.storage) else np.inf
    read = nothing + case.batch * case.network.input_bytes * ranks / rate
    decode, cores = _decode_s(case, draws) / ranks, path.cores / ranks
    if path.workers == 0:
        return copy, fixed, read + decode / min(1.0, cores), nothing
    return copy, fixed, nothing, np.maximum(read, decode / min(path.workers, cores))


def _decode_s(case: StepCase, draws: Draws) -> Floats:
    """Seconds that the cores of a host take for all of its ranks."""
    return case.batch * case.network.decode_s * case.topology.on_host * draws.of("decode")


def _carried(case: StepCase, moved: Sequence[Collectives], draws: int) -> dict[str, Floats]:
    """Bytes by kind of link, with copies to devices behind the fabric."""
    found: dict[str, Floats] = {}
    for each in moved:
        for kind, size in each.carried.items():
            found[kind] = found.get(kind, 0.0) + size
    copied = case.batch * case.network.copied_bytes * sum(place.fabric for place in case.topology.ranks)
    for kind in ("fabric", "uplink") if copied else ():
        found[kind] = found.get(kind, 0.0) + np.full(draws, copied)
    return found


@cache
def slowest_of(ranks: int) -> float:
    """Mean of the largest of so many standard normal numbers: its quantile at a uniform u is that of one at u^(1/n)."""
    normal = NormalDist()
    return sum(normal.inv_cdf(((place + 0.5) / _QUANTILES) ** (1 / ranks)) for place in range(_QUANTILES)) / _QUANTILES
