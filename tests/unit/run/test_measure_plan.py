"""All leases of a plan: in its order, as many at a time as fit, and none after the word to end."""

from __future__ import annotations

import json
import os
import signal
import time
from contextlib import nullcontext
from pathlib import Path
from unittest import mock

import pytest

from campaign import files
from campaign.documents.lease_plan import LeasePlan
from campaign.documents.plan import parse_plan, plan_json
from campaign.paths import Results
from campaign.plan.dag import Dag, Request, read_plan
from campaign.plan.write import write_plan
from campaign.run import measure_plan as measure_plan_module
from campaign.run.measure_plan import STARTS_WHILE, Measure, Outcome, measure_plan
from tests import campaign_records
from tests.campaign_files import write_files

MANY = {
    "campaign.configurations": [{"devices_per_host": 1, "attach": "local"}],
    "campaign.axes.batch": list(range(1, 9)),
    "campaign.axes.precision": "fp32",
    "campaign.protocol.lease_per": "cell",
}


class Here:
    """A written plan of eight leases, and what a stand-in for measuring does with them."""

    def __init__(self, directory: Path, together: int = 1, **keys: object) -> None:
        """together: the first leases end when so many have started."""
        self.together = together
        self.asked = Request(write_files(directory, {**MANY, **keys}), directory / "results")
        plan = read_plan(self.asked)
        self.results = Results(self.asked.results, plan.campaign.name)
        write_plan(plan, self.results)
        self.leases = [lease.name for lease in plan.leases]
        self.log = directory / "log.jsonl"

    def measured(self, plan: LeasePlan, out: Path, reconcile: bool, leave: bool) -> None:
        files.append_json(
            self.log, {"start": plan.lease, "time_s": time.monotonic(), "reconcile": reconcile, "leave": leave}
        )
        deadline_s = time.monotonic() + 20.0
        while len(self.lines("start")) < self.together and time.monotonic() < deadline_s:
            time.sleep(0.01)
        time.sleep(0.1)
        files.write_json(out, {"lease": plan.lease, "missing": []})
        files.append_json(self.log, {"end": plan.lease, "time_s": time.monotonic()})

    def run(self, measure: Measure | None = None, cores: int = 2) -> Outcome:
        path = self.results.plan_document
        return measure_plan(
            parse_plan(path, plan_json(path)), path.parent, self.results, measure or self.measured, cores
        )

    def lines(self, what: str) -> list[str]:
        return [line[what] for line in files.read_json_lines(self.log)[0] if what in line]

    def at_once(self) -> int:
        under_way = most = 0
        for line in files.read_json_lines(self.log)[0]:
            under_way += 1 if "start" in line else -1
            most = max(most, under_way)
        return most


def test_leases_are_measured_in_the_order_of_the_plan_one_at_a_time_on_one_machine(tmp_path: Path) -> None:
    here = Here(tmp_path)
    done = here.run()
    assert here.lines("start") == here.leases
    assert here.at_once() == 1
    assert (done.failed, done.left) == ((), 0)
    assert [json.loads(path.read_text())["lease"] for path in done.manifests] == here.leases
    # Of many leases, one looks for what others left behind.
    assert here.lines("reconcile") == [True] + [False] * 7
    # The last lease of a block has nobody to leave devices attached for.
    compositions = [lease.rpartition("--c")[2] if "--c" in lease else "1" for lease in here.leases]
    assert here.lines("leave") == [each in compositions[place + 1 :] for place, each in enumerate(compositions)]
    assert len(set(here.lines("leave"))) == 2


@pytest.mark.parametrize(("cores", "most"), [(1, 1), (2, 2)])
def test_without_isolation_as_many_are_under_way_as_there_are_cores(tmp_path: Path, cores: int, most: int) -> None:
    here = Here(tmp_path, most, **{"campaign.protocol.isolation": "none"})
    here.run(cores=cores)
    assert here.at_once() == most


REPLAYED = {
    "name": "steps",
    "kind": "replay",
    "precisions": ["fp32"],
    "layers": [{"tensors": [8], "forward": 1}],
    "compute": [{"device": "cpu-rank", "precision": "fp32", "batch": 1, "seconds": 0.001}],
}


@pytest.mark.parametrize(("ranks", "most"), [(1, 4), (8, 2)])
def test_replays_are_measured_side_by_side_on_hosts_of_their_own_with_16_ranks_on_a_core(
    tmp_path: Path, ranks: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = []
    monkeypatch.setattr(measure_plan_module, "alone_on_the_machine", lambda _: nullcontext(alone.append(True)))
    replayed = {
        "workloads.steps": REPLAYED,
        "campaign.axes.workload": ["steps"],
        "system.hosts": [{"name": "host[1-4]", "cores": 4, "devices": [{"model": "cpu-rank", "count": 8}]}],
        "campaign.configurations": [{"devices_per_host": ranks, "attach": "local"}],
    }
    here = Here(tmp_path, most, **replayed)

    here.run(cores=1)
    assert alone == [True]
    assert here.at_once() == most


def test_hosts_and_pooled_devices_are_shared(tmp_path: Path) -> None:
    here = Here(
        tmp_path,
        **{"campaign.protocol.isolation": "none", "campaign.configurations": [{"hosts": 2, "devices_per_host": 1}]},
    )
    here.run(cores=64)
    assert here.at_once() == 1


def test_manifests_are_those_that_the_workflow_expects_and_are_not_made_again(tmp_path: Path) -> None:
    here = Here(tmp_path)
    expected = Dag(here.asked, read_plan(here.asked)).manifests
    assert list(map(str, here.run().manifests)) == expected
    # They say that nothing is missing, but there is no record: they are made again, as the workflow expects.
    expected = Dag(here.asked, read_plan(here.asked)).manifests
    assert list(map(str, here.run().manifests)) == expected
    assert len(here.lines("start")) == 16


def test_where_nothing_is_left_to_measure_no_launcher_is_loaded(tmp_path: Path) -> None:
    """PyTorch, which it loads for training, takes seconds."""
    here = Here(tmp_path)
    here.run()
    campaign_records.fill(here.asked.load(), here.results.directory)
    with mock.patch("campaign.launch.local.LocalLauncher.load", side_effect=AssertionError):
        here.run()
    assert len(here.lines("start")) == 8


def test_a_lease_that_fails_keeps_no_other_from_being_measured(tmp_path: Path) -> None:
    here = Here(tmp_path)

    def measure(plan: LeasePlan, out: Path, reconcile: bool, leave: bool) -> None:
        if plan.lease == here.leases[2]:
            raise SystemExit(3)
        here.measured(plan, out, reconcile, leave)

    done = here.run(measure)
    assert done.failed == (here.leases[2],)
    assert sorted(here.lines("end")) == sorted(set(here.leases) - set(done.failed))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_ending_signal_starts_no_further_lease(tmp_path: Path, number: int) -> None:
    here = Here(tmp_path)

    def measure(plan: LeasePlan, out: Path, reconcile: bool, leave: bool) -> None:
        os.kill(os.getppid(), number)
        here.measured(plan, out, reconcile, leave)

    done = here.run(measure)
    assert done.left == 7
    # But for Ctrl-C, of which the terminal tells them itself, the leases under way are told.
    assert len(here.lines("end")) == (number == signal.SIGINT)


def test_of_two_thousand_leases_none_is_started_after_ctrl_c(tmp_path: Path) -> None:
    here = Here(tmp_path, **{"campaign.protocol.compositions": 250, "campaign.protocol.repetitions": 250})
    assert len(here.leases) == 2000

    def measure(plan: LeasePlan, out: Path, reconcile: bool, leave: bool) -> None:
        here.measured(plan, out, reconcile, leave)
        os.kill(os.getppid(), signal.SIGINT)

    done = here.run(measure)
    assert done.left == 1999
    assert time.monotonic() - float(here.lines("time_s")[-1]) < 2


def test_no_lease_is_started_once_nobody_holds_the_lock_of_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, path = Here(tmp_path), tmp_path / "starts.lock"
    monkeypatch.setenv(STARTS_WHILE, str(path))
    with files.lock(path):

        def measure(plan: LeasePlan, out: Path, reconcile: bool, leave: bool) -> None:
            here.measured(plan, out, reconcile, leave)
            if plan.lease == here.leases[1]:
                path.unlink()

        done = here.run(measure)
    assert here.lines("start") == here.leases[:2]
    assert (done.left, done.failed) == (6, ())
