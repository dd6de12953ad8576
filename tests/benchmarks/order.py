"""Leases of a plan on a simulated chassis and over emulated Falcon boxes: devices moved one by one, and time side by side."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from campaign.documents.lease_plan import LeasePlan, read_lease_plan
from campaign.documents.operation_times import published_times
from campaign.documents.plan import PlanDocument, parse_plan, plan_json
from campaign.files import write_json
from campaign.lease.campaign_leases import Site, request
from campaign.lease.lifecycle import acquire, release
from campaign.paths import Results
from campaign.plan.concurrency import Limit
from campaign.plan.cost.assumption import parse_assumption
from campaign.plan.dag import Request, read_plan
from campaign.plan.lease_plans import campaign_of
from campaign.plan.packing import Job, lower_bound
from campaign.plan.write import write_plan
from campaign.run.measure_plan import measure_plan
from campaign.testbed.control_planes.h3 import open_dialect
from campaign.testbed.control_planes.hardware import rack
from campaign.testbed.control_planes.server import Server
from campaign.testbed.serve_control_plane import system_document
from tests.benchmarks.figure import Figure, Skipped
from tests.benchmarks.project import COMMAND, Project

FACTOR = 0.02
"""Of recorded times."""
RUNS_S = {"machine": 0.3, "host": 12.0}
"""Runs of a lease, by isolation: side by side they stand for ten minutes."""
CONFIGURATIONS = [
    {"devices_per_host": [4, 1, 3, 2, 6], "attach": "fabric"},
    {"hosts": 2, "devices_per_host": [3, 1, 2], "attach": "fabric"},
]
COMPOSITIONS = 2
CORES = 64


def order(project: Project) -> Iterable[Figure]:
    """Makespan against its lower bound, and devices moved, on a simulated chassis and over emulated boxes (about five minutes)."""
    project.command("brief", COMMAND)
    hosts = [{"name": "host[1-3]", "cores": 8}]
    pool = [{"kind": "gpu", "model": "cpu-rank", "count": 8, "drawer": "falcon1/drawer1"}]
    fabric = {"kind": "simulated", "times": "h3", "times_factor": FACTOR}
    simulated = {
        "launcher": "local",
        "fabric": fabric,
        "hosts": hosts,
        "pool": pool,
        "devices": {"cpu-rank": {"runs_on": "cpu"}},
    }
    yield from _both(project, "simulated", simulated)
    hardware = rack(["host1", "host2", "host3"], [("gpu", "cpu-rank", 8)])
    with Server(open_dialect(hardware, factor=FACTOR, seed=13), project.directory / "emulator") as server:
        boxes = system_document("boxes", "h3", server, hardware, "host[1-3]")
        boxes["fabric"]["poll_s"] = 0.01
        boxes["times"] = "times.json"
        (project.directory / "systems" / "times.json").write_text(
            json.dumps(published_times("h3").scaled(FACTOR).document())
        )
        yield from _both(project, "boxes", boxes)


def _both(project: Project, name: str, system: dict[str, Any]) -> Iterable[Figure]:
    (project.directory / "systems" / f"{name}.yaml").write_text(yaml.safe_dump(system | {"name": name}))
    plan, moved, _ = _measured(project, name, "machine")
    planned = plan.totals
    words = (
        f"planned; {planned.attached_at_random} in random order, {planned.attached_in_file_order} in that of the file"
    )
    yield Figure(
        f"order, {name}: devices attached, one by one", moved, "", planned.attached or 0, planned.attached, words
    )
    plan, moved, lasted = _measured(project, name, "host")
    bound = _bound(plan, Results(project.directory / "results", f"{name}-host"))
    yield Figure(
        f"order, {name}: {len(plan.leases)} leases side by side", lasted, "s", 1.1 * bound, bound, "pool and runs"
    )
    words = "planned for one by one"
    yield Figure(f"order, {name}: devices attached, side by side", moved, "", math.inf, plan.totals.attached, words)


def _measured(project: Project, system: str, isolation: str) -> tuple[PlanDocument, int, float]:
    """The plan of a campaign, how many devices were attached for its leases, and seconds that all of them took."""
    name = f"{system}-{isolation}"
    path = project.directory / f"{name}.yaml"
    document: dict[str, Any] = {
        "name": name,
        "system": system,
        "configurations": CONFIGURATIONS,
        "axes": {"workload": "brief", "batch": 1, "precision": "fp32"},
        "protocol": {"repetitions": COMPOSITIONS, "compositions": COMPOSITIONS, "isolation": isolation},
    }
    path.write_text(yaml.safe_dump(document))
    runs_s = RUNS_S[isolation]
    asked = Request(path, project.directory / "results", assumed=parse_assumption(f"{runs_s} s a run"))
    results = Results(asked.results, name)
    write_plan(read_plan(asked), results)
    plan = parse_plan(results.plan_document, plan_json(results.plan_document))
    started = time.monotonic()
    done = measure_plan(plan, results.plan, results, _Stand(results, runs_s), CORES)
    lasted = time.monotonic() - started
    if done.failed or done.left:
        raise Skipped(f"leases failed: {done}")
    manifests = results.manifests.glob("*/*.json")
    return plan, sum(int(json.loads(each.read_text())["attached"]) for each in manifests), lasted


def _bound(plan: PlanDocument, results: Results) -> float:
    """Seconds that the pool and the leases take at least, as forecast: their runs, and composing one after another."""
    campaign = campaign_of(read_lease_plan(results.plan / plan.leases[0].document))
    limit = Limit.of(campaign, CORES)
    shares = {each.name: limit.share(each) for each in campaign.configurations}
    jobs = [Job(shares[lease.configuration], lease.expected_s or 0.0) for lease in plan.leases]
    return lower_bound(jobs, limit.whole)


class _Stand:
    """Stands for measuring a lease: composes it, waits as long as its runs take, and releases it or leaves its devices."""

    def __init__(self, results: Results, runs_s: float) -> None:
        self.results = results
        self.runs_s = runs_s

    def __call__(self, plan: LeasePlan, out: Path, _: bool, leave: bool) -> None:
        campaign = campaign_of(plan)
        site = Site(campaign.system, self.results.root)
        asked = request(campaign, self.results, plan.lease, plan.configuration, (), plan.composition)
        with site.fabric() as fabric:
            before = {device.fabric_id: device for device in fabric.inventory().devices}
            lease = acquire(fabric, asked, site.journals, wait_s=60, poll_s=0.02)
            time.sleep(self.runs_s)
            there = {name: each.attached_to for name, each in before.items() if each.stays == asked.epoch}
            pooled = [
                (device.fabric_id, host.name)
                for host in lease.composition.hosts
                for device in host.devices
                if not device.local
            ]
            attached = sum(there.get(name) != host for name, host in pooled)
            release(fabric, lease, poll_s=0.02, leave=leave)
        write_json(out, {"lease": plan.lease, "missing": [], "attached": attached})
