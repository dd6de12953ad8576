"""What several rooms of the tests need: a real browser, and programs that stand for Slurm's."""

from __future__ import annotations

import gc
import os
import re
import shutil
import signal
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.fake_slurm import FakeSlurm

_WAITING = (
    "test_slurm_daemon_faults",
    "test_slurm_faults",
    "test_campaign",
    "test_power",
    "test_srun_steps",
    "test_strategies",
    "test_growth",
    "test_training_campaign",
    "test_what_is_measured",
    "test_many_leases",
    "test_endings",
    "test_faults",
    "test_until",
    "test_slurm",
    "test_emulated_fabrics",
    "test_what_goes_wrong",
    "test_secrets",
    "test_inference",
    "test_cluster_commands",
    "test_as_module",
    "test_calls",
    "test_foreign_launchers",
    "test_agents_detach",
    "test_lengthened_warmup",
    "test_concurrency",
    "test_lease_plan_by_hand",
    "test_submission_local",
    "cluster",
    "workflow",
)
"""Names of files, or of their directories, that mostly wait for daemons and campaigns: the longest first."""
_COMPUTING = (
    "trainer",
    "test_demo",
    "test_examples",
    "test_network",
    "test_figures",
    "test_installed_wheel",
    "test_recommendation",
    "test_archive_programs",
    "test_local_launcher",
    "test_until_engine",
    "test_damaged_results",
    "test_figures_of_odd_sizes",
    "test_figures_of_metrics",
    "test_same_bytes",
    "test_planted_truth",
    "test_asking",
    "test_published_reference",
    "test_drift",
    "test_predicted",
    "test_fabric",
    "test_compare",
    "test_gpt_server",
    "test_figures_under_truth",
    "test_predicted_studies",
    "test_figures_of_services",
    "test_figures_of_spread",
    "test_answers_agree",
    "test_demo_choice",
    "test_snakemake_versions",
    "insight",
)
"""Those that keep a core busy. Between the others, so that no worker finds both cores idle, or is left alone with a long one."""
_ORDER = tuple(name for pair in zip_longest(_WAITING, _COMPUTING) for name in pair if name)
_SPREAD = frozenset(
    {
        "test_emulated_fabrics",
        "test_faults",
        "test_growth",
        "test_what_goes_wrong",
        "test_concurrency",
        "test_bad_input",
        "test_emulated_links",
        "test_lease_plan_by_hand",
    }
)
"""Files whose tests share nothing that is costly to make: each of their tests may go to another worker."""
_SLOW_DIRECTORIES = frozenset({"cluster", "workflow", "benchmarks", "trainer", "contract"})
_SLOW_FILES = frozenset(
    {
        "test_agents_detach",
        "test_agents_drives",
        "test_answers_agree",
        "test_any_source",
        "test_archive",
        "test_device_check",
        "test_archive_commands",
        "test_archive_faults",
        "test_archive_golden",
        "test_archive_merge",
        "test_archive_programs",
        "test_asking",
        "test_broken_files",
        "test_collect",
        "test_compare",
        "test_comparison",
        "test_control_http",
        "test_controlled_invariants",
        "test_demo_choice",
        "test_documentation",
        "test_figures",
        "test_figures_of_metrics",
        "test_figures_of_odd_sizes",
        "test_figures_of_services",
        "test_figures_of_spread",
        "test_finding_again",
        "test_forecasting",
        "test_foreign_clients",
        "test_fuzzed_answers",
        "test_gpt_server",
        "test_h3_habits",
        "test_highest_rate",
        "test_import_command",
        "test_import_services",
        "test_imported_truth",
        "test_latency_percentiles",
        "test_launch_prefix",
        "test_launcher",
        "test_lease_invariants",
        "test_links_figures",
        "test_links_stage",
        "test_liqid",
        "test_load_truth",
        "test_log_corpus",
        "test_odd_options",
        "test_paper",
        "test_parsers_hostile",
        "test_predicted",
        "test_predicted_studies",
        "test_published",
        "test_published_choices",
        "test_published_page",
        "test_published_reference",
        "test_query",
        "test_question_rounds",
        "test_recommendation",
        "test_redfish",
        "test_report",
        "test_same_bytes",
        "test_results_site",
        "test_service",
        "test_statistics_pairs",
        "test_statistics_variance",
        "test_step_model",
        "test_step_times",
        "test_summary_recomputed",
        "test_sunfish",
        "test_tables_of_two_systems",
        "test_trace_command",
        "test_until_engine",
    }
)
"""Files that `make test-fast` leaves out: together they take longer than all others."""

_OF_THE_MACHINE = re.compile(
    r"shutil\.which|chmod|getuid|geteuid|unshare|skipif|pytest\.skip|PermissionError|/proc/|namespaces|fake_slurm|FakeSlurm|PATH"
)
"""What a test file has in it where its outcome may depend on the user's rights, or on the programs that are installed."""

# The same examples for everybody: what fails is the change. CAMPAIGN_EXPLORE=1 draws others each time.
settings.register_profile(
    "project",
    deadline=None,
    derandomize="CAMPAIGN_EXPLORE" not in os.environ,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("project")


def pytest_configure(config: pytest.Config) -> None:
    """Tests of hang-ups need the signal as a terminal delivers it; nohup starts programs that ignore it."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    # What is collected stays until the end: looking through it again and again for garbage took 40 % of the time.
    gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files that wait and files that compute in turn, the longest of each first.

    Tests of real daemons and of whole process trees are tried once more, and the summary names each that was (RERUN). The cause:
    four workers share two cores with up to four Slurm clusters, and a slurmctld or a started process is then scheduled later than
    any patience that a test can have; each time it was another test, and alone it passed. All other tests have one try.
    """
    order = {name: number for number, name in enumerate(_ORDER)}
    items.sort(key=lambda item: min(order.get(name, len(order)) for name in (item.path.stem, item.path.parent.name)))
    depends: dict[Path, bool] = {}
    for item in items:
        if item.path not in depends:
            depends[item.path] = _OF_THE_MACHINE.search(item.path.read_text(encoding="utf-8")) is not None
        if depends[item.path]:
            item.add_marker(pytest.mark.machine)
        if item.path.stem in _SLOW_FILES or _SLOW_DIRECTORIES & set(item.path.parts):
            item.add_marker(pytest.mark.slow)
        # test_local starts real process trees, which a starved machine ends later than a test can wait. A fuzzer has one try: the
        # next would draw other input, and hide what it found.
        if item.path.stem == "test_damaged_results":
            continue
        if item.path.parent.name in ("cluster", "workflow") or item.path.stem == "test_local":
            item.add_marker(pytest.mark.flaky(reruns=1))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """A file stays on one worker, because its tests share a cluster or a process; those of _SPREAD share nothing.

    All files of trainer/ share one server, whose imports take seconds; another that trains shares what PyTorch itself imports late.
    """
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            if "/trainer/" in file or file.endswith("test_train_counts.py"):
                return "trainer"
            return nodeid if Path(file).stem in _SPREAD else file

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
