from __future__ import annotations

from pathlib import Path

import pytest

from campaign.slurm import job_cancellation, job_queue, job_submission, poll
from tests.unit.slurm.submission.login import ALIKE, Login, login


@pytest.fixture(autouse=True)
def without_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs that stand for Slurm's answer at once: nothing is to be waited for."""
    monkeypatch.setattr(job_queue, "MIN_RETRY_S", 0.02)
    monkeypatch.setattr(job_cancellation, "MIN_PAUSE_S", 0.02)
    monkeypatch.setattr(job_submission, "_SBATCH_DELAY_S", 0.0)
    monkeypatch.setattr(poll, "_MAX_FRESH_AGE_S", 0.0)


@pytest.fixture
def here(tmp_path: Path) -> Login:
    """A login node whose leases ask for allocations that are alike."""
    return login(tmp_path, ALIKE)


@pytest.fixture
def lease(here: Login) -> str:
    """The first lease of `here`."""
    return here.leases()[0]
