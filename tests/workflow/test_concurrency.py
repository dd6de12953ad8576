"""Leases beside each other: as many as isolation, cores and pool allow, and never a device in two of them."""

from __future__ import annotations

import json
import re
from itertools import combinations
from typing import Any

import pytest

from campaign.spec.record import Record
from tests.workflow.checkout_twin import TIME_OUT_S, Project

# Two invocations at once need a while on a busy machine; long enough runs make their overlap certain.
LONG_S = 1.0


def overlap_s(one: Record, other: Record) -> float:
    return min(one.ended, other.ended) - max(one.started, other.started)


def overlapping(records: list[Record]) -> list[tuple[str, str]]:
    """Pairs of leases of which two runs took place at one time."""
    pairs = {
        tuple(sorted((one.lease_id, other.lease_id)))
        for one, other in combinations(records, 2)
        if overlap_s(one, other) > 0
    }
    return sorted(pairs)


def most_at_once(records: list[Record]) -> int:
    return max(sum(one.started <= other.started < one.ended for one in records) for other in records)


def devices_at(document: dict[str, Any]) -> set[str]:
    """Fabric ids that a use of a lease held."""
    return {
        device["fabric_id"] for host in document["obtained"]["hosts"] for device in (*host["devices"], *host["storage"])
    }


def assert_no_device_in_two_leases(documents: list[dict[str, Any]]) -> None:
    shared = 0
    for one, other in combinations(documents, 2):
        if not devices_at(one) & devices_at(other):
            continue
        shared += 1
        first, second = sorted((one, other), key=lambda document: document["fabric_done_s"])
        # Between attachment and the end of releasing a device is one lease's alone.
        assert first["release_started_s"] <= second["fabric_done_s"], (first["lease_id"], second["lease_id"])
    assert shared, "no device was ever used twice: this test says nothing"


def test_without_isolation_leases_run_at_once_as_far_as_the_pool_allows(project: Project) -> None:
    project.system(pool=2, hosts=4)
    project.workload("logged", sleep_s=LONG_S)
    # Four leases of one pooled device each, and two devices.
    project.campaign(attach=["fabric"], batch=[1, 2, 3, 4], isolation="none", lease_per="cell")
    project.measure()
    records = project.records()
    assert len(records) == 4
    assert overlapping(records)
    assert most_at_once(records) == 2
    assert len(project.leases()) == 4
    assert {record.lease_id for record in records} == {document["lease_id"] for document in project.leases()}
    assert_no_device_in_two_leases(project.leases())
    assert project.held() == {}


def test_leases_start_in_the_order_of_the_plan_and_none_passes_a_larger_one(project: Project) -> None:
    project.system(hosts=4)
    project.workload("logged", sleep_s=LONG_S / 4)
    project.campaign(hosts=[1, 2, 4], compositions=2, repetitions=2, isolation="none")
    project.measure("--cores", "16")
    planned = [lease["lease"] for lease in json.loads(project.results().plan_file.read_text())["leases"]]
    documents = {re.sub(r"^c\.|\.\w+\.\d+$", "", document["lease_id"]): document for document in project.leases()}
    assert set(documents) == set(planned)
    whole = [number for number, name in enumerate(planned) if len(documents[name]["obtained"]["hosts"]) == 4]
    assert len(whole) == 2
    assert whole != [4, 5]  # where the largest ones come last in any case, this test says nothing
    for number in whole:
        of_all = documents[planned[number]]
        assert all(documents[name]["release_started_s"] <= of_all["requested_s"] for name in planned[:number])
        assert all(documents[name]["requested_s"] >= of_all["release_started_s"] for name in planned[number + 1 :])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("profile", "options", "at_once"),
    [
        ("local", "--cores 3", 1),
        ("local", "--cores 4", 2),
        ("local", "--cores 4 --resources hosts=1", 1),
        ("local", "--cores 2 --set-threads measure=1", 2),
        ("slurm", "--jobs 3", 1),
    ],
)
def test_options_of_snakemake_bound_what_runs_at_once(
    project: Project, profile: str, options: str, at_once: int
) -> None:
    """Leases of two ranks, on four hosts."""
    project.system(hosts=4)
    project.workload("logged", sleep_s=LONG_S)
    project.campaign(devices=[2], batch=[1, 2, 3], isolation="none", lease_per="cell")
    project.measure(*options.split(), profile=profile, launcher="local")
    assert len(project.records()) == 3
    assert most_at_once(project.records()) == at_once


def test_a_lease_that_needs_more_than_a_limit_ends_planning(project: Project) -> None:
    project.system(hosts=2)
    project.write(
        "c.yaml",
        {
            "name": "c",
            "system": "bench",
            "configurations": [{"hosts": [1, 2], "devices_per_host": 1}],
            "axes": {"workload": "logged", "batch": 1},
        },
    )
    said = project.run("-n", "--resources", "hosts=1", expect=1)
    assert "error: --resources hosts=1: lease 2x1-local.c1 needs 2; raise the limit, or exclude the lease" in said


def test_by_default_leases_go_one_at_a_time_also_for_two_campaigns(project: Project) -> None:
    project.workload("logged", sleep_s=LONG_S / 2)
    project.system("other-bench")
    project.campaign("a", attach=["local", "fabric"], batch=[1, 2])
    project.campaign("b", system="other-bench", batch=[1, 2])
    both = [project.start("--until", "measure", campaign=name) for name in ("a", "b")]
    assert [process.wait(TIME_OUT_S) for process in both] == [0, 0], project.said()
    records = [*project.records("a"), *project.records("b")]
    assert len(records) == 6
    assert overlapping(records) == []
    assert most_at_once(records) == 1
    assert re.search(r"waiting for process \d+ \(.*\) of user \S+, which measures on this machine", project.said())


def test_two_campaigns_share_one_pooled_device(project: Project) -> None:
    project.system(pool=1)
    project.workload("logged", sleep_s=LONG_S)
    for name in ("a", "b"):
        project.campaign(name, attach=["fabric"], batch=[1, 2], isolation="none")
    both = [project.start("--until", "measure", campaign=name) for name in ("a", "b")]
    assert [process.wait(TIME_OUT_S) for process in both] == [0, 0], project.said()
    assert [len(project.records(name)) for name in ("a", "b")] == [2, 2]
    documents = [*project.leases("a"), *project.leases("b")]
    assert_no_device_in_two_leases(documents)
    assert any(document["waits"] for document in documents)
    assert ": waiting: " in project.said()
    assert project.held() == {}


def test_two_invocations_of_one_campaign_measure_nothing_twice(project: Project) -> None:
    project.workload("logged", sleep_s=LONG_S)
    project.campaign(batch=[1, 2])
    both = [project.start("--until", "measure") for _ in range(2)]
    assert [process.wait(TIME_OUT_S) for process in both] == [0, 0], project.said()
    assert sorted(project.started().values()) == [1, 1]
    assert len(project.records()) == 2
    assert "which already measures this lease" in project.said()
