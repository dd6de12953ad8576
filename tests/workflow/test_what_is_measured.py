"""Exactly what has no record is measured, whatever .snakemake remembers."""

from __future__ import annotations

import json
import shutil

from tests.workflow.checkout_twin import Project
from tests.workflow.test_growth import jobs

LOCAL, FABRIC = ("results/c/manifests/1x1-local.c1.json", "results/c/manifests/1x1-fabric.c1.json")


def test_exactly_what_has_no_record_is_measured(project: Project) -> None:
    def run(*arguments: str, expect: int = 0) -> str:
        return project.run(*arguments, expect=expect, results="results")

    def measures(*arguments: str) -> int:
        return jobs(run("-n", "-p", *arguments)).get("measure", 0)

    # A lease that fails the same way three times is tried three times, and the others are measured once.
    project.campaign(attach=["local", "fabric"], batch=[1, 2], attempts=2)
    project.system(faults=[{"kind": "partial_attach", "times": 1000}])
    for number in (1, 2, 3):
        assert measures("measured") == (2 if number == 1 else 1)
        said = run("measured", expect=1) if number < 3 else run("--until", "measured", expect=1)
        assert "\n1x1-fabric.c1: 2 of 2 runs: " in said
        assert "error: some runs have no record; run the same command again" in said
        manifest = json.loads((project.directory / FABRIC).read_text())
        assert len(manifest["missing"]) == 2
        assert "could not be attached" in manifest["reason"]
        assert [document["lease"] for document in project.leases()].count("1x1-fabric.c1") == 2 * number
    assert len(project.starts()) == 2

    # One typed target is one lease.
    project.system()
    for path in project.record_files():
        path.unlink()
    assert jobs(run(LOCAL)) == {"measure": 1}
    assert {record.cell.attach for record in project.records()} == {"local"}
    run("measured")
    everything = project.record_files()
    assert (len(everything), len(project.starts())) == (4, 6)
    assert "Nothing to be done" in run("measured")

    # Snakemake's memory, or a manifest, is gone.
    shutil.rmtree(project.directory / ".snakemake")
    assert "Nothing to be done" in run("measured")
    said = (project.directory / LOCAL).read_text()
    (project.directory / LOCAL).unlink()
    assert measures("measured") == 1
    assert "all runs have a record; 'campaign redo' measures runs again" in run("measured")
    assert json.loads((project.directory / LOCAL).read_text()) == json.loads(said)

    # Who wants runs again is told how, and a record that is gone is one that is measured.
    said = run("measured", "--forcerun", "measure")
    assert said.count("all runs have a record; 'campaign redo' measures runs again") >= 2
    assert project.record_files() == everything
    assert len(project.starts()) == 6
    gone = min(everything)
    gone.unlink()
    shutil.rmtree(project.directory / ".snakemake")
    assert measures("measured") == 1
    run("measured")
    assert [start.run for start in project.starts()[6:]] == [gone.stem]
