"""Leases beside each other: what limits them, which one starts next, and how long all take."""

from __future__ import annotations

import math
from pathlib import Path
from random import Random
from statistics import median

from hypothesis import given
from hypothesis import strategies as st

from campaign.plan.concurrency import Limit
from campaign.plan.packing import Job, fits, left, lower_bound, makespan, next_to_start
from tests.campaign_files import load


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 8), st.floats(0.1, 100)), max_size=15), st.booleans())
def test_packing_is_never_faster_than_the_work_nor_slower_than_one_by_one(
    drawn: list[tuple[int, int, float]], looks_ahead: bool
) -> None:
    jobs = [Job((hosts, devices), seconds) for hosts, devices, seconds in drawn]
    packed = makespan(jobs, (5, 8), looks_ahead=looks_ahead)
    assert packed >= lower_bound(jobs, (5, 8)) - 1e-6
    assert packed <= sum(job.seconds for job in jobs) + 1e-6


def test_what_excludes_each_other_is_in_the_lower_bound() -> None:
    assert lower_bound([Job((2,), 3.0), Job((2,), 4.0), Job((1,), 1.0)], (3,)) == 7.0
    assert lower_bound([Job((1,), 3.0), Job((1,), 3.0), Job((1,), 9.0)], (3,)) == 9.0


def test_leases_that_leave_the_scarce_devices_idle_do_not_go_first() -> None:
    """Two hosts: leases without devices could take both, and leases with all devices would be left, one after another."""
    jobs = [Job((1, 0), 10.0)] * 6 + [Job((1, 8), 10.0)] * 6
    assert makespan(jobs, (2, 8), looks_ahead=False) == 90.0
    assert makespan(jobs, (2, 8)) == lower_bound(jobs, (2, 8)) == 60.0
    # Where they cost nothing, places stay as they are.
    assert next_to_start([Job((1, 0), 1.0), Job((1, 1), 1.0)], (), (2, 8)) == 0
    # An earlier block goes first.
    assert next_to_start([Job((1, 0), 1.0, 2), Job((1, 0), 9.0, 1)], (), (1, 8)) == 1


def test_the_last_to_end_is_not_the_last_to_start() -> None:
    jobs = [Job((1,), seconds) for seconds in (1.0, 1.0, 1.0, 1.0, 4.0)]
    assert makespan(jobs, (2,), looks_ahead=False) == 6.0
    assert makespan(jobs, (2,)) == 4.0


def campaign(random: Random, hosts: int, pool: int) -> list[Job]:
    """Three blocks of the shapes of a scaling study: devices on one host, and spread over hosts."""
    counts = [n for n in (0, 1, 2, 4, 8) if n <= pool]
    shapes = [(1, each) for each in counts] + [
        (n, n * each) for n in (2, 4) for each in counts if n <= hosts and n * each <= pool
    ]
    seconds = {shape: math.exp(random.gauss(6, 0.4)) + 21 * shape[1] for shape in shapes}
    blocks = [random.sample(shapes, len(shapes)) for _ in range(3)]
    return [Job(shape, seconds[shape], block) for block, order in enumerate(blocks) for shape in order]


def test_campaigns_take_hardly_longer_than_pool_and_runs_require() -> None:
    random, ratios = Random(1), []
    for _ in range(40):
        limit = random.choice([(2, 8), (2, 16), (4, 16), (4, 32), (8, 32)])
        jobs = campaign(random, *limit)
        ratios.append(makespan(jobs, limit) / lower_bound(jobs, limit))
    assert median(ratios) < 1.04
    # In most of the others, no order reaches the bound: shapes do not fill what there is.
    assert sum(ratio <= 1.1 for ratio in ratios) >= 32
    assert max(ratios) < 1.2


def test_leases_are_limited_by_hosts_models_drives_and_hosts_with_devices_of_their_own(tmp_path: Path) -> None:
    files = {
        "system.hosts": [
            {"name": "host[1-3]", "cores": 4},
            {"name": "own1", "cores": 4, "devices": [{"model": "cpu-rank", "count": 4}]},
        ],
        "system.pool": [
            {"kind": "gpu", "model": "cpu-rank", "count": 4, "drawer": "falcon1/drawer1"},
            {"kind": "nvme", "model": "ssd", "count": 1, "drawer": "falcon1/drawer2"},
        ],
        "campaign.configurations": [
            {"name": "fabric", "devices_per_host": 2, "attach": "fabric"},
            {"name": "drive", "devices_per_host": 1, "attach": "fabric", "storage": "fabric-nvme"},
            {"name": "local", "devices_per_host": 1, "attach": "local"},
        ],
        "campaign.protocol.isolation": "host",
    }
    made = load(tmp_path, files)
    limit = Limit.of(made, 64)
    share = {each.name: limit.share(each) for each in made.configurations}

    def together(*names: str) -> bool:
        free = limit.whole
        for name in names:
            if not fits(share[name], free):
                return False
            free = left(free, share[name])
        return True

    assert together("fabric", "fabric", "local")
    assert not together("fabric", "fabric", "fabric")
    assert not together("drive", "drive")
    assert not together("local", "local")
