"""`campaign compare` of a campaign that was measured twice, in the same directory: nothing changed, and one kind of cell slower."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from campaign.cli.main import main
from tests import measured_campaign


def _call(*words: object, exit_code: int = 0) -> str:
    ran = CliRunner().invoke(main, [str(word) for word in words])
    assert ran.exit_code == exit_code, ran.output
    return ran.output


def _measured(directory: Path, again: int, slower: Mapping[str, float] | None = None) -> Path:
    """As where the results of the first time were moved away: every lease has the same id again."""
    results = measured_campaign.write(directory, again, slower)
    _call("plan", directory / "campaign.yaml", "--results", directory / "results", "--write")
    _call("collect", results / "plan" / "plan.json")
    return results


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _measured(tmp_path_factory.mktemp("first"), 0)


def _rows(first: Path, second: Path, exit_code: int) -> list[dict[str, Any]]:
    words = ("compare", first, second, "--fail-on", "throughput < -1%", "--format", "json")
    return list(json.loads(_call(*words, exit_code=exit_code).partition("\nfails:")[0])["cells"])


@pytest.mark.parametrize("again", [1, 4])
def test_nothing_changed(first: Path, tmp_path: Path, again: int) -> None:
    rows = _rows(first, _measured(tmp_path, again), exit_code=0)
    assert len(rows) == 20
    assert not [row["cell"] for row in rows if row["says"] in ("slower", "faster")]


def test_five_percent_in_one_configuration(first: Path, tmp_path: Path) -> None:
    rows = _rows(first, _measured(tmp_path, 1, {"1x2-fabric": 0.05}), exit_code=1)
    named = {row["cell"] for row in rows if row["says"] in ("slower", "faster")}
    assert named == {row["cell"] for row in rows if row["configuration"] == "1x2-fabric"}
    assert all(row["says"] == "slower" for row in rows if row["cell"] in named)
