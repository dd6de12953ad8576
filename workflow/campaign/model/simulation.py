"""The simulation of steps. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist

import numpy as np

from campaign.model.collectives import Collectives
from campaign.model.description import ComputeTime, StepCase, interpolated
from campaign.model.memory import memory_mib
from campaign.model.parameters import Draws, Floats
from campaign.model.passes import divided_passes, elements, passes

_UPDATED_BYTES = 4
"""Of a weight, as the optimizer updates it and as zero1 gathers it."""
_QUANTILES = 512


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
    sharing, division, ranks = case.sharing, case.sharing.division, len(case.topology.ranks)
    groups = division.data_groups if division else (tuple(range(ranks)),)
    reduce = Collectives(case.topology, groups, draws) if len(groups[0]) > 1 else None
    micro = compute_s(case, draws)
    unit, nothing = micro / case.network.total_share, np.zeros(len(draws))
    moved = [reduce] if reduce else []
    if division:
        done, more = divided_passes(case, draws, unit, reduce, division)
        moved += more
        optimizer = unit * case.network.optimizer * division.microbatches / (division.tensor * division.pipeline)
    else:
        done = passes(case, draws, unit, reduce)
        optimizer = unit * case.network.optimizer
    after = nothing
    if reduce and sharing.parallel in ("zero1", "fsdp"):
        optimizer = optimizer / reduce.ways.ranks
    if reduce and sharing.parallel == "zero1":
        gather = reduce.broadcasts if case.topology.algorithm == "gloo" else reduce.gather
        after = gather(_UPDATED_BYTES * elements(case.network.layers))
    copy = case.batch * case.network.copied_bytes / draws.of("copy")
    fixed = draws.of("fixed") if ranks > 1 else nothing
    inline, ahead, host_s = _input(case, draws)
    busy = done.end_s + optimizer + after + copy
    worked = busy + fixed + inline
    step = np.maximum(worked, ahead)
    carried = _carried(case, moved, len(draws))
    memory = memory_mib(case, draws)
    known = case.memory_mib is not None and np.isfinite(memory).all()
    return StepPrediction(
        step_s=step,
        parts={
            "compute": done.compute_s,
            "optimizer": optimizer,
            "communication": done.end_s - done.compute_s + after,
            "input": step - worked + inline,
            "copy": copy,
            "fixed": fixed,
        },
        communication_s=done.collectives_s + after,
        link_bytes=carried,
        sent_bytes=sum(each.sent for each in moved),
        busy=(busy - copy) / step,
        host_busy=None if host_s is None else host_s / step,
        memory_mib=memory,
        fits=float(np.mean(memory <= case.memory_mib)) if known and case.memory_mib is not None else None,
    )


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
