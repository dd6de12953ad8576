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
    reduce = _reduces(case, draws)
    done, optimizer, after, more = _worked(case, draws, compute_s(case, draws), reduce)
    moved = [*([reduce] if reduce else []), *more]
    beside = _beside(case, draws)
    busy = done.end_s + optimizer + after + beside.copy
    worked = busy + beside.fixed + beside.inline
    step = np.maximum(worked, beside.ahead)
    carried = _carried(case, moved, len(draws))
    memory = memory_mib(case, draws)
    known = case.memory_mib is not None and np.isfinite(memory).all()
    return StepPrediction(
        step_s=step,
        parts={
            "compute": done.compute_s,
            "optimizer": optimizer,
            "communication": done.end_s - done.compute_s + after,
            "input": step - worked + beside.inline,
            "copy": beside.copy,
            "fixed": beside.fixed,
        },
        communication_s=done.collectives_s + after,
        link_bytes=carried,
        sent_bytes=sum(each.sent for each in moved),
        busy=(busy - beside.copy) / step,
        host_busy=None if beside.host is None else beside.host / step,
        memory_mib=memory,
        fits=float(np.mean(memory <= case.memory_mib)) if known and case.memory_mib is not None else None,
    )


def steps_s(cases: Sequence[StepCase], draws: Sequence[Draws]) -> Floats:
    """[case][draw]: seconds of a step of many cases, each under as many draws of its own. Cases that differ in nothing but their
    batch, compute time and topology, and share one `Network`, are run side by side."""
    found = np.empty((len(cases), len(draws[0]) if cases else 0))
    alike: dict[object, list[int]] = {}
    for place, case in enumerate(cases):
        if case.sharing.division:
            found[place] = simulate(case, draws[place]).step_s
        else:
            several = len(case.topology.ranks) > 1
            key = id(case.network), case.sharing, case.precision, several, case.topology.algorithm
            alike.setdefault(key, []).append(place)
    for places in alike.values():
        for some in (places[start : start + _SIDE_BY_SIDE] for start in range(0, len(places), _SIDE_BY_SIDE)):
            found[some] = _side_by_side([cases[n] for n in some], [draws[n] for n in some])
    return found


def _side_by_side(cases: Sequence[StepCase], draws: Sequence[Draws]) -> Floats:
    together = Draws({name: np.concatenate([each.values[name] for each in draws]) for name in draws[0].values})
    # Of one topology and the same draws, all cases reduce alike.
    known: dict[tuple[int, int], Collectives | None] = {}
    for case, own in zip(cases, draws, strict=True):
        if (key := (id(case.topology), id(own))) not in known:
            known[key] = _reduces(case, own)
    reduces = [found for case, own in zip(cases, draws, strict=True) if (found := known[id(case.topology), id(own)])]
    micro = np.concatenate([compute_s(case, own) for case, own in zip(cases, draws, strict=True)])
    reduce = Collectives.side_by_side(reduces, together) if reduces else None
    done, optimizer, after, _ = _worked(cases[0], together, micro, reduce)
    busy = (done.end_s + optimizer + after).reshape(len(cases), -1)
    rest = [_beside(case, own) for case, own in zip(cases, draws, strict=True)]
    worked = busy + np.array([each.copy + each.fixed + each.inline for each in rest])
    return np.asarray(np.maximum(worked, [each.ahead for each in rest]))


def _reduces(case: StepCase, draws: Draws) -> Collectives | None:
    """Collectives of gradients; None of one rank."""
    division = case.sharing.division
    groups = division.data_groups if division else (tuple(range(len(case.topology.ranks))),)
    if (ranks := len(groups[0])) == 1:
        return None
    traffic, growth = (draws.of(name, case.sharing.parallel) for name in ("traffic", "growth"))
    return Collectives(case.topology, groups, draws).slowed(traffic * (ranks / 2) ** growth)


def _worked(
    case: StepCase, draws: Draws, micro: Floats, reduce: Collectives | None
) -> tuple[Passes, Floats, Floats, list[Collectives]]:
    """Both passes, seconds of the optimizer and of what is sent after it, and collectives beside `reduce`. micro: seconds of
    compute of a micro-step."""
    unit, division = micro / case.network.total_share, case.sharing.division
    if division:
        done, more = divided_passes(case, draws, unit, reduce, division)
        optimizer = unit * case.network.optimizer * division.microbatches / (division.tensor * division.pipeline)
    else:
        done, more = passes(case, draws, unit, reduce), []
        optimizer = unit * case.network.optimizer
    after = np.zeros(len(draws))
    if reduce and case.sharing.parallel in ("zero1", "fsdp"):
        optimizer = optimizer / reduce.ranks
    if reduce and case.sharing.parallel == "zero1":
        gather = reduce.broadcasts if case.topology.algorithm == "gloo" else reduce.gather
        after = gather(_UPDATED_BYTES * elements(case.network.layers))
    return done, optimizer, after, more


class _Beside(NamedTuple):
    """Seconds of a step beside compute and collectives: copies, what is fixed, what the step itself reads, and what its workers
    take for a batch at least; host: that a host's cores are busy, as a share of all of them."""

    copy: Floats
    fixed: Floats
    inline: Floats
    ahead: Floats
    host: Floats | None


def _beside(case: StepCase, draws: Draws) -> _Beside:
    copy = case.batch * case.network.copied_bytes / draws.of("copy")
    fixed = draws.of("fixed") if len(case.topology.ranks) > 1 else np.zeros(len(draws))
    return _Beside(copy, fixed, *_input(case, draws))


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


def _input(case: StepCase, draws: Draws) -> tuple[Floats, Floats, Floats | None]:
    """Seconds that the step itself reads, that its workers take for a batch at least, and that a host's cores are busy, as a
    share of all of them."""
    path, nothing = case.input, np.zeros(len(draws))
    if path is None:
        return nothing, nothing, None
    ranks = case.topology.on_host
    rate = draws.of("read", path.storage) if draws.has("read", path.storage) else np.full(len(draws), np.inf)
    read = case.batch * case.network.input_bytes * ranks / rate
    decode = case.batch * case.network.decode_s * draws.of("decode")
    cores, busy = path.cores / ranks, decode * ranks / path.cores
    if path.workers == 0:
        return read + decode / min(1.0, cores), nothing, busy
    return nothing, np.maximum(read, decode / min(path.workers, cores)), busy


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
