"""The demo campaign, cell by cell, over emulated control planes of real fabrics: real requests over TLS, synthetic workloads."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from campaign.emulators.catalog import load_emulator_module, open_emulator
from campaign.emulators.control_planes.h3 import EmulatedBoxes
from campaign.emulators.control_planes.hardware import build_rack
from campaign.emulators.control_planes.server import ControlPlaneServer, WireFault
from campaign.emulators.serve_control_plane import PASSWORD, USER, build_system_document
from campaign.plan.campaign.resolve import load_campaign
from campaign.plan.matrix import expand_matrix
from tests.workflow.checkout_twin import ROOT, Project

HOSTS = "host[1-4]"


H3 = {"factor": 0.01, "attached": "all", "disturbed": "always"}
"""Two Falcon boxes 100 times as fast as they were recorded, while others poll them too."""


@pytest.fixture(params=["redfish", "liqid", "h3"])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Project, ControlPlaneServer]]:
    """The demo's hosts and pool behind another control plane, and the demo with short runs: all its cells behind one of them,
    one configuration of each kind behind the others."""
    demo = yaml.safe_load((ROOT / "config" / "campaign.yaml").read_text())
    falcon = yaml.safe_load((ROOT / "config" / "systems" / "falcon-demo.yaml").read_text())
    pool = [(entry["kind"], entry["model"]) for entry in falcon["pool"]]
    counts = {each: sum(e["count"] for e in falcon["pool"] if (e["kind"], e["model"]) == each) for each in pool}
    h3 = request.param == "h3"
    devices = [(kind, model, n) for (kind, model), n in counts.items() if kind == "gpu" or not h3]
    hardware = build_rack([f"host{n}" for n in range(1, 5)], devices)
    with ControlPlaneServer(open_emulator(request.param, hardware, **(H3 if h3 else {})), tmp_path / "tls") as server:
        (tmp_path / "tls").mkdir(exist_ok=True)
        (tmp_path / "tls" / "credentials").write_text(f"{USER}\n{PASSWORD}\n")
        (tmp_path / "tls" / "credentials").chmod(0o600)
        project = Project(tmp_path / "project")
        system: dict[str, Any] = build_system_document("falcon-demo", request.param, server, hardware, HOSTS)
        if h3:
            system["fabric"]["poll_s"] = 0.01
            system["times_factor"] = H3["factor"]
        project.write("systems/falcon-demo.yaml", system | {"hosts": falcon["hosts"]})
        short = {"warmup_steps": 1, "measured_steps": 1, "repetitions": 1, "telemetry_s": None, "links": {"when": []}}
        some = {
            "configuration": ["1x4-local", "2x2-local", "1x4-hybrid", "1x4-fabric"],
            "workload": "bert-nano",
            "batch": 8,
        }
        axes = demo["axes"] if request.param == "redfish" else some
        for name in demo["axes"]["workload"]:
            project.synthetic(name, precisions=["fp32", "bf16"])
        project.write("c.yaml", demo | {"name": "c", "axes": axes, "overrides": [], "protocol": short})
        # The first answer to a request that composes is lost.
        server.faults.add_fault(WireFault("drop_after", *load_emulator_module(request.param).COMPOSES))
        yield project, server


def test_the_demo_is_measured_over_every_control_plane(site: tuple[Project, ControlPlaneServer]) -> None:
    project, server = site
    campaign = load_campaign(project.campaigns / "c.yaml")
    before = {device.name: device.attached_to for device in server.emulator.rack.devices.values()}
    whole = campaign.system.fabric["kind"] == "redfish"
    said = project.run("--until", "tables", time_out_s=900) if whole else project.measure_leases()
    cells = {cell.id for cell in expand_matrix(campaign).cells}
    records = project.records()
    assert len(cells) == (29 if whole else 4)
    assert {record.cell_id for record in records} == cells
    assert {record.status for record in records} == {"ok"}, [record.failure for record in records]
    assert not [flag for record in records for flag in record.flags if flag.startswith("composition")]

    leases = project.leases()
    assert {lease["state"] for lease in leases} == {"RELEASED"}, said
    pooled = {"1x4-hybrid": 2, "1x4-fabric": 4}
    for lease in leases:
        if lease["obtained"] is None:
            continue
        devices = [device for host in lease["obtained"]["hosts"] for device in host["devices"]]
        assert sum(not device["local"] for device in devices) == pooled.get(lease["configuration"], 0)
    assert sum(lease["retries"] for lease in leases) >= 1
    assert {device.name: device.attached_to for device in server.emulator.rack.devices.values()} == before
    if isinstance(server.emulator, EmulatedBoxes):
        assert server.emulator.violations == []
        assert {took.operation for took in server.emulator.timed_operations} == {
            "detach",
            "attach",
            "inventory",
            "read_back",
        }
        plan = json.loads((project.results().directory / "plan" / "plan.json").read_text())
        for lease in (one for one in leases if one["configuration"] in pooled):
            (planned,) = (one for one in plan["leases"] if one["configuration"] == lease["configuration"])
            took_s = lease["ready_s"] - lease["requested_s"]
            assert 0.2 * planned["composing_s"] < took_s < 6 * planned["composing_s"]  # machines of tests are busy

    if whole:
        page = project.page("composition_times")
        assert 'id="composition-times"' in page
        assert "unverified" in page

    files = [path for path in project.directory.rglob("*") if path.is_file() and not path.is_symlink()]
    assert len(files) > 50
    assert not [path for path in files if PASSWORD.encode() in path.read_bytes()]


def test_what_is_measured_inherits_no_secret(tmp_path: Path) -> None:
    hardware = build_rack(["host1", "host2"], [("gpu", "cpu-rank", 2)])
    with ControlPlaneServer(open_emulator("redfish", hardware), tmp_path / "tls") as server:
        project = Project(tmp_path / "project")
        project.environment |= {"SITE_USER": USER, "SITE_PASSWORD": PASSWORD, "SITE_OTHER": "inherited"}
        project.environment.pop("FABRIC_PASSWORD", None)  # of other tests
        system: dict[str, Any] = build_system_document("bench", "redfish", server, hardware, "host[1-2]")
        system["fabric"]["credentials"] = {"user_env": "SITE_USER", "password_env": "SITE_PASSWORD"}
        project.write("systems/bench.yaml", system)
        project.workload("logged", body='env > "$STARTS.env"; echo rate: 10')
        project.campaign(attach=["fabric"])
        project.measure()
    assert [record.status for record in project.records()] == ["ok"]
    inherited = Path(f"{project.environment['STARTS']}.env").read_text()
    assert "SITE_OTHER=inherited" in inherited
    assert "SITE_PASSWORD" not in inherited
    assert PASSWORD not in inherited
