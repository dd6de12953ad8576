"""Cells of a campaign in the terms of the model of a step, and what is known beforehand of their parameters. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

from campaign.accelerators import peak_tflops
from campaign.config.system_file import DeviceModel, SystemFile
from campaign.documents.cell import Cell, Configuration
from campaign.model.description import Algorithm, ComputeTime, InputPath, RankPlace, StepCase, StepFacts, Topology
from campaign.model.parameters import DEFAULTS, EMULATED, UncertainNumber, named
from campaign.workloads.protocol import Workload

_UTILISATION, _UTILISATION_FACTOR = 0.25, 2.5
"""Share of a device's peak that training reaches, and the factor that this is known up to, where nobody measured it: 0.1 to 0.6 in
public tables."""
_PLAIN_FLOPS, _PLAIN_FACTOR = 1e12, 30.0
"""Rate of a device of which nothing is known."""
_RATE_FACTOR = 1.1
"""That rates of links in a system file are known up to."""
_TIMES = ("latency", "latency[network]", "launch", "fixed")


def case_of(system: SystemFile, workload: Workload, cell: Cell) -> StepCase | None:
    """The cell as the model sees it; None where a step's inside is not known. Seconds are those of the records: of real devices
    where the workload is a replay, else of emulated ones where the system emulates them."""
    facts = workload.step_facts(cell)
    if facts is None:
        return None
    at = cell.configuration
    path = None
    if facts.workers is not None:
        cores = min((group.cores for group in system.hosts), default=1)
        path = InputPath(at.storage, facts.workers, cores)
    return StepCase(
        facts.network,
        (_compute(system, workload, facts, cell, at.device),),
        cell.batch,
        cell.precision,
        topology_of(
            at,
            "nccl" if system.emulation is None else "ring" if workload.predicts else "gloo",
            in_drawer(system, at),
        ),
        facts.sharing,
        path,
        _memory_mib(system, at.device),
    )


def in_drawer(system: SystemFile, at: Configuration) -> int:
    """How many devices of a configuration a drawer of the fabric has; 0 where nothing says so."""
    return min((each.count for each in system.pool if each.model == at.device and each.drawer), default=0)


def topology_of(at: Configuration, algorithm: Algorithm = "nccl", in_drawer: int = 0) -> Topology:
    """Where the ranks of a configuration are: host by host, its own devices before those of the pool.

    in_drawer: devices of the pool that share a switch, which are taken drawer by drawer; 0 for all.
    """
    ranks = [
        RankPlace(
            number,
            place >= at.local_devices_per_host,
            (place - at.local_devices_per_host) // in_drawer if in_drawer and place >= at.local_devices_per_host else 0,
        )
        for number in range(at.hosts)
        for place in range(at.devices_used)
    ]
    return Topology(tuple(ranks), p2p=at.p2p, algorithm=algorithm)


def prior_of(
    system: SystemFile, workload: Workload | None, cases: Iterable[StepCase] = ()
) -> dict[str, UncertainNumber]:
    """What is known of the parameters before anything is measured. cases: those whose compute times were not measured get a
    parameter of their own."""
    emulation, replayed = system.emulation, workload is not None and workload.predicts
    prior = dict(DEFAULTS)
    scale = 1.0
    if emulation is not None:
        prior |= EMULATED
        scale = 1.0 if replayed else emulation.scale
        if replayed:
            slower = emulation.time_dilation
            prior |= {name: _faster(prior[name], slower) for name in _TIMES}
            # A single row is taken in proportion, and replicas have no Python.
            prior |= {name: UncertainNumber.known(0.0, prior[name].unit, "a replay") for name in ("start", "python")}
    for kind in ("local", "fabric", "network"):
        link = getattr(system.links, kind)
        if link is not None:
            rate = link.gb_per_s * 1e9 * scale
            prior[f"rate[{kind}]"] = UncertainNumber.about(
                rate, _RATE_FACTOR, "byte/s", link.source or "the system file"
            )
            if link.latency_us:
                latency = UncertainNumber.about(link.latency_us * 1e-6, 1.5, "s", link.source or "the system file")
                prior[f"latency[{kind}]"] = latency
    for name, place in system.storage.items():
        if place.gb_per_s is not None:
            rate = place.gb_per_s * 1e9 * scale
            prior[f"read[{name}]"] = UncertainNumber.about(
                rate, _RATE_FACTOR, "byte/s", place.source or "the system file"
            )
    of_system = {name: named(name, each.low, each.high, each.source) for name, each in system.parameters.items()}
    for case in cases:
        for compute in case.compute:
            if compute.factor is not None:
                prior[f"compute[{compute.key}]"] = UncertainNumber.about(
                    1.0, compute.factor, "1", "peak rates; assumed"
                )
    return prior if emulation else prior | of_system


def _faster(number: UncertainNumber, factor: float) -> UncertainNumber:
    return UncertainNumber(number.low / factor, number.high / factor, number.unit, number.source, number.scale)


def _compute(system: SystemFile, workload: Workload, facts: StepFacts, cell: Cell, device: str) -> ComputeTime:
    key = f"{device} {cell.precision}"
    if measured := facts.seconds.get(device):
        return ComputeTime(key, measured)
    per_sample = facts.flops or 3 * _PLAIN_FLOPS / 1e3
    pace = system.emulation.paces(cell.precision).get(device) if system.emulation and system.emulation.pace else None
    if pace is not None:
        # In proportion to the batch.
        each = per_sample / (pace * 1e9)
        return ComputeTime(key, {cell.batch: each * cell.batch, 2 * cell.batch: 2 * each * cell.batch})
    known = system.devices.get(device, DeviceModel())
    own = {str(precision): tflops for precision, tflops in known.peak_tflops.items()}
    peak = own.get(cell.precision) or peak_tflops(device, known.reported_as, cell.precision)
    rate = peak * 1e12 * _UTILISATION if peak else _PLAIN_FLOPS
    factor = _UTILISATION_FACTOR if peak and facts.flops else _PLAIN_FACTOR
    return ComputeTime(f"{workload.name} {key}", {cell.batch: per_sample * cell.batch / rate}, factor)


def _memory_mib(system: SystemFile, device: str) -> float | None:
    """Memory of a device model, by the system file or by its name: `a100-40gb`."""
    known = system.devices.get(device, DeviceModel())
    if known.memory_gib is not None:
        return known.memory_gib * 1024
    found = re.search(r"(?:^|[-_ ])(\d+)gb?(?:$|[-_ ])", device.lower())
    return float(found[1]) * 1024 if found and known.runs_on != "cpu" else None
