"""Leases start in the order of the plan under `--scheduler campaign`, and the plan's forecast starts them as it does."""

from __future__ import annotations

import heapq
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from random import Random
from typing import Any

import pytest
from snakemake_interface_scheduler_plugins.registry import SchedulerPluginRegistry

from campaign.common.paths import ROOT
from campaign.plan.campaign.resolve import load_campaign
from campaign.plan.concurrency import count_threads, resource_limits, resource_needs, schedule_starts
from snakemake_scheduler_plugin_campaign import is_host_resource, select_in_order
from tests import campaign_files, two_systems
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


def drawn(seed: int, count: int = 40) -> Leases:
    random = Random(seed)
    shapes = [(1, 0), (1, 2), (2, 2), (4, 4), (8, 8), (2, 8)]
    return [
        ({"hosts": hosts, "pool": pool}, random.uniform(1, 9))
        for hosts, pool in (random.choice(shapes) for _ in range(count))
    ]


def scheduled(name: str, leases: Leases) -> Iterator[float]:
    """Compute the start of each lease by a plugin of Snakemake, which it calls whenever a lease has ended."""
    plugin = SchedulerPluginRegistry().get_plugin(name)
    settings = plugin.settings_cls() if plugin.settings_cls else None
    scheduler = plugin.scheduler(None, settings, logging.getLogger())
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
def test_none_passes_one_that_waits_and_the_forecast_is_the_scheduler_s(seed: int) -> None:
    leases = drawn(seed)
    greedy = list(scheduled("greedy", leases))
    assert greedy == pytest.approx(list(greedy_starts(leases, LIMITS)))
    assert greedy != sorted(greedy)
    found = list(scheduled("campaign", leases))
    assert found == sorted(found) == pytest.approx(list(schedule_starts(leases, LIMITS)))


def test_the_name_of_a_resource_tells_that_it_counts_the_hosts_of_a_system(tmp_path: Path) -> None:
    for number, campaign in enumerate((campaign_files.load(tmp_path / "1"), two_systems.load(tmp_path / "2")), 1):
        names = [name for name in resource_limits(campaign) if is_host_resource(name)]
        assert len(names) == len(campaign.systems) == number


def test_only_leases_that_wait_for_the_same_hosts_wait_for_each_other() -> None:
    jobs = [
        Job("small", 1, {"hosts": 1}),
        Job("large", 3, {"hosts": 4}),
        Job("elsewhere", 2, {"other_hosts": 1}),
        Job("table", 0, {"_cores": 1}),
    ]
    free = {"hosts": 3, "other_hosts": 1, "_cores": 1}
    assert {job.name for job in select_in_order(jobs, free)} == {"elsewhere", "table"}
    assert {job.name for job in select_in_order(jobs, {**free, "hosts": 5})} == {job.name for job in jobs}
    # What the first ones take, the next ones do not have.
    assert {job.name for job in select_in_order(jobs, {**free, "hosts": 4})} == {"large", "elsewhere", "table"}


@pytest.mark.parametrize(("cores", "ranks"), [(1, 4), (2, 6), (4, 12)])
def test_ranks_that_keep_a_pace_share_cores(cores: int, ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(cores)))
    campaign = load_campaign(ROOT / "config" / "campaign.yaml")
    limits, configurations = resource_limits(campaign), {each.name: each for each in campaign.configurations}
    assert limits["ranks"] == ranks
    shapes = {"small": "1x1of4-local", "medium": "1x2-local", "large": "1x4-local", "spread": "2x2-local"}
    needs = {name: resource_needs(campaign, configurations[shape]) for name, shape in shapes.items()}
    assert {count_threads(campaign, each, cores) for each in configurations.values()} == {1}
    side_by_side = {
        pair
        for pair in combinations(shapes, 2)
        if len(select_in_order([Job(name, 1, needs[name]) for name in pair], limits)) == 2
    }
    count = dict(zip(shapes, (1, 2, 4, 4), strict=True))
    assert side_by_side == {pair for pair in combinations(shapes, 2) if sum(map(count.__getitem__, pair)) <= ranks}


def test_leases_without_a_pace_use_a_core_per_rank(tmp_path: Path) -> None:
    campaign = campaign_files.load(tmp_path, {"campaign.protocol.isolation": "host"})
    assert "ranks" not in resource_limits(campaign)
    threads = [(each.ranks, count_threads(campaign, each, 64)) for each in campaign.configurations]
    assert all(ranks == cores for ranks, cores in threads)


def test_a_lease_that_fits_nowhere_ends_the_forecast() -> None:
    assert list(schedule_starts([({"hosts": 8}, 2.0), ({"hosts": 9}, 1.0), ({"hosts": 1}, 1.0)], LIMITS)) == [0.0]
