"""What several rooms of the tests need: a real browser, and programs that stand for Slurm's."""

from __future__ import annotations

import gc
import os
import shutil
import signal
from collections.abc import Iterator
from itertools import product, zip_longest
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, settings

from tests.fake_slurm import FakeSlurm

_FILES = yaml.safe_load((Path(__file__).parent / "kinds_of_files.yaml").read_text(encoding="utf-8"))
_ORDER = [name for pair in zip_longest(_FILES["waiting"], _FILES["computing"]) for name in pair if name]
_KINDS = ("slow", "alone", "cluster", "browser", "gpu", "root")

# The same examples for everybody: what fails is the change. CAMPAIGN_EXPLORE=1 draws others each time, and twice as many.
settings.register_profile(
    "project",
    max_examples=100 if "CAMPAIGN_EXPLORE" in os.environ else 50,
    deadline=None,
    derandomize="CAMPAIGN_EXPLORE" not in os.environ,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("project")


def pytest_configure(config: pytest.Config) -> None:
    """Tests of hang-ups need the signal as a terminal delivers it; nohup starts programs that ignore it."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    # Its threads wait for each other by computing: beside other tests, that takes twice the processor time.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # What is collected stays until the end: looking through it again and again for garbage took 40 % of the time.
    gc.disable()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Ignore files of which `-m` selects no test: to import all files takes every worker seconds."""
    if not config.option.markexpr or not collection_path.match("test_*.py"):
        return None
    text = collection_path.read_text(encoding="utf-8")
    sure = {"slow": collection_path.stem in _FILES["slow"], "cluster": collection_path.parent.name == "cluster"}
    # A test may have any of the marks that its file names.
    values = [(True,) if sure.get(name) else (False, True) if f"mark.{name}" in text else (False,) for name in _KINDS]
    try:
        selected = any(eval(config.option.markexpr, dict(zip(_KINDS, case, strict=True))) for case in product(*values))
    except NameError:  # another mark
        return None
    return None if selected else True


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that wait and files that compute in turn, the longest of each first.

    Tests of real daemons and of whole process trees are tried once more, and the summary names each that was (RERUN). The cause:
    five workers share two cores with up to five Slurm clusters, and a slurmctld or a started process is then scheduled later than
    any patience that a test can have; each time it was another test, and alone it passed. All other tests have one try.
    """
    slow = set(_FILES["slow"])
    order = {name: number for number, name in enumerate(_ORDER)}
    items.sort(key=lambda item: min(order.get(name, len(order)) for name in (item.path.stem, item.path.parent.name)))
    for item in items:
        if item.path.stem in slow:
            item.add_marker(pytest.mark.slow)
        if item.path.parent.name == "cluster":
            item.add_marker(pytest.mark.cluster)
        if os.geteuid() != 0 and item.get_closest_marker("root"):
            item.add_marker(pytest.mark.skip(reason="only root can be another user"))
        # test_local starts real process trees, which a starved machine ends later than a test can wait. A fuzzer has one try: the
        # next would draw other input, and hide what it found.
        if item.path.stem == "test_damaged_results":
            continue
        if item.path.parent.name in ("cluster", "workflow") or item.path.stem == "test_local":
            item.add_marker(pytest.mark.flaky(reruns=1))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """A file stays on one worker, because its tests share a cluster or a process; those that are spread share nothing.

    All files of trainer/ share one server, whose imports take seconds; another that trains shares what PyTorch itself imports late.
    """
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            if "/trainer/" in file or file.endswith("test_train_counts.py"):
                return "trainer"
            return nodeid if Path(file).stem in _FILES["spread"] else file

    return Scheduling(config, log)


BROWSER, DRIVER = "/usr/bin/chromium", "/usr/bin/chromedriver"
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Headless chromium under selenium; skipped where it is not installed, never in continuous integration.

    Of a module: one that is left open goes on to take processor time, and asks a page that is live for news.
    """
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


@pytest.fixture(scope="session", autouse=True)
def machine_lock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """What tests measure in their own process waits for no other session; campaigns that they start name a lock of their own."""
    with pytest.MonkeyPatch.context() as patch:
        path = tmp_path_factory.mktemp("machine") / "machine.lock"
        patch.setattr("campaign.run.locks.MACHINE_LOCK", path)
        yield path


@pytest.fixture
def fake_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    """Slurm's commands as small programs, first on PATH."""
    slurm = FakeSlurm(tmp_path / "slurm")
    monkeypatch.setenv("PATH", str(slurm.bin), prepend=os.pathsep)
    return slurm
