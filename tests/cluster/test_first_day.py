"""An engineer's first day: a Falcon and a Slurm described with honest mistakes, which are found before the first lease.

The commands are those of docs/how-to/first-day.md, in their order.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from campaign.emulators.catalog import open_emulator
from campaign.emulators.control_planes.hardware import Rack, build_rack
from campaign.emulators.control_planes.server import ControlPlaneServer
from campaign.emulators.serve_control_plane import build_system_document
from campaign.emulators.slurm.cluster import start_cluster, stop_cluster
from campaign.emulators.slurm.spec_from_system import build_cluster_spec
from campaign.plan.campaign.load import read_system
from tests.cluster.cluster_project import SLURM, ClusterProject
from tests.workflow.checkout_twin import ROOT

pytestmark = pytest.mark.usefixtures("slurm_installed")

PAGE = ROOT / "docs" / "how-to" / "first-day.md"
MEASURE = ("--", "--until", "measure")
"""Without tables and a report, which take longer than all else."""
MISTAKES = {
    "agent": (
        {"fabric": {"agent": {"kind": "http", "url": "BOX/_hots/{host}/devices"}}},
        ["host1: GET ", "/_hots/host1/devices: the service refuses the request", "correct `fabric: agent`", "--without-hosts"],
    ),
    "host": ({"hosts": "host[1-4]"}, ["Slurm does not list host4 (`hosts`); it lists: host1, host2, host3"]),
    "port": (
        {"fabric": {"hosts": {"host1": "0", "host2": "48", "host3": "96"}}},
        ["drawer1 does not list port 96 of host3; set `hosts` or `ports` to one of: 0, 16, 48"],
    ),
    "credentials": ({"fabric": {"credentials": {"password_env": "FALCON"}}}, ["has no login; remove `credentials`"]),
    "model": ({"model": "cpu-rnak"}, ["devices.cpu-rank: no host and no pool entry has this device", "cpu-rnak"]),
    "partition": ({"slurm": {"partition": "composd"}}, ["no partition 'composd'", "it has: composed"]),
}  # fmt: skip
"""What the system file says, and what is said of it."""


def described(right: dict[str, Any], mistake: dict[str, Any]) -> dict[str, Any]:
    (host,), pool = (
        right["hosts"],
        [{**entry, "model": mistake.get("model", entry["model"])} for entry in right["pool"]],
    )
    changed = {key: {**right[key], **mistake.get(key, {})} for key in ("fabric", "slurm")}
    agent = changed["fabric"]["agent"]
    changed["fabric"]["agent"] = {**agent, "url": agent["url"].replace("BOX", right["fabric"]["boxes"]["drawer1"])}
    return {**right, **changed, "hosts": [{**host, "name": mistake.get("hosts", host["name"])}], "pool": pool}


@pytest.fixture
def day(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[ClusterProject, Rack, dict[str, Any]]]:
    """A cluster, two boxes, and the system file that is right for them."""
    hardware, directory = (
        build_rack(["host1", "host2", "host3"], [("gpu", "cpu-rank", 6)]),
        tmp_path_factory.mktemp("day"),
    )
    with ControlPlaneServer(open_emulator("h3", hardware, attached="all", factor=0.001), tmp_path / "boxes") as server:
        right: dict[str, Any] = build_system_document("lab", "h3", server, hardware, "host[1-3]")
        right["fabric"]["poll_s"] = 0.01
        right |= {"launcher": "slurm", "slurm": {**SLURM, "partition": "composed"}}
        right["hosts"] = [{"name": "host[1-3]", "cores": 6, "memory_gib": 2}]
        (tmp_path / "systems").mkdir()
        (tmp_path / "systems" / "lab.yaml").write_text(yaml.safe_dump(right))
        try:
            cluster = start_cluster(directory, build_cluster_spec(read_system("lab", tmp_path / "campaign.yaml")))
            project = ClusterProject(tmp_path / "project", cluster)
            project.campaign("lab", system="lab", devices=(2, 1), attach=("fabric",))
            project.campaign("wide", system="lab", devices=(1,), attach=("fabric",), hosts=(1, 3))
            yield project, hardware, right
            project.kill()
        finally:
            stop_cluster(directory)


def page_commands() -> list[list[str]]:
    """The page's commands, as typed in the project of a test."""
    text = "\n".join(re.findall(r"```bash\n(.*?)```", PAGE.read_text(), re.DOTALL))
    return [line.replace("config/", "campaigns/").split()[1:] for line in text.splitlines() if line]


def test_the_first_day(day: tuple[ClusterProject, Rack, dict[str, Any]]) -> None:
    project, hardware, right = day
    found_at = {name: device.attached_to for name, device in hardware.devices.items()}
    check, trial, plan, run, status, plan_without, run_without, end = page_commands()

    for mistake, words in MISTAKES.values():
        project.write("systems/lab.yaml", described(right, mistake))
        said = project.run_campaign(*check, expect=1)
        assert [each for each in words if each not in said] == [], said
    # A campaign says the same before its first lease, and so does its status.
    mistake, words = MISTAKES["agent"]
    project.write("systems/lab.yaml", described(right, mistake))
    project.run_campaign(*run, *MEASURE, expect=1)
    assert words[1] in project.run_campaign(*status)
    assert (project.starts(), hardware.changes) == ([], len(hardware.devices))

    project.write("systems/lab.yaml", right)
    assert "the model is from the file, as the fabric does not report it" in project.run_campaign(*check)
    assert "everything was released" in project.run_campaign(*trial)
    assert "1x2-fabric.c1" in project.run_campaign(*plan)
    project.run_campaign(*run, *MEASURE)
    assert {record.status for record in project.records("lab")} == {"ok"}
    assert "2 of 2 runs" in project.run_campaign(*status)

    # A bad host is left out, and with it the only configuration that needs all three.
    wide = [[word.replace("lab.yaml", "wide.yaml") for word in each] for each in (plan_without, run_without)]
    said = project.run_campaign(*wide[0])
    assert "3x1-fabric, without host3" in said
    project.run_campaign(*wide[1], *MEASURE)
    (record,) = project.records("wide")
    assert (record.status, record.cell.configuration) == ("ok", "1x1-fabric")
    assert "host3" not in record.hosts
    assert project.run_campaign(*end) == "no lease was left behind\n"
    assert {name: device.attached_to for name, device in hardware.devices.items()} == found_at
