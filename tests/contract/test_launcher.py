"""What every launcher of the table promises. One that needs a scheduler is tested where there is one (tests/cluster)."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from campaign.errors import ConfigError, LaunchError
from campaign.launchers import LAUNCHERS, open_launcher
from campaign.launchers.processes import marked
from campaign.launchers.protocol import Launcher, Limits
from campaign.workloads.protocol import Step
from tests.unit.launchers.compositions import composition, system

HERE = [name for name in LAUNCHERS if name == "local"]
LIMITS = Limits(30.0)


@pytest.fixture(params=HERE)
def launcher(request: pytest.FixtureRequest) -> Iterator[Launcher]:
    launcher = open_launcher(request.param, system(), composition((8, 0)))
    yield launcher
    launcher.close()


@pytest.fixture
def mark() -> Iterator[str]:
    mark = f"test-{uuid.uuid4().hex}"
    yield mark
    assert list(marked(mark)) == []


def step(code: str, ranks: int = 2, per_rank: bool = True) -> Step:
    return Step((sys.executable, "-S", "-c", code), {"GIVEN": "1"}, {"host1": ranks}, per_rank)


def test_ranks_see_each_other_and_their_output_is_in_the_log(launcher: Launcher, mark: str, tmp_path: Path) -> None:
    code = (
        "import os; print(os.environ['RANK'] + '/' + os.environ['WORLD_SIZE'] + '/' + os.environ['GIVEN'], flush=True)"
    )
    ended = launcher.run(step(code, 3), mark, tmp_path / "deep" / "log", tmp_path, LIMITS)
    assert ended.codes == (0, 0, 0)
    assert sorted((tmp_path / "deep" / "log").read_text().split()) == ["0/3/1", "1/3/1", "2/3/1"]


def test_exit_codes_are_by_rank(launcher: Launcher, mark: str, tmp_path: Path) -> None:
    ended = launcher.run(
        step("import os, sys; sys.exit(int(os.environ['RANK']))", 2), mark, tmp_path / "log", tmp_path, LIMITS
    )
    assert ended.codes == (0, 1)
    assert not ended.timed_out


def test_a_step_ends_at_its_time_limit_with_all_it_started(launcher: Launcher, mark: str, tmp_path: Path) -> None:
    code = "import os, time; os.fork(); time.sleep(60)"
    ended = launcher.run(step(code), mark, tmp_path / "log", tmp_path, Limits(0.4))
    assert ended.timed_out
    assert all(code != 0 for code in ended.codes)


def test_one_launcher_starts_many_steps(launcher: Launcher, mark: str, tmp_path: Path) -> None:
    for _ in range(3):
        assert launcher.run(step("", 1), mark, tmp_path / "log", tmp_path, LIMITS).codes == (0,)
    launcher.close()
    assert launcher.run(step("", 1), mark, tmp_path / "log", tmp_path, LIMITS).codes == (0,)


def test_what_cannot_be_started_is_a_launch_error(launcher: Launcher, mark: str, tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="no-such-program"):
        launcher.run(Step(("no-such-program",), {}, {"host1": 2}), mark, tmp_path / "log", tmp_path, LIMITS)


def test_a_launcher_that_is_not_in_the_table_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="launcher 'k8s' is not available; there are: local"):
        open_launcher("k8s", system(), composition((1, 0)))
