"""A question to a campaign that is really measured: interrupted and killed in its rounds, resumed, and then all of it."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from tests.warm_start import start
from tests.workflow.checkout_twin import Project, until

BEST = "the best configuration is known within 20 %"
# Two devices are three times as fast as one, so that a few compositions tell.
BODY = "sleep 0.3; echo rate: $(({devices_used} * {devices_used} * 1000 + $$ % 10))"


def rounds(project: Project) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in sorted(project.results().questions.rglob("round-*.json"))}


def begin(project: Project, question: str = BEST):  # type: ignore[no-untyped-def]
    """`campaign run --until` in the background, up to the tables."""
    with (project.directory / "campaign.log").open("a") as log:
        return start(command(project, question), project.directory, project.environment, log.fileno())


def command(project: Project, question: str) -> list[str]:
    results = f"--results={project.results_root}"
    return ["campaign", "run", "campaigns/c.yaml", results, "--until", question, "--", "tables"]


def test_a_dry_run_tells_the_round_and_writes_nothing(project: Project) -> None:
    project.campaign(devices=[1, 2], compositions=2, repetitions=2)
    said = project.run("-n", question=BEST)
    assert f"until {BEST}: not answered yet, in round 1" in said
    assert "later rounds depend on its results" in said
    assert not project.results().directory.exists()
    assert "no question that can be answered" in project.run("-n", question="what now?", expect=1)


@pytest.mark.slow
def test_rounds_go_on_after_ctrl_c_and_kill_9_and_the_rest_is_measured_without_the_question(project: Project) -> None:
    project.workload("logged", body=BODY)
    project.campaign(devices=[1, 2], attach=["local", "fabric"], batch=[1, 2], compositions=3, repetitions=3)
    killed = set()
    for number, count in ((signal.SIGINT, 1), (signal.SIGKILL, 3)):
        process = begin(project)
        until(
            lambda count=count: len(project.starts()) > count,
            60.0,
            project.directory.joinpath("campaign.log").read_text,
        )
        seen = rounds(project)
        if number == signal.SIGKILL:
            killed.add(project.starts()[-1].run)
            project.kill()
        else:
            os.killpg(process.pid, number)
            killed.add(project.starts()[-1].run)
        assert process.wait(60.0) != 0
        project.await_quiet()
        assert seen.items() <= rounds(project).items()
    assert (project.directory / "campaign.log").read_text().count("known so far") >= 1

    before = rounds(project)
    said = project._run(command(project, BEST), 0, 120.0)
    after = rounds(project)
    assert before.items() <= after.items()
    documents = [json.loads(text) for text in after.values()]
    assert [each["number"] for each in documents] == list(range(1, len(after) + 1))
    assert [bool(each["end"]) for each in documents] == [False] * (len(after) - 1) + [True]
    assert documents[-1]["statement"] in said
    chosen = {(cell, lease["composition"]) for each in documents for lease in each["leases"] for cell in lease["cells"]}
    measured = {(record.cell_id, record.repetition // 1000 + 1) for record in project.records()}
    assert measured == chosen
    assert all(count == 1 or run in killed for run, count in project.started().items())
    assert project.held() == {}
    assert "Nothing to be done" in project._run(command(project, BEST), 0, 120.0)
    assert rounds(project) == after

    everything = project.record_files()
    project.measure()
    assert everything.items() <= project.record_files().items()
    assert len(project.record_files()) == 24
    assert all(count == 1 or run in killed for run, count in project.started().items())
    assert rounds(project) == after
