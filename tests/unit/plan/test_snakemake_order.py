"""Leases start in the order of the plan under Snakemake's own schedulers, and the plan's forecast starts them as these do."""

from __future__ import annotations

import heapq
import logging
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest
from snakemake_interface_scheduler_plugins.registry import SchedulerPluginRegistry

from campaign.plan import snakemake_order
from campaign.plan.concurrency import starts
from campaign.plan.snakemake_order import in_order, keep_order
from tests.planted_campaigns import greedy_starts

LIMITS = {"hosts": 8, "pool": 12}
Leases = list[tuple[dict[str, int], float]]


@dataclass(frozen=True, eq=False)
class Job:
    """What schedulers ask of a job."""

    name: str
    priority: int
    scheduler_resources: dict[str, int]
    input: tuple[Any, ...] = ()


@pytest.fixture
def schedulers(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Snakemake's, which a test may change."""
    registry = SchedulerPluginRegistry()
    monkeypatch.setattr(registry, "plugins", {name: copy(plugin) for name, plugin in registry.plugins.items()})
    monkeypatch.setattr(snakemake_order._InOrder, "queues", frozenset[str]())
    return registry.plugins


def drawn(seed: int, count: int = 40) -> Leases:
    random = Random(seed)
    shapes = [(1, 0), (1, 2), (2, 2), (4, 4), (8, 8), (2, 8)]
    return [
        ({"hosts": hosts, "pool": pool}, random.uniform(1, 9))
        for hosts, pool in (random.choice(shapes) for _ in range(count))
    ]


def scheduled(plugin: Any, leases: Leases) -> Iterator[float]:
    """When a scheduler of Snakemake's starts them, which it asks whenever one has ended."""
    scheduler = plugin.scheduler(None, plugin.settings_cls(), logging.getLogger())
    jobs = [Job(str(n), len(leases) - n, {"_cores": 1, **need}) for n, (need, _) in enumerate(leases)]
    waiting, free, now = set(jobs), {"_cores": 64, "_job_count": 10**9, **LIMITS}, 0.0
    under_way: list[tuple[float, int]] = []
    started = dict[int, float]()
    while waiting:
        for job in scheduler.select_jobs(waiting, waiting, dict(free), {}):
            number = int(job.name)
            heapq.heappush(under_way, (now + leases[number][1], number))
            free = {name: amount - job.scheduler_resources.get(name, 0) for name, amount in free.items()}
            started[number] = now
        waiting -= {jobs[number] for number in started}
        now, number = heapq.heappop(under_way)
        free = {name: amount + jobs[number].scheduler_resources.get(name, 0) for name, amount in free.items()}
    return (started[number] for number in sorted(started))


@pytest.mark.parametrize("seed", range(5))
def test_none_passes_one_that_waits_and_the_forecast_is_the_scheduler_s(seed: int, schedulers: dict[str, Any]) -> None:
    leases = drawn(seed)
    by_itself = list(scheduled(schedulers["greedy"], leases))
    assert by_itself == pytest.approx(list(greedy_starts(leases, LIMITS)))
    assert by_itself != sorted(by_itself)
    keep_order({"hosts"})
    found = list(scheduled(schedulers["greedy"], leases))
    assert found == sorted(found) == pytest.approx(list(starts(leases, LIMITS)))


def test_every_scheduler_keeps_the_order_also_of_two_campaigns_in_one_workflow(schedulers: dict[str, Any]) -> None:
    keep_order({"hosts"})
    before = {name: plugin.scheduler for name, plugin in schedulers.items()}
    keep_order({"other_hosts"})
    assert {name: plugin.scheduler for name, plugin in schedulers.items()} == before
    assert {"greedy", "ilp"} <= set(before)
    assert all(issubclass(each, snakemake_order._InOrder) for each in before.values())
    assert snakemake_order._InOrder.queues == {"hosts", "other_hosts"}


def test_only_leases_that_wait_for_the_same_hosts_wait_for_each_other() -> None:
    jobs = [
        Job("small", 1, {"hosts": 1}),
        Job("large", 3, {"hosts": 4}),
        Job("elsewhere", 2, {"other_hosts": 1}),
        Job("table", 0, {"_cores": 1}),
    ]
    free = {"hosts": 3, "other_hosts": 1, "_cores": 1}
    queues = {"hosts", "other_hosts"}
    assert {job.name for job in in_order(jobs, free, queues)} == {"elsewhere", "table"}
    assert {job.name for job in in_order(jobs, {**free, "hosts": 5}, queues)} == {job.name for job in jobs}
    # What the first ones take, the next ones do not have.
    assert {job.name for job in in_order(jobs, {**free, "hosts": 4}, queues)} == {"large", "elsewhere", "table"}


def test_a_lease_that_fits_nowhere_ends_the_forecast() -> None:
    assert list(starts([({"hosts": 8}, 2.0), ({"hosts": 9}, 1.0), ({"hosts": 1}, 1.0)], LIMITS)) == [0.0]
