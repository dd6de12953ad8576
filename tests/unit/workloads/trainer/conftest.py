"""One fork server for all tests of a worker process (its imports take seconds)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tests.unit.workloads.trainer.rank_driver import SERVER_OF_TESTS, Driver

# As in a rank: two OpenMP threads on two busy cores make a step of milliseconds take a second.
torch.set_num_threads(1)


@pytest.fixture(scope="session")
def driver() -> Iterator[Driver]:
    driver = Driver(SERVER_OF_TESTS)
    yield driver
    driver.close()


def nano(**changes: Any) -> dict[str, Any]:
    """A run of a fraction of a second."""
    options = {"seq_len": 16, **changes.pop("options", {})}
    return {"model": "bert-nano", "batch": 2, "warmup_steps": 2, "measured_steps": 5, "options": options, **changes}


@pytest.fixture
def nano_spec() -> Any:
    return nano
