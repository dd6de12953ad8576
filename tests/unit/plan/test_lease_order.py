"""The order of leases within blocks: few devices are moved, and no configuration is always early or late."""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from random import Random
from typing import Any

import pytest

from campaign.documents.cell import Configuration
from campaign.documents.plan import parse_plan, plan_json
from campaign.errors import FabricError
from campaign.fabrics import open_fabric
from campaign.fabrics.hardware import HostSpec, PoolSpec
from campaign.fabrics.protocol import Request
from campaign.paths import Results
from campaign.plan.dag import Request as Asked
from campaign.plan.dag import read_plan
from campaign.plan.lease_order import Moves, Stop, attached_on, kept, order_of, refined, stop_of, tour_of
from campaign.plan.plan import Plan
from campaign.plan.write import write_plan
from tests.campaign_files import write_files
from tests.contract.fabric_fixtures import configuration

MODELS = ("a100", "h100", "nvme")
SYSTEMS = {
    "one drawer": ({"chassis": [{"name": "f1"}]}, (8, 4, 3), 2),
    "two chassis": ({"chassis": [{"name": "f1"}, {"name": "f2"}]}, (12, 4, 4), 3),
    "four hosts": ({"chassis": [{"name": "f1"}]}, (8, 4, 4), 4),
    "two boxes of four": ({"chassis": [{"name": "f1"}]}, (8, 0, 0), 3),
}


class System:
    """A simulated chassis, configurations that fit it, and what leases of them really attach, as placement chooses."""

    def __init__(self, name: str, count: int, directory: Path, random: Random) -> None:
        options, pool, hosts = SYSTEMS[name]
        kinds = zip(("gpu", "gpu", "nvme"), MODELS, pool, strict=True)
        specs = [HostSpec(f"host{number}", 8, 32.0) for number in range(hosts)]
        drawers = [PoolSpec(*each) for each in kinds if each[2]]
        if name == "two boxes of four":
            drawers = [PoolSpec("gpu", "a100", 4, f"f1/drawer{number}") for number in (1, 2)]
        self.fabric = open_fabric("simulated", options, specs, drawers, directory)
        self.inventory = self.fabric.inventory_planned()
        self.moves = Moves(hosts, pool)
        self.known: dict[Any, tuple[int, dict[str, str]]] = {}
        self.configurations: dict[str, Configuration] = {}
        while len(self.configurations) < count:
            devices, storage = random.choice([0, 1, 2, 3, 4, 6, 8]), random.choice(["local", "local", "fabric-nvme"])
            shape = {"hosts": random.randint(1, hosts), "devices_per_host": devices, "storage": storage}
            name = f"c{len(self.configurations)}"
            attach = "fabric" if devices else "local"
            found = configuration(name, **shape, attach=attach, device=random.choice(MODELS[:2]))
            try:
                self.fabric.select_planned(self.request(found), self.inventory)
            except FabricError:
                continue
            self.configurations[name] = found

    @property
    def stops(self) -> dict[str, Stop]:
        return {name: stop_of(each, MODELS) for name, each in self.configurations.items()}

    def request(self, configuration: Configuration) -> Request:
        return Request("plan", "plan", "plan", configuration, epoch="block")

    def attached(self, order: tuple[str, ...]) -> int:
        there, attached = dict[str, str](), 0
        for name in order:
            key = name, frozenset(there.items())
            if key not in self.known:
                wanted = self.request(self.configurations[name])
                selection = self.fabric.select_planned(wanted, self.inventory.staying(there, "block"))
                hosts = {host.host for host in selection.hosts}
                new = {each: host.host for host in selection.hosts for each in (*host.fabric, *host.storage)}
                kept = {each: host for each, host in there.items() if host not in hosts}
                self.known[key] = sum(there.get(each) != host for each, host in new.items()), {**kept, **new}
            count, there = self.known[key]
            attached += count
        return attached

    def on_average(self, tour: tuple[str, ...]) -> float:
        return sum(self.attached(tour[start:] + tour[:start]) for start in range(len(tour))) / len(tour)


@pytest.mark.parametrize("name", SYSTEMS)
@pytest.mark.parametrize("seed", range(3))
def test_a_tour_attaches_hardly_more_devices_than_the_best_of_all(name: str, seed: int, tmp_path: Path) -> None:
    system = System(name, 6, tmp_path, Random(f"{name}/{seed}"))
    first, *others = system.configurations
    best = min(system.on_average((first, *rest)) for rest in itertools.permutations(others))
    found = tuple(refined(tour_of(system.stops, system.moves, "1"), lambda order: system.attached(tuple(order)), "1"))
    assert sorted(found) == sorted(system.configurations)
    assert system.on_average(found) <= 1.05 * best


def shape(devices: int, hosts: int = 1) -> Stop:
    return (((devices,), hosts),)


def held_karp(costs: list[list[float]]) -> float:
    """Length of the shortest tour from the first place over all others and back."""
    count = len(costs)
    best = {(1 << n, n): costs[0][n] for n in range(1, count)}
    for _ in range(count - 2):
        further: dict[tuple[int, int], float] = {}
        for (visited, last), cost in best.items():
            for n in range(1, count):
                if not visited >> n & 1:
                    key = visited | 1 << n, n
                    further[key] = min(further.get(key, 1e9), cost + costs[last][n])
        best = further
    return min(cost + costs[last][0] for (_, last), cost in best.items())


def test_of_twelve_configurations_the_tour_is_near_the_shortest() -> None:
    """On one host only the lease before counts: a start costs its devices, and one step of the tour is not made."""
    random = Random(3)
    for _ in range(2):
        counts = [(random.randint(0, 8), random.randint(0, 8)) for _ in range(12)]
        stops: dict[str, Stop] = {f"c{n}": ((each, 1),) for n, each in enumerate(counts)}
        costs = [[sum(max(0, b - a) for a, b in zip(one, two, strict=True)) for two in counts] for one in counts]
        best = sum(map(sum, counts)) / 12 + held_karp(costs) * 11 / 12
        moves = Moves(1, (8, 8))
        found = attached_on([stops[name] for name in tour_of(stops, moves, "1")], moves)
        assert best - 1e-9 <= found <= 1.05 * best


def test_two_hundred_configurations_are_ordered_in_seconds() -> None:
    random = Random(1)
    stops = {f"c{n}": shape(random.randint(0, 16), random.randint(1, 4)) for n in range(200)}
    moves = Moves(8, (64,))
    started = time.process_time()
    tour = tour_of(stops, moves, "1")
    assert time.process_time() - started < 5
    assert attached_on([stops[name] for name in tour], moves) < 0.3 * attached_on(list(stops.values()), moves)


def test_every_configuration_comes_early_and_late(tmp_path: Path) -> None:
    tour = [f"c{n}" for n in range(7)]
    places = [[order_of(tour, block, "1").index(name) for block in range(5)] for name in tour]
    assert all(max(each) - min(each) >= 4 for each in places)
    means = [sum(each) / 5 for each in places]
    assert max(means) - min(means) < 1.5
    assert len({tuple(order_of(tour, 0, str(seed))) for seed in range(40)}) == 7


def test_what_is_added_is_put_where_it_moves_least() -> None:
    moves, stops = Moves(1, (8,)), {f"{n}": shape(n) for n in (1, 2, 4, 6, 8)}
    grown = kept(["1", "2", "4", "6", "8"], ["8", "4", "1"], stops, moves)
    assert [name for name in grown if name in "841"] == ["8", "4", "1"]
    assert moves.of([stops[name] for name in grown]) == 8
    assert kept(["1", "2", "4"], ["1", "4"], stops, moves) == ["1", "2", "4"]


SHAPES = [{"devices_per_host": [4, 1, 3, 2], "attach": ["local", "fabric"]}]
FILES = {
    "campaign.configurations": SHAPES,
    "campaign.protocol.compositions": 3,
    "campaign.protocol.repetitions": 3,
    "system.hosts": [{"name": "host[1-2]", "cores": 4, "devices": [{"model": "cpu-rank", "count": 4}]}],
    "system.pool": [{"kind": "gpu", "model": "cpu-rank", "count": 8, "drawer": "falcon1/drawer1"}],
}


def planned(directory: Path, **changes: Any) -> Plan:
    asked = Asked(write_files(directory, {**FILES, **changes}), directory / "results")
    plan = read_plan(asked)
    write_plan(plan, Results(asked.results, plan.campaign.name))
    return plan


def test_a_plan_says_what_its_order_saves_and_what_is_added_leaves_places(tmp_path: Path) -> None:
    plan = planned(tmp_path)
    results = Results(tmp_path / "results", plan.campaign.name)
    document = parse_plan(results.plan_document, plan_json(results.plan_document))
    attached = [each.attached for each in document.leases]
    assert document.totals.attached == sum(filter(None, attached))
    assert document.totals.attached < document.totals.attached_in_file_order
    assert document.totals.attached < document.totals.attached_at_random
    names = [lease.name for lease in plan.leases]
    # Within each block, the same tour from another start.
    blocks = [[lease.configuration.name for lease in plan.leases if lease.composition == n] for n in (1, 2, 3)]
    assert len({tuple(block) for block in blocks}) == 3
    for block in blocks[1:]:
        start = blocks[0].index(block[0])
        assert block == blocks[0][start:] + blocks[0][:start]
    more = [{"devices_per_host": [4, 1, 3, 2], "attach": ["local", "fabric", "hybrid"]}]
    again = [lease.name for lease in planned(tmp_path, **{"campaign.configurations": more}).leases]
    assert [name for name in again if name in names] == names
    assert len(again) > len(names)
    random = planned(tmp_path, **{"campaign.protocol.lease_order": "random-blocks"})
    assert [lease.name for lease in random.leases] != names
