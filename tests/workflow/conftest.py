"""Fixtures of the workflow tests."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.workflow.checkout_twin import Project


@pytest.fixture
def make_project(tmp_path: Path) -> Iterator[Callable[..., Project]]:
    """Makes projects; what a failing test leaves running is killed."""
    made: list[Project] = []

    def make(name: str = "project", **keys: Any) -> Project:
        made.append(Project(tmp_path / name, **keys))
        return made[-1]

    yield make
    for project in made:
        for _ in range(50):
            if not project.kill():
                break
            time.sleep(0.05)


@pytest.fixture
def project(make_project: Callable[..., Project]) -> Project:
    return make_project()
