"""What speed rests on, as counts that no busy machine can change: operations a run, a cell and an invocation."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from campaign.common.errors import LaunchError
from campaign.plan import matrix
from campaign.plan.campaign.resolve import load_campaign
from campaign.plan.dag import read_plan
from campaign.plan.request import PlanRequest
from tests.benchmarks import __main__ as benchmarks
from tests.benchmarks import slurm_schedule
from tests.benchmarks.__main__ import main
from tests.benchmarks.counted import DISPENSABLE
from tests.benchmarks.figure import Figure, keep_ratios, read_last_ratios
from tests.benchmarks.project import ROOT, Project

Driven = tuple[dict[str, Any], dict[str, Any]]
LOADED = f"import sys; print([name for name in {DISPENSABLE!r} if name in sys.modules], file=sys.__stdout__)"


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project.at(tmp_path)


def python(project: Project, *arguments: str) -> str:
    environment = {**project.environment, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=project.directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def driven(project: Project, name: str, cells: int, repetitions: int) -> dict[str, Any]:
    path = project.campaign(name, cells, configurations=1, repetitions=repetitions)
    told = json.loads(python(project, "-m", "tests.benchmarks.counted", str(path), "results").splitlines()[-1])
    assert told["error"] == ""
    found: dict[str, Any] = told
    return found


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Driven:
    """What a driver of 4 runs and one of 40 did."""
    project = Project.at(tmp_path_factory.mktemp("driven"))
    found = driven(project, "few", 4, 1), driven(project, "many", 8, 5)
    assert len(list((project.directory / "results/many/records").glob("*/*.json"))) == 40
    return found


def test_a_run_takes_one_process_one_forced_file_and_the_same_opens_however_many_there_are(driver: Driven) -> None:
    few, many = driver
    more = {what: many["counts"][what] - few["counts"][what] for what in ("processes", "forced", "opened")}
    assert more["processes"] == 40 - 4
    assert more["forced"] == 40 - 4
    # The log, written and read; the record's temporary file; a line of progress; /dev/null; the lease's journal; telemetry;
    # children, before and after; three pipes of the start: 13 on an idle machine.
    # On a busy one a run lasts longer, and is looked at more often.
    assert more["opened"] <= 18 * (40 - 4)


def test_a_run_that_leaves_nothing_behind_does_not_look_through_the_hosts_processes(driver: Driven) -> None:
    few, many = (found["counts"].get("environments read", 0) for found in driver)
    # Once at the start, for what a killed driver may have left; 36 runs more must not be 36 looks more.
    processes = len([entry for entry in Path("/proc").iterdir() if entry.name.isdigit()])
    assert many - few < 2 * processes


def test_a_driver_loads_nothing_that_makes_tables_or_figures(driver: Driven) -> None:
    assert [found["loaded"] for found in driver] == [[], []]


def test_a_process_that_waits_for_slurm_loads_nothing_that_submits_or_makes_tables(project: Project) -> None:
    more = (*DISPENSABLE, "submitit", "numpy", "jinja2", "campaign.run.run_loop")
    program = "import sys, campaign.run.measure_lease, campaign.slurm.slurm_submitter, campaign.slurm.strategies\n"
    assert python(project, "-c", f"{program}print([name for name in {more!r} if name in sys.modules])") == "[]\n"


def test_validators_are_built_when_a_document_is_read(project: Project) -> None:
    program = "import campaign.run.measure_lease; from campaign.spec.system_file import SystemFile as model; "
    assert python(project, "-c", f"{program}print(model.__pydantic_complete__)") == "False\n"


def test_where_there_is_no_slurm_its_figures_are_skipped_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def check() -> None:
        raise LaunchError("not installed: slurmd")

    monkeypatch.setattr(slurm_schedule, "check_requirements", check)
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--strict", "schedule"])
    assert main() == 0
    assert "schedule: skipped: not installed: slurmd" in capsys.readouterr().err


def test_ratios_are_kept_and_what_grew_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "figures.csv"
    kept.write_text("commit,figure,ratio\nabc,slow,2\nabc,fast,2\nabc,gone,1\n")
    figures = [Figure(name, value, "s", 4.0, "bare") for name, value in (("slow", 9.0), ("fast", 8.4), ("new", 2.0))]
    monkeypatch.setattr(benchmarks, "BENCHMARKS", {"those": lambda project: figures})
    monkeypatch.setattr(benchmarks, "read_last_ratios", lambda: read_last_ratios(kept))
    monkeypatch.setattr(benchmarks, "keep_ratios", lambda figures, commit: keep_ratios(figures, "def", kept))
    for strict, code in ((["--strict"], 1), ([], 0)):
        monkeypatch.setattr(sys, "argv", ["benchmarks", *strict])
        assert main() == code
    said = capsys.readouterr().err
    assert said.count("slow: 12% above the last kept ratio") == 1  # the second time it is the last one
    assert "fast: " not in said
    assert kept.read_text().splitlines()[4:] == ["def,slow,2.25", "def,fast,2.1", "def,new,0.5"]
    assert read_last_ratios(kept) == {"slow": 2.25, "fast": 2.1, "new": 0.5, "gone": 1.0}


def test_planning_and_archiving_load_nothing_that_makes_tables_or_figures(project: Project) -> None:
    path = project.campaign("small", 4, configurations=1)
    commands = [["plan"], ["plan", "--format", "json"], ["validate"], ["archive", "verify"]]
    program = (
        f"from campaign.cli.main import main\nfor command in {commands!r}:\n"
        f"    main([*command, {str(path)!r}], standalone_mode=False)\n{LOADED}"
    )
    assert python(project, "-c", program).splitlines()[-1] == "[]"


def test_what_the_workflow_starts_at_the_end_loads_only_what_it_needs(project: Project) -> None:
    """Of results whose tables are empty: each command says so, with all imports done."""
    for name in ("tables", "figures"):
        (project.directory / name).mkdir()
    (project.directory / "tables/cells.csv").touch()
    for script in (ROOT / "scripts/figures").glob("[a-z]*.py"):
        (project.directory / f"figures/{script.stem}.json").write_text("{}")
    # Each loads more than the one before.
    dispensable = {
        ("summary",): ("pandas", "numpy", "matplotlib", "campaign.plan.campaign", "campaign.archive"),
        ("report",): ("scipy.special", "matplotlib", "campaign.plan.campaign.resolve", "campaign.archive"),
        ("figures", "--for", "report"): ("scipy.stats", "campaign.plan.campaign.resolve", "campaign.archive"),
    }
    program = (
        "import sys\nfrom campaign.cli.main import main\n"
        f"for command, names in {dispensable!r}.items():\n"
        "    try:\n        main([*command, '.'])\n"
        "    except SystemExit as ended:\n        assert ended.code == 1\n"
        "    print(command, [name for name in names if name in sys.modules])"
    )
    said = [line for line in python(project, "-c", program).splitlines() if line.startswith("(")]
    assert said == [f"{command} []" for command in dispensable]


def counted(monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> list[object]:
    calls: list[object] = []
    original: Callable[..., Any] = getattr(module, name)

    def call(*arguments: Any, **named: Any) -> Any:
        calls.append(None)
        return original(*arguments, **named)

    monkeypatch.setattr(module, name, call)
    return calls


def test_a_plan_hashes_each_cell_once_and_opens_no_file_a_cell(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed, opened = {}, {}
    for cells in (200, 1_000, 4_000):
        path = project.campaign(f"cells-{cells}", cells)
        campaign = load_campaign(path)
        with monkeypatch.context() as patch:
            calls = counted(patch, matrix, "hash_document")
            matrix.expand_matrix(campaign)
            hashed[cells] = len(calls)
        with monkeypatch.context() as patch:
            reads = counted(patch, Path, "read_text")
            read_plan(PlanRequest(path, project.directory / "results"))
            opened[cells] = len(reads)
    assert hashed[1_000] - hashed[200] == 800
    assert hashed[4_000] - hashed[1_000] == 3_000
    assert opened[200] == opened[1_000] == opened[4_000]
