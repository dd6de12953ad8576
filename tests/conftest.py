"""What several rooms of the tests need: a real browser, and programs that stand for Slurm's."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fake_slurm import FakeSlurm

_LONGEST = (
    "test_emulated_fabrics",
    "test_slurm_faults",
    "test_campaign",
    "test_faults",
    "test_power",
    "test_demo",
    "test_strategies",
    "test_training_campaign",
    "test_growth",
    "test_what_goes_wrong",
    "test_srun_steps",
    "test_emulated_links",
    "test_network",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first: else one worker is still at them when the others have nothing left to do.

    Tests of whole processes and real daemons are tried once more when they fail, and the summary names them: on a busy machine a
    daemon can be slower than any patience. A test that fails twice fails.
    """
    order = {name: number for number, name in enumerate(_LONGEST)}
    items.sort(key=lambda item: order.get(item.path.stem, len(order)))
    for item in items:
        if item.path.parent.name in ("cluster", "workflow", "submission"):
            item.add_marker(pytest.mark.flaky(reruns=1))


BROWSER, DRIVER = "/usr/bin/chromium", "/usr/bin/chromedriver"
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
)


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Headless chromium under selenium; skipped where it is not installed, never in continuous integration."""
    absent = [each for each in (BROWSER, DRIVER) if not shutil.which(each)]
    if absent and not os.environ.get("CI"):
        reason = f"{' and '.join(absent)} not installed: the report is not looked at in a browser"
        print(reason)
        pytest.skip(reason)
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for flag in [*FLAGS.split(), f"--user-data-dir={tmp_path_factory.mktemp('profile')}"]:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture
def fake_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    """Slurm's commands as small programs, first on PATH."""
    slurm = FakeSlurm(tmp_path / "slurm")
    monkeypatch.setenv("PATH", str(slurm.bin), prepend=os.pathsep)
    return slurm
