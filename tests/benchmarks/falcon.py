"""A campaign over two emulated Falcon boxes that are as slow as they were recorded: composing as forecast, and as it was."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import yaml

from campaign.emulators.control_planes.h3 import EmulatedBoxes, open_emulator
from campaign.emulators.control_planes.hardware import build_rack
from campaign.emulators.control_planes.server import ControlPlaneServer
from campaign.emulators.serve_control_plane import build_system_document
from tests.benchmarks.figure import Figure
from tests.benchmarks.project import COMMAND, Project

HOSTS = "host[1-3]"
CONFIGURATIONS = [
    {"devices_per_host": [1, 2, 4], "attach": "fabric"},
    {"hosts": 2, "devices_per_host": 2, "attach": "fabric"},
]
COMPOSITIONS = 2
CAMPAIGNS = {"first": "published recordings alone", "second": "these, and the first campaign on this system"}
_COVERED = 0.8  # of so few leases
_ERROR_PCT = 25.0


@dataclass(frozen=True)
class Composed:
    """One lease, in seconds."""

    name: str
    expected_s: float
    low_s: float
    high_s: float
    actual_s: float

    @property
    def covered(self) -> bool:
        return self.low_s <= self.actual_s <= self.high_s

    @property
    def error_pct(self) -> float:
        return 100 * abs(self.expected_s - self.actual_s) / self.actual_s


def falcon(project: Project) -> Iterable[Figure]:
    """Composing over two emulated Falcon boxes at recorded speed: forecast beside what it took (about half an hour)."""
    with served(project.directory) as (server, boxes):
        document = build_system_document("falcon", "h3", server, boxes.rack, HOSTS)
        (project.directory / "systems" / "falcon.yaml").write_text(yaml.safe_dump(document, sort_keys=False))
        project.command("brief", COMMAND, run_s=1.0)
        for name, basis in CAMPAIGNS.items():
            yield from compared(name, basis, composed(project, name))
        yield Figure("falcon, requests that no client ever sent", len(boxes.violations), "", 0)


@contextmanager
def served(directory: Path, factor: float = 1.0) -> Iterator[tuple[ControlPlaneServer, EmulatedBoxes]]:
    """Two boxes of four GPUs, all of them on a third host at first, while somebody else polls the boxes too."""
    hardware = build_rack(["host1", "host2", "host3"], [("gpu", "cpu-rank", 8)])
    for device in hardware.devices:
        hardware.attach(device, "host3")
    emulator = open_emulator(hardware, factor=factor, attached="all", disturbed="always", seed=29)
    assert isinstance(emulator, EmulatedBoxes)
    with ControlPlaneServer(emulator, directory / "emulator") as server:
        yield server, emulator


def composed(project: Project, name: str) -> list[Composed]:
    """Plan a campaign, measure it, and give its leases in the order in which they were composed."""
    path = project.directory / f"{name}.yaml"
    document: dict[str, Any] = {
        "name": name,
        "system": "falcon",
        "configurations": CONFIGURATIONS,
        "axes": {"workload": "brief", "batch": 1, "precision": "fp32"},
        "protocol": {
            "repetitions": COMPOSITIONS,
            "compositions": COMPOSITIONS,
            "links": {"when": []},
            "telemetry_s": None,
        },
    }
    path.write_text(yaml.safe_dump(document, sort_keys=False))
    plan = project.directory / "plan" / name
    project.run("campaign", "plan", str(path), "--output", str(plan))
    expected = {lease["lease"]: lease for lease in json.loads((plan / "plan.json").read_text())["leases"]}
    project.snakemake(path, "tables")
    measured = json.loads((project.directory / "results" / name / "tables" / "leases.json").read_text())
    found = []
    for lease in sorted(measured, key=lambda lease: float(lease["requested_s"])):
        forecast = expected[lease["lease_id"].split(".")[1]]
        found.append(
            Composed(
                lease["lease_id"],
                *(forecast["composing_s"] * forecast[key] / forecast["expected_s"] for key in _FORECAST),
                lease["ready_s"] - lease["requested_s"],
            )
        )
    return found


_FORECAST = ("expected_s", "expected_low_s", "expected_high_s")


def compared(name: str, basis: str, leases: list[Composed]) -> Iterator[Figure]:
    """A row a lease, and how good the forecasts were together."""
    for lease in leases:
        words = f"forecast, {lease.low_s:.0f} to {lease.high_s:.0f} s"
        yield Figure(f"falcon, {lease.name}", lease.actual_s, "s", math.inf, lease.expected_s or None, words)
    outside = sum(not lease.covered for lease in leases)
    most = (1 - _COVERED) * len(leases)
    yield Figure(f"falcon, {name}: outside of the interval", outside, "", most, len(leases), f"leases; from {basis}")
    errors = [lease.error_pct for lease in leases]
    yield Figure(f"falcon, {name}: median error of the forecast", median(errors), "%", _ERROR_PCT)
