"""Campaigns whose truth is known: what is planted in their runs has to come out of the statements, and nothing else.

`runs` makes the runs of many campaigns at once as one table; `tables` makes one campaign through its records,
as the report reads it. Deviations are of the logarithm of time: of a composition (`lease`), of a run (`run`), and a drift over the
whole campaign, in which compositions come in random blocks. `effect`: time of each configuration. `host`: deviation of each of the
`hosts`, on which compositions are placed at random, but for the first configuration ("one") or all ("own"), which stay on one.
`noisy`: by how much more compositions of one configuration (`noisy_at`) deviate. `side_by_side`: hosts of a system on which leases
of `HOSTS_OF` hosts run beside each other, in the order of the plan or, where `passing`, whenever they fit
(`greedy_starts`). `drifts`: steadily up or down over the campaign, or up and down over it, or up in each block, or up
and down in each. `workloads` share the leases of a configuration: half of the variance of a composition is common to all of them,
half is the workload's own, and `effect` is none for the second, the inverse for the third (`Truth.times`).
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from campaign.analysis.tables.cells import CellPlan, build_cells_table
from campaign.analysis.tables.io import Tables
from campaign.analysis.tables.runs import build_runs_table
from campaign.plan.concurrency import schedule_starts
from campaign.spec.cell import Configuration
from campaign.spec.run_numbers import compute_run_number
from tests.unit.report import report_data

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Truth:
    """What is planted. compositions: of all configurations, or of each; runs: of a cell over all of them."""

    configurations: int = 4
    workloads: int = 1
    compositions: int | tuple[int, ...] = 3
    runs: int = 6
    lease: float = 0.01
    run: float = 0.01
    drift: float = 0.0
    cells: int = 1
    noise: str = "normal"
    of_leases: str = "normal"
    slow: float = 0.0
    missing: float = 0.0
    failed: float = 0.0
    effect: tuple[float, ...] = ()
    hosts: int = 0
    host: float = 0.0
    placed: str = "random"
    noisy: float = 1.0
    noisy_at: int = -1
    drifts: str = "campaign"
    side_by_side: int = 0
    passing: bool = False

    def composed(self) -> list[int]:
        k = self.compositions
        return [k] * self.configurations if isinstance(k, int) else list(k)

    def times(self) -> Floats:
        """Time of each configuration, [workload, configuration]."""
        effect = np.array(self.effect or (1.0,) * self.configurations)
        return np.asarray(effect ** (1.0 - np.arange(self.workloads)[:, None]))

    def of_lease(self, random: np.random.Generator, size: int) -> Floats:
        """Deviations of compositions, [workload, composition]."""
        own = np.array([noise(self.of_leases, random, size) for _ in range(self.workloads)])
        both = (own + noise(self.of_leases, random, size)) / np.sqrt(2)
        return self.lease * (both if self.workloads > 1 else own)


def noise(kind: str, random: np.random.Generator, size: int) -> Floats:
    """Deviations with mean 0 and standard deviation 1."""
    drawn = {
        "normal": lambda: random.standard_normal(size),
        "heavy": lambda: random.standard_t(3, size) / np.sqrt(3),
        "skew": lambda: random.exponential(1, size) - 1,
        "two": lambda: np.where(random.random(size) < 0.5, 1.0, -1.0) * 0.98 + random.normal(0, 0.2, size),
    }
    return np.asarray(drawn[kind]())


def runs(truth: Truth, campaigns: int, seed: int) -> pd.DataFrame:
    """Runs of many campaigns as one table; workloads are numbered over all campaigns, `batch` tells cells of a workload."""
    random = np.random.default_rng(seed)
    composed, times = truth.composed(), truth.times()
    blocks = max(composed)
    of_host = truth.host * random.standard_normal((campaigns, truth.hosts)) if truth.hosts else np.zeros((campaigns, 1))
    found = []
    middles = beside(truth, blocks, campaigns, seed) if truth.side_by_side else None
    for block in range(blocks):
        there = [i for i, k in enumerate(composed) if k > block]
        place = np.argsort(random.random((campaigns, len(there))), axis=1)
        for position, i in enumerate(there):
            within = (place[:, position] + 0.5) / len(there)
            over = (block + within) / blocks if middles is None else middles[:, block, i]
            at = {
                "campaign": over,
                "down": -over,
                "up and down": 1 - 4 * (over - 0.5) ** 2,
                "block": within,
                "hump": 1 - 4 * (within - 0.5) ** 2,
            }[truth.drifts]
            lease = truth.of_lease(random, campaigns)
            lease = lease * (truth.noisy if i == truth.noisy_at % truth.configurations else 1.0)
            stays = truth.placed == "own" or (truth.placed == "one" and i == 0)
            anywhere = random.integers(max(truth.hosts, 1), size=campaigns) if truth.hosts else np.zeros(campaigns, int)
            host = anywhere * 0 + i % truth.hosts if truth.hosts and stays else anywhere
            lease = lease + of_host[np.arange(campaigns), host]
            composed_well = random.random(campaigns) >= truth.failed
            for workload, cell in itertools.product(range(truth.workloads), range(truth.cells)):
                for n in range(block, truth.runs, composed[i]):
                    log = truth.drift * at + lease[workload] + truth.run * noise(truth.noise, random, campaigns)
                    time = (
                        times[workload, i] * np.exp(log) * np.where(random.random(campaigns) < truth.slow, 1 / 0.7, 1.0)
                    )
                    number = compute_run_number(block + 1, n // composed[i] + 1)
                    kept = np.flatnonzero(composed_well & (random.random(campaigns) >= truth.missing))
                    same = {"at": i, "of": workload, "batch": cell, "block": block, "repetition": number}
                    same |= {"host_names": [f"host{n}" for n in host[kept]]} if truth.hosts else {}
                    found.append(pd.DataFrame({"campaign": kept, **same, "value": 1 / time[kept]}))
    table = pd.concat(found, ignore_index=True)
    place = (table["campaign"] * truth.configurations + table["at"]) * truth.workloads + table["of"]
    lease_id = (table["campaign"] * truth.configurations + table["at"]) * blocks + table["block"]
    return table.assign(
        cell_id=place * truth.cells + table["batch"],
        lease_id=lease_id.astype("str"),
        workload=table["campaign"] * truth.workloads + table["of"],
        configuration=table["at"].astype("str"),
        status="ok",
        started=table["block"].astype("float64"),
    )


HOSTS_OF = (4, 1, 2, 1, 1, 2)
"""Hosts of configurations whose leases run side by side; every other one takes two devices of the pool for each host, else one."""
SECONDS_OF = {1: 300.0, 2: 500.0, 4: 400.0}
"""Of leases, by their hosts; some configurations take up to twice as long, and each lease 10 % (sd) more or less."""


def beside(truth: Truth, blocks: int, campaigns: int, seed: int) -> Floats:
    """Middle of each lease, as a part of the campaign's duration: [campaign, block, configuration]."""
    random = np.random.default_rng(seed + 1)
    limits = {"hosts": truth.side_by_side, "pool": 3 * truth.side_by_side // 2}
    shapes = [HOSTS_OF[i % len(HOSTS_OF)] for i in range(truth.configurations)]
    needs = [{"hosts": hosts, "pool": hosts * (1 + i % 2)} for i, hosts in enumerate(shapes)]
    typical = [SECONDS_OF[hosts] * (1 + 0.5 * (i % 3)) for i, hosts in enumerate(shapes)]
    found = np.empty((campaigns, blocks, truth.configurations))
    for campaign in found:
        plan = [(block, i) for block in range(blocks) for i in random.permutation(truth.configurations)]
        seconds = [typical[i] * float(np.exp(0.1 * random.standard_normal())) for _, i in plan]
        leases = [(needs[i], s) for (_, i), s in zip(plan, seconds, strict=True)]
        started = np.array(list((greedy_starts if truth.passing else schedule_starts)(leases, limits)))
        block, at = np.array(plan).T
        campaign[block, at] = (started + np.array(seconds) / 2) / (started + seconds).max()
    return found


def pairs(truth: Truth, campaigns: int) -> tuple[pd.Series[int], pd.Series[int]]:
    """Ids of cells and of those they are compared with: every configuration with the first, for each cell of a lease.

    In the order of campaign, workload, cell, configuration.
    """
    campaign, of, cell, at = np.meshgrid(
        np.arange(campaigns),
        np.arange(truth.workloads),
        np.arange(truth.cells),
        np.arange(1, truth.configurations),
        indexing="ij",
    )

    def ids(at: npt.NDArray[np.int_]) -> pd.Series[int]:
        place = (campaign * truth.configurations + at) * truth.workloads + of
        return pd.Series((place * truth.cells + cell).ravel())

    return ids(at), ids(at * 0)


def pairs_within(truth: Truth, campaigns: int = 1) -> tuple[pd.Series[int], pd.Series[int]]:
    """Ids of cells and of those they are compared with: every cell of a lease with the first of its workload."""
    first = np.arange(campaigns * truth.configurations * truth.workloads) * truth.cells
    of = (first[:, None] + np.arange(1, truth.cells)).ravel()
    return pd.Series(of), pd.Series(np.repeat(first, truth.cells - 1))


SHAPES = tuple(report_data.configuration(each=n, used=1) for n in range(1, 13))


def tables(
    truth: Truth, random: np.random.Generator, shapes: Sequence[Configuration] = (), name: str = "planted", **plan: Any
) -> Tables:
    """One campaign through its records. shapes: configurations, by default one device of as many composed ones as there are."""
    shapes = shapes or SHAPES[: truth.configurations]
    composed, times = truth.composed(), truth.times()
    planned, records = [], []
    for i, at in enumerate(shapes):
        leases = truth.of_lease(random, composed[i]) * (
            truth.noisy if i == truth.noisy_at % truth.configurations else 1.0
        )
        order = [random.random() for _ in range(composed[i])]
        for workload, batch in itertools.product(range(truth.workloads), range(truth.cells)):
            name_of = plan.get("workload", ("bert", "resnet50", "gpt2", "vit")[workload])
            cell = report_data.cell(at, name_of, 8 * (batch + 1))
            planned.append(CellPlan(cell, truth.runs, f"lease-{at.name}"))
            for n in range(truth.runs):
                block = n % composed[i]
                log = leases[workload, block] + truth.run * noise(truth.noise, random, 1)[0]
                log += truth.drift * (block + order[block]) / composed[i]
                seconds = times[workload, i] * float(np.exp(log)) / (0.7 if random.random() < truth.slow else 1.0)
                number = compute_run_number(block + 1, n // composed[i] + 1)
                place = {
                    "lease_id": f"{name}-{at.name}.c{block + 1}",
                    "step_times_s": (),
                    "window_s": (),
                    "metrics": {},
                }
                records.append(report_data.record(cell, number, 100.0 * at.ranks / seconds, **place))
    of_runs = build_runs_table(records)
    context = report_data.context_document()
    context["campaign"] = {
        **context["campaign"],
        "name": name,
        "protocol": {"order": "blocks", "lease_order": "blocks"},
    }
    return Tables(of_runs, build_cells_table(planned, of_runs), [], [], context)


def other(truth: Truth, **changes: Any) -> Truth:
    """The same with something else planted."""
    return replace(truth, **changes)


def greedy_starts(leases: Iterable[tuple[Mapping[str, int], float]], limits: Mapping[str, int]) -> Iterator[float]:
    """Start of each lease (needs, seconds), in seconds, by Snakemake's greedy scheduler alone: what fits, so that small leases pass
    large ones. All fit the limits by themselves."""
    waiting, free, now = dict(enumerate(leases)), dict(limits), 0.0
    under_way: list[tuple[float, int, Mapping[str, int]]] = []
    started: dict[int, float] = {}
    while waiting:
        for number, (need, seconds) in list(waiting.items()):
            if all(taken <= free[name] for name, taken in need.items()):
                free = {name: amount - need.get(name, 0) for name, amount in free.items()}
                heapq.heappush(under_way, (now + seconds, number, need))
                started[number] = now
                del waiting[number]
        now, _, ended = heapq.heappop(under_way)
        free = {name: amount + ended.get(name, 0) for name, amount in free.items()}
    return (started[number] for number in sorted(started))
