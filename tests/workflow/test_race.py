"""A race for the best configuration that is really measured: interrupted and killed, resumed, reported, and then all of it."""

from __future__ import annotations

import csv
import os
import signal

import pytest

from campaign.spec.race import RaceDocument, read_race
from campaign.spec.run_numbers import get_composition_number
from tests.warm_start import Started, start
from tests.workflow.checkout_twin import Project, until

# Two devices are four times as fast as one.
BODY = "sleep 0.3; echo rate: $(({devices_used} * {devices_used} * 1000 + $$ % 10))"


def command(project: Project, *arguments: str) -> list[str]:
    return ["campaign", "run", "campaigns/c.yaml", f"--results={project.results_root}", "--until=best", *arguments]


def begin(project: Project) -> Started:
    """Start the race in the background, in a process group of its own."""
    with (project.directory / "campaign.log").open("a") as log:
        return start(command(project, "--", "tables"), project.directory, project.environment, log.fileno())


def race_of(project: Project) -> RaceDocument:
    race = read_race(project.results().race_file)
    assert race is not None
    return race


def test_a_dry_run_shows_the_first_block_and_writes_nothing(project: Project) -> None:
    project.campaign(devices=[1, 2], compositions=3, repetitions=3)
    said = project._run(command(project, "--dry-run"), 0, 120.0)
    assert (
        "The best configuration within 5\u202f% is not known yet. After the next block (1 of 3), 2 of 6 compositions"
        in said
    )
    assert "1x2-local, composition 1 of 3" in said
    assert "composition 2 of 3" not in said
    assert not project.results().directory.exists()


def test_a_campaign_of_one_composition_is_refused(project: Project) -> None:
    project.campaign(devices=[1, 2])
    said = project._run(command(project), 1, 120.0)
    assert "c.yaml" in said
    assert "--until needs at least 2 compositions of each configuration" in said


@pytest.mark.slow
def test_a_race_goes_on_after_ctrl_c_and_kill_9_and_ends_with_the_same_answer(project: Project) -> None:
    project.workload("logged", body=BODY)
    project.campaign(devices=[1, 2], attach=["local", "fabric"], batch=[1, 2], compositions=3, repetitions=3)
    stopped = set()
    for number, count in ((signal.SIGINT, 1), (signal.SIGKILL, 9)):
        process = begin(project)
        log = project.directory / "campaign.log"
        until(lambda count=count: len(project.starts()) > count, 90.0, log.read_text)
        assert not race_of(project).ended
        if number == signal.SIGKILL:
            project.kill()
        else:
            os.killpg(process.pid, number)
        stopped.add(project.starts()[-1].run)
        assert process.wait(60.0) != 0
        project.await_quiet()

    said = project._run(command(project, "--", "tables"), 0, 240.0)
    race = race_of(project)
    assert (race.ended, race.is_decided) == (True, True)
    assert {each.configuration for each in race.dropped} == {"1x1-local", "1x1-fabric"}
    assert race.workloads[0].best.startswith("1x2-")
    assert f"The best configuration within 5\u202f% is known after {sum(race.compositions.values())} of 12" in said
    measured = {(record.cell.configuration, get_composition_number(record.repetition)) for record in project.records()}
    assert measured == {(name, n) for name, k in race.compositions.items() for n in range(1, k + 1)}
    assert race.compositions["1x1-local"] == race.compositions["1x1-fabric"] < 3
    assert all(count == 1 or run in stopped for run, count in project.started().items())
    assert project.held() == {}

    with (project.results().tables / "cells.csv").open(newline="") as file:
        assert all(row["n_missing"] == "0" for row in csv.DictReader(file))
    page, summary = project.page("scaling"), project.directory / "summary.txt"
    project.run_campaign("summary", str(project.results().directory), f"--output={summary}")
    for text in (page, summary.read_text()):
        assert "is known after" in text
        assert "cannot be within 5\u202f% of the best" in text
    status = project.run_campaign("status", "campaigns/c.yaml", f"--results={project.results_root}")
    assert "is known after" in status
    assert "to do" not in status

    # The same command finds nothing to do, and a race by the same records ends alike.
    assert "Nothing to be done" in project._run(command(project, "--", "tables"), 0, 120.0)
    assert race_of(project) == race
    before = project.record_files()
    project.measure()  # without the race: the rest
    assert before.items() < project.record_files().items()
    assert len(project.record_files()) == 24
    assert not project.results().race_file.exists()
