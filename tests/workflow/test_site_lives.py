"""A site lives: a parser is corrected, an input gets a version, a driver is updated. What was measured counts throughout."""

from __future__ import annotations

import csv
import json
import zipfile
from pathlib import Path

import yaml

from tests.workflow.checkout_twin import Project


def install(project: Project, driver: str) -> None:
    """A driver that `nvidia-smi` reports."""
    tool = project.home / "bin" / "nvidia-smi"
    tool.parent.mkdir(exist_ok=True)
    tool.write_text(f"#!/bin/sh\necho '0, GPU-1, A100, 40960 MiB, {driver}, 4, 16'\n")
    tool.chmod(0o755)
    project.environment["PATH"] = f"{tool.parent}:{project.environment['PATH'].removeprefix(f'{tool.parent}:')}"


def rates(project: Project) -> list[float]:
    with (project.results().tables / "runs.csv").open() as table:
        return [float(row["throughput_per_s"]) for row in csv.DictReader(table)]


def test_what_was_measured_counts_after_corrections_and_beside_an_update(project: Project) -> None:
    install(project, "570.86")
    path = project.workload("logged", body="sleep 0.01; echo rate: 12 of 15 requests/s")
    workload = yaml.safe_load(path.read_text())
    path.write_text(yaml.safe_dump(workload | {"parsers": [{"metric": "throughput_per_s", "regex": r"of (\S+)"}]}))
    campaign, results = project.campaign(repetitions=2), project.results()
    here = f"--results={project.results_root}"
    project.write_tables()
    records = project.record_files()
    assert rates(project) == [15, 15]

    # Another number was meant: nothing is measured, and the kept logs tell it.
    path.write_text(yaml.safe_dump(workload))
    planned = project.run_campaign("plan", str(campaign), here)
    assert "the parser has changed since 2 runs were read" in planned
    assert ", 0 without a record" in planned
    said = project.run_campaign("parse", str(campaign), here)
    assert "read 2 logs again, of which 2 gave other numbers" in said
    assert rates(project) == [12, 12]
    project.write_tables()
    assert rates(project) == [12, 12]
    assert project.record_files() == records
    assert len(project.starts()) == 2
    assert "the parser has changed" not in project.run_campaign("plan", str(campaign), here)
    assert "read again at" in (results.tables / "context.json").read_text()

    # The driver is updated: the plan says so, and a label measures an after beside the before.
    install(project, "580.159")
    planned = project.run_campaign("plan", str(campaign), here)
    assert "1 cell was measured with nvidia driver 570.86; this machine has nvidia driver 580.159" in planned
    project.run("tables", version="driver-580")
    assert len(project.starts()) == 4
    assert rates(project) == [12, 12]
    # Leases of one name are those of one label, too.
    assert len(list(results.leases.glob("*.json"))) == 2
    assert len(json.loads((results.tables / "leases.json").read_text())) == 1
    assert records.items() <= project.record_files().items()
    page = project.directory / "changes.html"
    project.run_campaign("compare", str(campaign), here, "--versions", "none", "driver-580", f"--output={page}")
    assert all(word in page.read_text() for word in ("c.yaml (none)", "c.yaml (driver-580)", "570.86", "580.159"))
    again = project.run_campaign("plan", str(campaign), here, "--version=driver-580")
    assert ", 0 without a record" in again
    assert "was measured with" not in again

    # Archives hold the readings.
    archive = Path("site.zip")
    project.run_campaign("archive", str(campaign), here, f"--output={archive}")
    with zipfile.ZipFile(project.directory / archive) as packed:
        assert json.loads(packed.read("campaign.json"))["campaign"]["version"] == "driver-580"
        assert any(name.startswith("readings/") for name in packed.namelist())
    project.run_campaign("compare", str(archive), "--versions", "none", "driver-580")
    assert "has no runs of version driver-590; its versions are driver-580, none" in project.run_campaign(
        "compare", str(archive), "--versions", "none", "driver-590", expect=1
    )
