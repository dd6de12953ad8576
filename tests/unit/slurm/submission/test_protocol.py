"""What is read of a driver that was submitted: its result, its use, and nothing that is only half there."""

from __future__ import annotations

import json
import os
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from campaign.common.errors import ConfigError, HostFailed, LaunchError
from campaign.run.driver import Driver
from campaign.run.launchers import LAUNCHERS
from campaign.run.local_submitter import LocalSubmitter
from campaign.run.submitters import SUBMITTERS, open_submitter
from campaign.slurm.slurm_submitter import SlurmSubmitter
from campaign.slurm.submitter import ReportingDriver, Submission
from campaign.spec.driver_messages import DriverRequest, DriverResult
from tests.unit.slurm.submission.login import ALIKE, finish, login


class Failing:
    """A driver with a mistake."""

    def __init__(self, request: DriverRequest) -> None:
        self.request = request

    def __call__(self) -> dict[str, Any]:
        raise ValueError("no such thing")

    def checkpoint(self) -> None:
        """It may be started again."""


@pytest.fixture
def submission(tmp_path: Path) -> Submission:
    request = DriverRequest("p.json", "/results", "study", "1x2-local", "use.1", None, (), "0123456789abcdef")
    return Submission(request, "12_3", tmp_path)


def test_there_is_no_result_until_it_is_whole(submission: Submission) -> None:
    assert submission.read_result() is None
    submission.result_file.write_bytes(b"")
    assert submission.read_result() is None
    finish(submission, DriverResult([("a", 1)], error=HostFailed("lost", {"host1": "down"})))
    driven = submission.read_result()
    assert driven is not None
    assert driven.measured == [("a", 1)]
    assert isinstance(driven.error, HostFailed)
    assert driven.error.hosts == {"host1": "down"}


@pytest.mark.parametrize("length", [1, 10, -3])
def test_a_result_that_is_only_partly_seen_is_none_yet(submission: Submission, length: int) -> None:
    finish(submission, DriverResult(error=LaunchError("lost")))
    submission.result_file.write_bytes(submission.result_file.read_bytes()[:length])
    assert submission.read_result() is None
    os.utime(submission.result_file, (1.0, 1.0))
    with pytest.raises(LaunchError, match=f"cannot be read .*{submission.result_file}"):
        submission.read_result()


def test_a_driver_that_fails_is_the_apparatus(submission: Submission) -> None:
    with pytest.raises(ValueError, match="no such thing"):
        ReportingDriver(Failing(submission.request), submission.folder)()
    driven = submission.read_result()
    assert driven is not None
    assert isinstance(driven.error, LaunchError)
    assert "the driver of 1x2-local failed: ValueError: no such thing" in str(driven.error)


@pytest.mark.parametrize(
    "changes",
    [{"token": "fedcba9876543210"}, {"measured": "all"}, {"error": {"kind": "Exception", "message": ""}}, {"more": 1}],
)
def test_what_is_no_result_of_this_driver_is_not_taken_for_it(submission: Submission, changes: dict[str, Any]) -> None:
    finish(submission)
    document = json.loads(submission.result_file.read_bytes())
    submission.result_file.write_text(json.dumps({**document, **changes}))
    with pytest.raises(LaunchError, match="unexpected result"):
        submission.read_result()


def test_no_pickle_is_ever_read(submission: Submission) -> None:
    """Neither a result that an earlier driver left under the number of this one, nor one that an archive brought along."""

    class Payload:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (submission.folder / "ran",))

    for name in ("12_3_0_result.pkl", "12_3_submitted.pkl", "result.pkl", submission.result_file.name):
        (submission.folder / name).write_bytes(pickle.dumps(("success", Payload())))
    os.utime(submission.result_file, (1.0, 1.0))
    with pytest.raises(LaunchError, match="cannot be read"):
        submission.read_result()
    submission.result_file.unlink()
    assert submission.read_result() is None
    assert not (submission.folder / "ran").exists()


def test_every_launcher_has_its_submitter(tmp_path: Path) -> None:
    assert set(SUBMITTERS) == set(LAUNCHERS)
    here = login(tmp_path, ALIKE)
    assert isinstance(open_submitter(here.campaign, here.results, Driver), SlurmSubmitter)
    local = here.campaign.system.model_copy(update={"launcher": "local"})
    other = here.campaign.system.model_copy(update={"launcher": "pigeon"})
    assert isinstance(
        open_submitter(replace(here.campaign, systems={local.name: local}), here.results, Driver), LocalSubmitter
    )
    with pytest.raises(ConfigError, match="launcher 'pigeon' is not available; there are: local, slurm"):
        open_submitter(replace(here.campaign, systems={other.name: other}), here.results, Driver)
