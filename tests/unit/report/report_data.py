"""A synthetic campaign with effects that are known, for tests of everything right of the records.

Truth (samples per second): a device gives `RATES[workload]`; n devices on one host scale with 0.95 per doubling; two
hosts lose 8 %, four hosts 13 %; fp16 is 1.9 times fp32; hybrid costs 3 % of time, fabric 7 % (bert: 60 %); devices that
are composed but not used cost nothing; storage over the fabric costs 2 %. Noise is 0.5 % (normal, seeded). bert at
batch 32 in fp32 does not fit into memory; one cell was never run. A lease is idle for 0.5 s between runs, four hosts for 2 s.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np

from campaign.analysis.tables.cells import CellPlan
from campaign.common.files import hash_document
from campaign.spec.cell import Cell, Configuration
from campaign.spec.record import Failure, Record, RecordedCell

HOSTILE = "<script>alert('x')</script>"
RATES = {"bert": 50.0, "resnet": 400.0}
SPREAD = {1: 1.0, 2: 0.92, 4: 0.87}
ATTACH_TIME = {
    "resnet": {"local": 1.0, "hybrid": 1.03, "fabric": 1.07},
    "bert": {"local": 1.0, "hybrid": 1.3, "fabric": 1.6},
}
PRECISION = {"fp32": 1.0, "fp16": 1.9}
BASELINE = "local-4"


def configuration(
    hosts: int = 1,
    each: int = 4,
    used: int | None = None,
    attach: str = "fabric",
    storage: str = "local",
    name: str = "",
) -> Configuration:
    """A configuration named after its shape, unless a name is given."""
    count = each if used is None else used
    local = {"local": each, "hybrid": each // 2, "fabric": 0}[attach]
    part = "" if count == each else f"-use{count}"
    disk = "" if storage == "local" else f"-{storage}"
    shape = f"{attach}-{each}" if hosts == 1 else f"{attach}-{hosts}x{each}"
    return Configuration(name or f"{shape}{part}{disk}", hosts, each, local, count, "A100", attach, storage)  # type: ignore[arg-type]


def cell(at: Configuration, workload: str = "resnet", batch: int = 8, precision: str = "fp32", **options: Any) -> Cell:
    identity = hash_document({**at.shape(), "w": workload, "b": batch, "p": precision, **options})
    return Cell(identity, at, workload, batch, precision, options)


def configurations() -> list[Configuration]:
    return [
        *(configuration(each=n, attach="local") for n in (1, 2, 4)),
        configuration(attach="hybrid"),
        *(configuration(each=n) for n in (1, 2, 4, 8)),
        configuration(hosts=2, each=2),
        configuration(hosts=4, each=1),
        configuration(hosts=2, each=4),
        configuration(each=8, used=2),
        configuration(each=8, used=4),
        configuration(attach="local", storage="fabric-nvme"),
    ]


def planned(repetitions: int = 4) -> list[CellPlan]:
    """The plan: every configuration x workload x batch x precision."""
    plan = [
        CellPlan(cell(at, workload, batch, precision), repetitions, f"lease-{at.name}")
        for at in configurations()
        for workload in RATES
        for batch in (8, 16, 32)
        for precision in PRECISION
    ]
    never = dict.fromkeys(range(1, repetitions + 1), "lease failed: fabric did not answer")
    last = plan[-1]
    return [*plan[:-1], CellPlan(last.cell, last.repetitions, last.lease, never)]


def true_rate(of: Cell) -> float:
    """Throughput of a cell without noise, samples per second over all ranks."""
    at = of.configuration
    scale = at.ranks * (0.95 + 0.001 * of.batch) ** math.log2(at.ranks)
    storage = 1.02 if at.storage == "fabric-nvme" else 1.0
    time = ATTACH_TIME[of.workload][at.attach] * storage
    return RATES[of.workload] * scale * SPREAD[at.hosts] * PRECISION[of.precision] * (of.batch / 32) ** 0.1 / time


def record(of: Cell, repetition: int, rate: float | None, status: str = "ok", **changes: Any) -> Record:
    at = of.configuration
    steps = tuple(tuple(of.batch_global / (rate or 1.0) for _ in range(20)) for _ in range(at.ranks))
    document = {
        "cell_id": of.id,
        "repetition": repetition,
        "cell": RecordedCell.from_cell(of),
        "specification": {"warmup_steps": 5},
        "status": status,
        "failure": None if status == "ok" else Failure(reason=f"{status} at step 1 {HOSTILE}"),
        "started": 1_700_000_000.0 + repetition * 100,
        "ended": 1_700_000_020.0 + repetition * 100,
        "lease_id": f"lease-{at.name}",
        "hosts": tuple(f"host{n}" for n in range(at.hosts)),
        "composition": "c" * 20,
        "environment": "e" * 20,
        "campaign": "a" * 20,
        "throughput_per_s": rate,
        "step_times_s": steps if rate else (),
        "window_s": tuple(sum(times) for times in steps) if rate else (),
        "metrics": metrics(of, rate),
        "flags": ("oversubscribed",) if at.ranks > 4 else (),
        "log": f"logs/lease-{at.name}/{of.id}.{repetition}.log",
    }
    return Record.model_validate({**document, **changes})


PARAMETERS = {"bert": 109e6, "resnet": 25.6e6}
SAMPLE_GFLOP = {"bert": 212.0, "resnet": 24.5}
PEAK_TFLOPS = {"fp32": 19.5, "fp16": 312.0}


def metrics(of: Cell, rate: float | None) -> dict[str, float]:
    """What a workload counts and the samplers see of such a run; nothing of a run that failed."""
    found = {"memory_device_mib": 1024.0 + of.batch}
    if rate is None or of.workload not in PARAMETERS:
        return found
    ranks, bytes_per_step = of.configuration.ranks, 4 * PARAMETERS[of.workload]
    tflops = rate * SAMPLE_GFLOP[of.workload] / ranks / 1e3
    power_w = 120.0 + 0.5 * tflops
    found |= {
        "parameters": PARAMETERS[of.workload],
        "flops_per_step": of.batch_global * SAMPLE_GFLOP[of.workload] * 1e9,
        "achieved_tflops": tflops,
        "mfu_pct": 100 * tflops / PEAK_TFLOPS[of.precision],
        "device_utilisation_mean_pct": 92.0 - of.configuration.hosts + rate % 1,
        "device_memory_peak_mib": 4096.0 + 256.0 * of.batch,
        "device_power_mean_w": power_w,
        "energy_j": 20.0 * ranks * power_w,
        "energy_per_sample_j": ranks * power_w / rate,
        "cpu_utilisation_mean_pct": 11.0 + of.configuration.hosts + rate % 1,
        "host_memory_used_peak_mib": 32768.0 + rate % 10,
    }
    if ranks > 1:
        found["allreduce_bytes_per_step"] = bytes_per_step
        found["flops_per_allreduce_byte"] = of.batch * SAMPLE_GFLOP[of.workload] * 1e9 / bytes_per_step
    return found


def records(plan: list[CellPlan], seed: int = 7, noise: float = 0.005, compositions: int = 2) -> Iterator[Record]:
    """The runs of a plan: all of it but the cell that says why it is missing. Every configuration is composed once or twice."""
    random = np.random.default_rng(seed)
    clocks: defaultdict[str, float] = defaultdict(lambda: 1_700_000_000.0)
    measured = [entry for entry in plan if not entry.missing]
    draws = {
        (entry.cell.id, n): random.standard_normal() for entry in measured for n in range(1, entry.repetitions + 1)
    }
    for again in (False, True):
        for entry in measured:
            name, most = entry.cell.configuration.name, entry.repetitions
            too_large = entry.cell.workload == "bert" and entry.cell.batch == 32 and entry.cell.precision == "fp32"
            half = -(-most // compositions)
            for repetition in range(half + 1, most + 1) if again else range(1, half + 1):
                rate = true_rate(entry.cell) * (1 + noise * draws[entry.cell.id, repetition])
                started = clocks[name]
                clocks[name] += 22.0 if entry.cell.configuration.hosts == 4 else 20.5
                status = "oom_device" if too_large else "ok"
                of = {"started": started, "ended": started + 20.0, "lease_id": f"lease-{name}{'.c2' if again else ''}"}
                yield record(entry.cell, repetition, None if too_large else rate, status, **of)


def leases(seed: int = 3) -> list[dict[str, Any]]:
    """One lease a configuration; the last failed, one has fewer devices than asked for."""
    random = np.random.default_rng(seed)
    documents = []
    for position, at in enumerate(configurations()):
        start = 1_700_000_000.0 + 1000 * position
        fabric, seen, ready = 2 + 3 * at.devices * random.uniform(0.8, 1.2), random.uniform(3, 9), random.uniform(1, 2)
        failed = position == len(configurations()) - 1
        short = position == 2
        devices = [
            {
                "fabric_id": f"gpu{n}",
                "kind": "gpu",
                "model": at.device,
                "location": f"drawer {n % 2}",
                "local": n < at.local_devices_per_host,
            }
            for n in range(at.devices_per_host - short)
        ]
        hosts = [{"name": f"host{n}", "devices": devices, "storage": []} for n in range(at.hosts)]
        documents.append(
            {
                "lease_id": f"lease-{at.name}",
                "configuration": at.name,
                "state": "failed" if failed else "released",
                "requested_s": start,
                "fabric_done_s": None if failed else start + fabric,
                "host_visible_s": None if failed else start + fabric + seen,
                "ready_s": None if failed else start + fabric + seen + ready,
                "release_started_s": None if failed else start + 600,
                "released_s": None if failed else start + 600 + 0.3 * fabric,
                "operations": at.devices,
                "timed": [] if failed else timed(at.devices - short, fabric, np.random.default_rng(position)),
                "retries": int(position == 1),
                "requested": {"hosts": at.hosts, "devices_per_host": at.devices_per_host, "device": at.device},
                "obtained": {"hosts": [] if failed else hosts},
                "mismatches": [f"host0: 3 of 4 devices {HOSTILE}"] if short else [],
                "faults": ["fabric did not answer"] if failed else [],
            }
        )
    return documents


def timed(devices: int, fabric_s: float, random: np.random.Generator) -> list[dict[str, Any]]:
    """What operations took to compose and to release so many devices."""
    attached = [
        ["attach", "gpu", f"drawer {n % 2}", "", fabric_s / devices * random.uniform(0.7, 0.9)] for n in range(devices)
    ]
    detached = [["detach", "gpu", f"drawer {n % 2}", "", 0.3 * row[4]] for n, row in enumerate(attached)]
    return [
        {"of": "composing", "seconds": fabric_s, "rows": attached},
        {"of": "release", "seconds": 0.3 * fabric_s, "rows": detached},
    ]


def context_document() -> dict[str, Any]:
    return {
        "campaign": {
            "name": "synthetic",
            "title": f"Composable or not? {HOSTILE}",
            "question": "What does the fabric cost?",
            "system": "emulated",
            "baseline": BASELINE,
            "protocol": {"warm_up_steps": 5, "steps": 20, "repetitions": 4, "order": "seeded random in blocks"},
        },
        "campaign_yaml": f"name: synthetic\nquestion: '{HOSTILE}'\n",
        "system": {
            "name": "emulated",
            "description": "Two drawers of eight devices and four hosts.",
            "fabric": "emulated",
        },
        "notes": ["Devices are emulated by CPU processes; links are not emulated."],
        "excluded": [{"rule": "devices_used > 8", "why": f"the pool is too small {HOSTILE}", "cells": 12}],
        "hosts_left_out": [{"host": "host3", "why": f"Slurm says DOWN: not responding {HOSTILE}"}],
        "launchers": {"slurm": 440, "local": 4},
        "software": [{"name": "campaign", "version": "0.1.0"}, {"name": "torch", "version": "2.13.0"}],
        "environments": {"e" * 20: {"cpu": "a processor", "torch": "2.13.0"}},
        "schema_versions": {"record": "record/1"},
        "flags": {"oversubscribed": "More ranks than cores: ranks wait for each other."},
    }


def hostile_plan() -> list[CellPlan]:
    """A small plan whose names would break a page, a formula or an SVG that trusts them."""
    shapes = [configuration(each=4, name=HOSTILE), configuration(hosts=2, each=2, name='"&$x^$')]
    return [
        CellPlan(cell(at, "$\\frac{<b>&\x07", 8, p, note=HOSTILE), 2, "l") for at in shapes for p in ("fp32", "<i>")
    ]


def hostile_records() -> list[Record]:
    return [record(entry.cell, n, 100.0 + n) for entry in hostile_plan() for n in (1, 2)]
