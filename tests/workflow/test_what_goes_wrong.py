"""What goes wrong on the fabric, in what is measured, and on the disk, as a person with a campaign meets it."""

from __future__ import annotations

import errno
import functools
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from campaign.common.errors import LaunchError, RecordError
from campaign.fabrics.simulated import FaultKind
from campaign.plan.campaign.resolve import load_campaign
from campaign.plan.request import PlanRequest
from campaign.report.sources import write_report
from campaign.run import measure_lease as measuring
from campaign.run.driver import Driver
from campaign.run.submitters import DriverStatus
from campaign.spec.driver_messages import DriverResult
from campaign.spec.record import RecordStore
from tests.campaign_records import write
from tests.planned_leases import measured_here
from tests.unit.fabrics.raw_server import RawServer, reply, says
from tests.workflow.checkout_twin import Project

TRANSIENT: list[FaultKind] = [
    "busy",
    "lost_request",
    "unknown_outcome",
    "unknown_release",
    "partial_attach",
    "short_attach",
]


def measure_here(project: Project, lease: str, say: Any = print) -> dict[str, Any]:
    """The measure job of a lease in this process; gives its manifest."""
    return measured_here(PlanRequest(project.campaigns / "c.yaml", project.results_root), lease, say)


def test_a_transient_fault_of_every_kind_is_overcome(project: Project) -> None:
    """One composition for each kind of fault, so that each must be overcome; between compositions, nothing stays attached."""
    count = len(TRANSIENT)
    project.campaign(attach=["fabric"], repetitions=count, compositions=count)
    leases = [f"1x1-fabric.c{number}" for number in range(1, count + 1)]
    project.system(
        faults=[{"kind": kind, "lease": f"c.{lease}.*"} for kind, lease in zip(TRANSIENT, leases, strict=True)]
    )
    project.measure_leases()
    assert len(project.records()) == len(TRANSIENT)
    assert {record.status for record in project.records()} == {"ok"}
    assert project.held() == {}
    told = {document["lease"]: document for document in project.leases()}
    for kind, lease in zip(TRANSIENT, leases, strict=True):
        document = told[lease]
        if kind == "busy":
            assert document["waits"], document
        elif kind == "short_attach":
            # The fabric reported success: nothing failed but the reading back, which gave everything back and began anew.
            assert document["operations"] > 2, document
        else:
            assert document["faults"], document


def test_a_control_plane_that_refuses_everything_ends_the_output_with_the_cause(project: Project) -> None:
    project.campaign(attach=["fabric"], repetitions=4, compositions=4)
    with RawServer(says(reply(400, b'{"error": {"message": "bad request"}}'))) as server:
        project.system(kind="redfish", url=server.url, tunnel=True)
        said = project.run(expect=1)
        assert len(server.asked) == 1
    cause = f"answer: GET {server.url}/redfish/v1/: HTTP 400: bad request"
    assert said.splitlines()[-1] == f"error: system bench: no lease can be measured: {cause}"
    assert "attempt 1" not in said


_LOSSES = (
    "the devices of host2 could not be queried: srun: error: Unable to confirm allocation for job 7: Invalid job id specified",
    "the driver of lease ended without a result (job 8 is lost: Slurm does not know it any more, and it left no result)",
)


@pytest.mark.parametrize(("times", "missing"), [(2, 0), (9, 1)])
def test_a_job_that_a_restarted_controller_has_lost_costs_no_attempt(
    times: int, missing: int, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """These words a real slurmctld leaves that is killed before it has saved a job. One that loses all jobs is given up."""
    monkeypatch.setenv("STARTS", project.environment["STARTS"])
    monkeypatch.setattr(measuring, "_RETRY_INTERVAL_S", 0.0)
    attempt, calls = measuring._LeaseMeasurement.measure_once, []

    def lose_job(self: measuring._LeaseMeasurement) -> None:
        calls.append(1)
        if len(calls) <= times:
            raise LaunchError(_LOSSES[len(calls) % 2])
        attempt(self)

    monkeypatch.setattr(measuring._LeaseMeasurement, "measure_once", lose_job)
    project.campaign(attempts=2)
    assert len(measure_here(project, "1x1-local.c1")["missing"]) == missing
    assert len(calls) == (3 if not missing else 4)


def test_a_device_that_no_host_ever_sees_is_reported(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process, because nobody wants to wait for the minutes that real hosts are given."""
    monkeypatch.setenv("STARTS", project.environment["STARTS"])
    monkeypatch.setattr(
        measuring, "acquire_lease", functools.partial(measuring.acquire_lease, visibility_timeout_s=0.2)
    )
    project.campaign(attach=["fabric"], attempts=2)
    project.system(faults=[{"kind": "device_never_visible", "times": 2}])
    manifest = measure_here(project, "1x1-fabric.c1")
    assert len(manifest["missing"]) == 1
    assert "not visible to the host" in manifest["reason"]
    assert project.held() == {}
    assert len(project.leases()) == 2

    assert measure_here(project, "1x1-fabric.c1")["missing"] == []
    assert len(project.records()) == 1


def test_a_run_that_slurm_took_away_is_missing_and_the_report_names_its_log(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STARTS", project.environment["STARTS"])
    preempted = "slurmstepd: error: *** JOB 12 ON host1 CANCELLED AT 2026-01-01T00:00:00 DUE TO PREEMPTION ***"
    project.workload("logged", body=f"echo '{preempted}'; exit 1")
    project.campaign(attempts=1)
    manifest = measure_here(project, "1x1-local.c1")
    assert project.records() == []
    (name,) = re.findall(r"\(log: (.*?)\)", manifest["reason"])
    assert preempted in (project.results().directory / name).read_text()
    assert str(project.directory) not in manifest["reason"]
    write(project.results().manifest_file("1x1-local.c1"), manifest)
    campaign, page = load_campaign(project.campaigns / "c.yaml"), project.directory / "page.html"
    write_report(campaign, project.results().directory, None, project.temporary, page)
    assert f"(log: {name})" in page.read_text()


def test_a_device_that_cannot_be_released_is_told_and_released_later(project: Project) -> None:
    project.campaign(attach=["fabric"])
    project.system(faults=[{"kind": "leak", "times": 3}])
    said = project.measure()
    assert "the fabric did not release" in said
    assert len(project.records()) == 1
    assert project.leases()[0]["leaked"]
    assert project.held() != {}

    project.campaign("d", attach=["fabric"])
    said = project.measure(campaign="d")
    assert "no longer had an owner: released" in said
    assert project.held() == {}


CLASSES = ["oom_device", "oom_host", "time_limit", "nan", "crashed", "incomplete", "comm_timeout"]


def test_failures_of_the_subject_are_data(project: Project) -> None:
    """Each class is recorded once and is not tried again; limits end the run's processes. What others do is tried again."""
    project.synthetic(
        "failing",
        failures=[{"when": f"batch == {number}", "status": status} for number, status in enumerate(CLASSES, 1)],
    )
    project.workload("hungry", body="python3 -c 'import time; b = bytearray(300 << 20); time.sleep(600)'")
    project.workload("stuck", body="sleep 600 & sleep 600")
    project.workload("shot", body="kill -9 $$")
    for name, number in (("shotonce", "KILL"), ("frozen", "STOP")):
        flag = project.temporary / name
        project.workload(name, body=f"if ! test -e {flag}; then touch {flag}; kill -{number} $$; fi; echo rate: 10")
    once = ["hungry", "stuck", "shot", "shotonce", "frozen"]
    project.campaign(
        workload=["failing", *once],
        batch=list(range(1, len(CLASSES) + 2)),
        exclude=[{"when": "workload != 'failing' and batch > 1", "why": "one is enough"}],
        time_limit_s=2.5,
        memory_limit_mib=100,
        skip_implied=False,
    )
    project.run("tables")
    status = {(record.cell.workload, record.cell.batch): record for record in project.records()}
    assert [status["failing", number].status for number in range(1, len(CLASSES) + 2)] == [*CLASSES, "ok"]
    assert status["hungry", 1].status == "oom_host"
    assert status["stuck", 1].status == "time_limit"
    assert [status[name, 1].status for name in once[2:]] == ["crashed", "ok", "ok"]
    assert all(record.failure for record in status.values() if record.status != "ok")
    started, names = project.started(), {f"{record.cell_id}.1": record.cell.workload for record in status.values()}
    assert {names[run]: count for run, count in started.items() if count > 1} == {"shot": 3, "shotonce": 2, "frozen": 2}
    project.await_quiet()
    assert "the run reached its time limit" in (project.results().tables / "cells.csv").read_text()
    assert "Nothing to be done" in project.run("tables")


@pytest.fixture
def small_disk(project: Project) -> Iterator[Path]:
    """The project's results directory, on a disk of its own of 2 MiB."""
    project.results_root.mkdir()
    mount = shutil.which("mount")
    command = [mount or "mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(project.results_root)]
    done = subprocess.run(command, capture_output=True, text=True, check=False) if mount and os.geteuid() == 0 else None
    if done is None or done.returncode != 0:
        reason = f"a small disk needs root and mount: {done.stderr.strip() if done else 'not root'}"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    try:
        yield project.results_root
    finally:
        project.kill()
        subprocess.run(["umount", "--lazy", str(project.results_root)], check=True)


def test_a_full_disk_is_told_in_one_message_and_loses_nothing(project: Project, small_disk: Path) -> None:
    filler = small_disk / "filler"
    # The second run finds the disk full; whatever space is left when it starts is taken.
    fill = f'if [ $(wc -l < "$STARTS") = 2 ]; then cat /dev/zero > {filler} 2> /dev/null; fi; echo rate: 10'
    project.workload("logged", body=fill)
    project.campaign(repetitions=4, attempts=2)
    said = project.run("--until", "measure", expect=1)
    assert "Traceback" not in said
    messages = set(re.findall(r"^error: .*$", said, re.MULTILINE))
    assert len(messages) == 1, said
    assert re.search(
        rf"error: {re.escape(str(small_disk))}\S*: .*free space.*run the same command again", messages.pop()
    )
    before = project.record_files()
    assert len(before) == 1
    assert all(json.loads(content)["status"] == "ok" for content in before.values())

    filler.unlink()
    project.measure()
    after = project.record_files()
    assert len(after) == 4
    assert {path: after[path] for path in before} == before
    assert project.held() == {}
    project.await_quiet()


def test_a_record_that_cannot_be_written_stops_the_lease_with_its_name(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a disk of its own: the driver runs in this process, and its second record meets a full disk."""
    project.campaign(repetitions=3)
    monkeypatch.setenv("STARTS", project.environment["STARTS"])
    real = RecordStore.write
    written: list[Any] = []

    def write(store: RecordStore, record: Any) -> None:
        if len(written) == 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(store.path(*record.key)))
        real(store, record)
        written.append(record)

    class InThisProcess:
        """A submission whose driver has already ended."""

        def __init__(self, driver: Any) -> None:
            with monkeypatch.context() as patch:
                patch.setattr("campaign.run.driver._detach_from_terminal", lambda: None)
                patch.setattr(RecordStore, "write", write)
                self.driven = DriverResult.from_document(Driver(driver)())
            self.lease = driver.lease

        def read_result(self) -> Any:
            return self.driven

    submitter = "campaign.run.local_submitter.LocalSubmitter"
    monkeypatch.setattr(f"{submitter}.submit", lambda _, driver, queue_s: InThisProcess(driver))
    monkeypatch.setattr(f"{submitter}.check_driver", lambda *_: DriverStatus(False))
    with pytest.raises(RecordError, match=r"records/\S+\.json: .*No space left on device.*free space"):
        measure_here(project, "1x1-local.c1")
    assert len(project.records()) == 1
    assert project.held() == {}

    monkeypatch.undo()
    project.measure()
    assert len(project.records()) == 3
    assert sorted(project.started().values()) == [1, 1, 2]
