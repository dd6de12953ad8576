"""What is read of a driver that was submitted: its result, its use, and nothing that is only half there."""

from __future__ import annotations

import os
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from campaign.documents.driver_messages import DriverResult
from campaign.errors import ConfigError, HostFailed, LaunchError
from campaign.launch import LAUNCHERS
from campaign.run.driver import Driver
from campaign.submit import SUBMITTERS, open_submitter
from campaign.submit.local import LocalSubmitter
from campaign.submit.protocol import Submission, request_in
from campaign.submit.slurm import SlurmSubmitter
from tests.unit.submit.login import ALIKE, login


@pytest.fixture
def submission(tmp_path: Path) -> Submission:
    return Submission("1x2-local", "12_3", tmp_path)


def test_there_is_no_result_until_it_is_whole(submission: Submission) -> None:
    assert submission.result() is None
    whole = pickle.dumps(("success", DriverResult([("a", 1)], error=HostFailed("lost", {"host1": "down"})).document()))
    submission.result_file.write_bytes(b"")
    assert submission.result() is None
    submission.result_file.write_bytes(whole)
    driven = submission.result()
    assert driven is not None
    assert driven.measured == [("a", 1)]
    assert isinstance(driven.error, HostFailed)
    assert driven.error.hosts == {"host1": "down"}


@pytest.mark.parametrize("length", [1, 10, -1])
def test_a_result_that_is_only_partly_seen_is_none_yet(submission: Submission, length: int) -> None:
    whole = pickle.dumps(("success", DriverResult(error=LaunchError("lost")).document()))
    submission.result_file.write_bytes(whole[:length])
    assert submission.result() is None
    os.utime(submission.result_file, (1.0, 1.0))
    with pytest.raises(LaunchError, match=f"cannot be read .*{submission.result_file}"):
        submission.result()


@pytest.mark.parametrize(
    ("left", "words"),
    [
        (
            ("error", "Traceback (most recent call last)\n ...\nValueError: no such thing\n"),
            "failed: ValueError: no such thing",
        ),
        (("error", "\n"), "failed: without a message"),
        (("success", "something else"), "unexpected result"),
    ],
)
def test_a_driver_that_failed_is_the_apparatus(submission: Submission, left: Any, words: str) -> None:
    submission.result_file.write_bytes(pickle.dumps(left))
    with pytest.raises(LaunchError, match=words):
        submission.result()


def test_the_use_of_a_driver_that_cannot_be_read_is_not_known(submission: Submission) -> None:
    path = submission.folder / "12_3_submitted.pkl"
    assert submission.request() is None
    for content in (b"", b"\x80", b"not a pickle", pickle.dumps("another thing")):
        path.write_bytes(content)
        assert submission.request() is None
        assert request_in(path) is None


def test_every_launcher_has_its_submitter(tmp_path: Path) -> None:
    assert set(SUBMITTERS) == set(LAUNCHERS)
    here = login(tmp_path, ALIKE)
    assert isinstance(open_submitter(here.campaign, here.results, Driver), SlurmSubmitter)
    local = here.campaign.system.model_copy(update={"launcher": "local"})
    other = here.campaign.system.model_copy(update={"launcher": "pigeon"})
    assert isinstance(open_submitter(replace(here.campaign, system=local), here.results, Driver), LocalSubmitter)
    with pytest.raises(ConfigError, match="launcher 'pigeon' is not available; there are: local, slurm"):
        open_submitter(replace(here.campaign, system=other), here.results, Driver)
