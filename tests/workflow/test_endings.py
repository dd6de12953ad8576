"""What ends a campaign of many leases, at any moment: nothing starts afterwards, nothing is lost, nothing is measured twice."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence

from tests.warm_start import Started
from tests.workflow.checkout_twin import TIME_OUT_S, Project, until

AT_ONCE = 2
SECONDS = 60.0  # only spent where it does not end


def group(*numbers: int, pause_s: float = 0.3) -> Callable[[Started], None]:
    """Signals to all processes of the terminal."""

    def send(process: Started) -> None:
        for number in numbers:
            os.killpg(process.pid, number)
            time.sleep(pause_s)

    return send


def alone(*numbers: int) -> Callable[[Started], None]:
    """Signals to Snakemake."""

    def send(process: Started) -> None:
        for number in numbers:
            process.send_signal(number)
            time.sleep(0.1)

    return send


ENDINGS: list[tuple[str, int, Callable[[Started], None]]] = [
    ("Ctrl-C twice", 20, group(signal.SIGINT, signal.SIGINT)),
    ("SIGINT to Snakemake twice", 20, alone(signal.SIGINT, signal.SIGINT)),
    ("kill -9 of Snakemake", 20, alone(signal.SIGKILL)),
    ("SIGTERM to Snakemake", 20, alone(signal.SIGTERM)),
    ("SIGTERM to Snakemake twice", 40, alone(signal.SIGTERM, signal.SIGTERM)),
    ("a closed terminal", 40, group(signal.SIGHUP)),
    ("SIGHUP to Snakemake", 40, alone(signal.SIGHUP)),
    ("Ctrl-C", 100, group(signal.SIGINT)),
    ("SIGINT to Snakemake", 100, alone(signal.SIGINT)),
]


class Campaign:
    """A campaign with a lease a run, of which two go on at a time, and what was true of it so far."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self.records: dict[str, bytes] = {}
        self.finished: dict[str, int] = {}
        project.system(pool=AT_ONCE, hosts=AT_ONCE)

    def has(self, leases: int, sleep_s: float) -> None:
        self.project.workload("logged", sleep_s=sleep_s)
        batches = list(range(1, leases + 1))
        self.project.campaign(attach=["fabric"], batch=batches, lease_per="cell", isolation="none")

    def begin(self, *arguments: str, **config: str) -> Started:
        """Snakemake, as soon as two runs have begun."""
        before = len(self.project.starts())
        process = self.project.start("--until", "measure", "--retries", "2", *arguments, **config)
        until(lambda: len(self.project.starts()) >= before + 2, TIME_OUT_S, self.project.said)
        return process

    def kill_one(self, kind: str) -> int:
        pids = self.project.pids(kind)
        assert pids, f"there is no {kind}: {self.project.processes()}"
        os.kill(pids[0], signal.SIGKILL)
        return pids[0]

    def check(self, of: str) -> None:
        """Records stay what they are, and no run that has one was started again."""
        records = {path.stem: content for path, content in self.project.record_files().items()}
        assert self.records.items() <= records.items(), of
        started = self.project.started()
        assert {run: started[run] for run in self.finished} == self.finished, of
        self.records, self.finished = records, {run: started[run] for run in records}
        assert "Traceback" not in self.project.said(), of


def test_nothing_starts_after_an_ending_and_the_same_command_again_goes_on(project: Project) -> None:
    """One campaign, which grows; each ending meets what the one before left."""
    campaign = Campaign(project)
    for name, leases, send in ENDINGS:
        campaign.has(leases, 0.5)
        process = campaign.begin()
        before = len(project.starts())
        send(process)
        assert process.wait(SECONDS) != 0, name
        project.await_quiet(SECONDS)
        # What was being composed in that moment may have begun.
        assert len(project.starts()) - before <= AT_ONCE, name
        assert project.held() == {}, name
        campaign.check(name)

    # What was met is completed: without a double, and of each run with the record of its last start.
    campaign.has(10, 0.05)
    project.measure()
    campaign.check("the rest")
    assert {record.cell.batch for record in project.records()} >= set(range(1, 11))
    assert len(project.started()) == len(project.record_files())


def test_ctrl_c_while_snakemake_plans_ends_in_one_sentence(project: Project) -> None:
    """Planning 300 leases takes Snakemake seconds, in which a KeyboardInterrupt is a traceback of 60 lines."""
    campaign = Campaign(project)
    campaign.has(300, 0.5)
    (project.directory / "snakemake.log").touch()
    for moment in ("Config file", "Building DAG of jobs"):
        before = len(project.said())
        process = project.start("--until", "measure")
        until(lambda moment=moment, before=before: moment in project.said()[before:], TIME_OUT_S, project.said)  # type: ignore[misc]
        group(signal.SIGINT)(process)
        assert process.wait(SECONDS) == 1, moment
        said = project.said()[before:]
        assert "interrupted; repeat the command to continue with the missing runs" in said, said
        assert "Traceback" not in said, said
        assert len(said.splitlines()) < 30, said
    assert project.starts() == []


PARTS: Sequence[tuple[str, ...]] = (("measure",), ("driver",), ("measure", "driver"))


def test_a_lease_whose_processes_are_killed_is_tried_again_by_retries(project: Project) -> None:
    """Of one invocation, one kind of process after the other is killed; it ends well, and each run has one record."""
    campaign = Campaign(project)
    campaign.has(8, 0.5)
    process = campaign.begin()
    for kinds in PARTS:
        seen = len(project.starts())
        until(
            lambda seen=seen, kinds=kinds: len(project.starts()) > seen and all(map(project.pids, kinds)),
            SECONDS,
            project.said,
        )  # type: ignore[misc]
        for kind in kinds:
            campaign.kill_one(kind)
        campaign.check(" ".join(kinds))
    assert process.wait(TIME_OUT_S) == 0, project.said()
    project.await_quiet(SECONDS)
    assert len(project.record_files()) == 8
    campaign.check("the end")
    # One was interrupted with each part.
    again = Counter({run: count - 1 for run, count in project.started().items() if count > 1})
    assert again.total() <= 2 * len(PARTS), again
    assert project.held() == {}
