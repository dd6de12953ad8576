"""Campaigns whose truth is known: what is planted in their runs has to come out of the statements, and nothing else.

`runs` makes the runs of many campaigns at once, one workload each, as one table; `tables` makes one campaign through its records,
as the report reads it. Deviations are of the logarithm of time: of a composition (`lease`), of a run (`run`), and a drift over the
whole campaign, in which compositions come in random blocks. `effect`: time of each configuration. `host`: deviation of each of the
`hosts`, on which compositions are placed at random, but for the first configuration ("one") or all ("own"), which stay on one.
`noisy`: by how much more compositions of the last configuration deviate. `devices`: of each configuration, where the order within
blocks is the one that attaches few devices; `drifts`: steadily over the campaign, or up in each block, or up and down in each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from campaign.documents.cell import Configuration
from campaign.documents.run_numbers import run_number
from campaign.plan.lease_order import Moves, order_of, tour_of
from campaign.tables.cells import PlannedCell, cells_table
from campaign.tables.io import Tables
from campaign.tables.runs import runs_table
from tests.unit.report import report_data

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Truth:
    """What is planted. compositions: of all configurations, or of each; runs: of a cell over all of them."""

    configurations: int = 4
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
    devices: tuple[int, ...] = ()
    drifts: str = "campaign"

    def composed(self) -> list[int]:
        k = self.compositions
        return [k] * self.configurations if isinstance(k, int) else list(k)

    def times(self) -> Floats:
        return np.array(self.effect or (1.0,) * self.configurations)


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
    """Runs of many campaigns as one table: campaign and workload are the number of the campaign, `batch` tells cells of a lease."""
    random = np.random.default_rng(seed)
    composed, times = truth.composed(), truth.times()
    blocks = max(composed)
    of_host = truth.host * random.standard_normal((campaigns, truth.hosts)) if truth.hosts else np.zeros((campaigns, 1))
    found = []
    ordered = places(truth, blocks, campaigns, seed) if truth.devices else None
    for block in range(blocks):
        there = [i for i, k in enumerate(composed) if k > block]
        place = np.argsort(random.random((campaigns, len(there))), axis=1) if ordered is None else ordered[:, block]
        for position, i in enumerate(there):
            within = (place[:, position] + 0.5) / len(there)
            at = {"campaign": (block + within) / blocks, "block": within, "hump": 1 - 4 * (within - 0.5) ** 2}[
                truth.drifts
            ]
            lease = truth.lease * noise(truth.of_leases, random, campaigns)
            lease = lease * (truth.noisy if i == truth.configurations - 1 else 1.0)
            stays = truth.placed == "own" or (truth.placed == "one" and i == 0)
            anywhere = random.integers(max(truth.hosts, 1), size=campaigns) if truth.hosts else np.zeros(campaigns, int)
            host = anywhere * 0 + i % truth.hosts if truth.hosts and stays else anywhere
            lease = lease + of_host[np.arange(campaigns), host]
            composed_well = random.random(campaigns) >= truth.failed
            for cell in range(truth.cells):
                for n in range(block, truth.runs, composed[i]):
                    log = truth.drift * at + lease + truth.run * noise(truth.noise, random, campaigns)
                    time = times[i] * np.exp(log) * np.where(random.random(campaigns) < truth.slow, 1 / 0.7, 1.0)
                    number = run_number(block + 1, n // composed[i] + 1)
                    kept = np.flatnonzero(composed_well & (random.random(campaigns) >= truth.missing))
                    same = {"at": i, "batch": cell, "block": block, "repetition": number}
                    same |= {"host_names": [f"host{n}" for n in host[kept]]} if truth.hosts else {}
                    found.append(pd.DataFrame({"campaign": kept, **same, "value": 1 / time[kept]}))
    table = pd.concat(found, ignore_index=True)
    cell = (table["campaign"] * truth.configurations + table["at"]) * truth.cells + table["batch"]
    lease_id = (table["campaign"] * truth.configurations + table["at"]) * blocks + table["block"]
    return table.assign(
        cell_id=cell,
        lease_id=lease_id.astype("str"),
        workload=table["campaign"],
        configuration=table["at"].astype("str"),
        status="ok",
        started=table["block"].astype("float64"),
    )


def places(truth: Truth, blocks: int, campaigns: int, seed: int) -> npt.NDArray[np.int_]:
    """Place of each configuration in each block of each campaign, on tours that attach few devices to one host."""
    moves = Moves(1, (max(truth.devices),))
    stops = {str(i): (((count,), 1),) for i, count in enumerate(truth.devices)}
    found = []
    for campaign in range(campaigns):
        drawn = f"{seed}/{campaign}"
        tour = tour_of(stops, moves, drawn)
        orders = [order_of(tour, block, drawn) for block in range(blocks)]
        found.append([[order.index(name) for name in stops] for order in orders])
    return np.array(found)


def pairs(truth: Truth, campaigns: int) -> tuple[pd.Series[int], pd.Series[int]]:
    """Ids of cells and of those they are compared with: every configuration with the first, for each cell of a lease."""
    campaign, cell, at = np.meshgrid(
        np.arange(campaigns), np.arange(truth.cells), np.arange(1, truth.configurations), indexing="ij"
    )
    first = campaign * truth.configurations
    return (
        pd.Series(((first + at) * truth.cells + cell).ravel()),
        pd.Series((first * truth.cells + cell).ravel()),
    )


SHAPES = tuple(report_data.configuration(each=n, used=1) for n in range(1, 13))


def tables(
    truth: Truth, random: np.random.Generator, shapes: Sequence[Configuration] = (), name: str = "planted", **plan: Any
) -> Tables:
    """One campaign through its records. shapes: configurations, by default one device of as many composed ones as there are."""
    shapes = shapes or SHAPES[: truth.configurations]
    composed, times = truth.composed(), truth.times()
    planned, records = [], []
    for i, at in enumerate(shapes):
        leases = truth.lease * noise(truth.of_leases, random, composed[i])
        order = [random.random() for _ in range(composed[i])]
        for batch in range(truth.cells):
            cell = report_data.cell(at, plan.get("workload", "bert"), 8 * (batch + 1))
            planned.append(PlannedCell(cell, truth.runs, f"lease-{at.name}"))
            for n in range(truth.runs):
                block = n % composed[i]
                log = leases[block] + truth.run * noise(truth.noise, random, 1)[0]
                log += truth.drift * (block + order[block]) / composed[i]
                seconds = times[i] * float(np.exp(log)) / (0.7 if random.random() < truth.slow else 1.0)
                number = run_number(block + 1, n // composed[i] + 1)
                place = {
                    "lease_id": f"{name}-{at.name}.c{block + 1}",
                    "step_times_s": (),
                    "window_s": (),
                    "metrics": {},
                }
                records.append(report_data.record(cell, number, 100.0 * at.ranks / seconds, **place))
    of_runs = runs_table(records)
    context = report_data.context_document()
    context["campaign"] = {
        **context["campaign"],
        "name": name,
        "protocol": {"order": "blocks", "lease_order": "blocks"},
    }
    return Tables(of_runs, cells_table(planned, of_runs), [], [], context)


def other(truth: Truth, **changes: Any) -> Truth:
    """The same with something else planted."""
    return replace(truth, **changes)
