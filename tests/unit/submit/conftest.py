from __future__ import annotations

import pytest

from campaign.slurm import poll
from campaign.submit import batches, cancellations, slurm


@pytest.fixture(autouse=True)
def without_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs that stand for Slurm's answer at once: nothing is to be waited for."""
    monkeypatch.setattr(slurm, "_GATHER_S", 0.0)
    monkeypatch.setattr(slurm, "_ASK_S", 0.02)
    monkeypatch.setattr(cancellations, "_GATHER_S", 0.0)
    monkeypatch.setattr(batches, "_SBATCH_S", 0.0)
    monkeypatch.setattr(poll, "_FRESH_S", 0.0)
