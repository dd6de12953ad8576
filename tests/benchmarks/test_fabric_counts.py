"""Requests that composing takes: counts that no busy machine can change."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.benchmarks.fabric import LEAST, composed


@pytest.mark.parametrize("kind", LEAST)
def test_composing_takes_few_requests_beyond_what_the_interface_asks_for(kind: str, tmp_path: Path) -> None:
    beyond = composed(kind, tmp_path).requests - LEAST[kind].requests
    assert 0 <= beyond <= 3
