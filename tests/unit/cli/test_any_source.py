"""Every command takes a campaign file, a results directory or an archive; why runs failed; what `systems` and `remove` do."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from campaign.cli.main import COMMAND_GROUPS, main
from campaign.common.files import acquire_lock
from campaign.common.paths import CONFIG_DIRECTORY, Results
from campaign.report import figure
from tests import campaign_files
from tests.unit.archive import archive_data


def run(*words: str) -> Result:
    result = CliRunner().invoke(main, list(words))
    assert isinstance(result.exception, SystemExit | None), result.exception
    return result


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a measured campaign in config/ and results/small, and its archive small.zip."""
    place = tmp_path_factory.mktemp("measured")
    campaign = archive_data.campaign_in(place / "config")
    archive_data.fill(campaign, place / "results" / "small")
    crashed = next(path for path in (place / "results").rglob("records/*/*.json") if b'"crashed"' in path.read_bytes())
    log = place / "results" / "small" / json.loads(crashed.read_bytes())["log"]
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text("starting\n\x1b[31mTraceback\x1b[0m\nRuntimeError: boom\n")
    file, results = str(place / "config" / "campaign.yaml"), str(place / "results")
    assert run("archive", file, "--results", results, "--output", str(place / "small.zip")).exit_code == 0
    return place


@pytest.fixture(autouse=True)
def there(measured: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(measured)


@pytest.mark.parametrize("source", ["config/campaign.yaml", "results/small", "small.zip"])
@pytest.mark.parametrize(
    ("command", "code", "says"),
    [
        ("status {}", 0, "31 of 32 runs have a record: "),
        ("plan {}", 0, "16 cells, 32 runs, 1 without a record"),
        ("validate {}", 0, "{}: valid; 16 cells, 32 runs"),
        ("inventory {}", 0, "falcon1/drawer1/slot1"),
        ("logs {}", 0, "crashed: "),
        ("compare {} --versions none none", 1, "two different labels"),
        ("compare falcon --versions none driver-580", 1, "falcon has no measurements"),
        ("compare {} --versions none driver-580", 1, "has no runs of version driver-580; its versions are none"),
        ("published {}", 1, "error: {}: the campaign has no `references`"),
    ],
)
def test_a_command_takes_any_of_the_three(source: str, command: str, code: int, says: str) -> None:
    result = run(*shlex.split(command.format(source)))
    assert result.exit_code == code, result.output
    assert says.format(source) in result.output
    assert "campaign-archive-" not in result.output  # where it was unpacked is nobody's concern


@pytest.mark.slow
@pytest.mark.parametrize("source", ["config/campaign.yaml", "small.zip"])
def test_a_summary_names_what_failed_and_its_log(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figure, "list_figure_names", lambda *arguments: ["memory_frontier"])
    output = run("summary", source).output
    assert "Failed runs\n" in output
    assert f"'campaign logs {'small.zip' if source == 'small.zip' else 'results/small'}'" in output
    assert ("log: results/small/logs/" in output) == (source != "small.zip")  # an archive holds no logs


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("status results", "results: this directory has the results of small; name one, such as results/small"),
        ("status config", "config: this directory has no results of a campaign; name a campaign file"),
        ("status config/systems/bench.yaml", "this is a system file; name a campaign file, which refers to it under `system`"),
        ("plan config/workloads/steps.yaml", "which refers to it under `axes.workload`"),
        ("check config/campaign.yaml", "is a campaign file; give a system file, or a name that 'campaign systems' lists"),
        ("redo small.zip --where batch==1", "an archive is read-only; 'campaign archive extract small.zip'"),
        ("remove small.zip", "an archive is read-only"),
        ("run small.zip", "an archive is read-only"),
        ("plan small.zip --write", "small.zip: an archive is read-only"),
        ("logs results/small --of nothing", "--of nothing: no run with a record matches"),
        ("remove config", "config: this directory has neither records nor a plan, so nothing was deleted"),
        ("release", "give a configuration, or --orphans"),
        ("redo results/small --failed", "nothing was changed; add --yes to answer yes"),
        ("remove results/small", "nothing was changed; add --yes to answer yes"),
    ],
)  # fmt: skip
def test_what_is_something_else_is_said_to_be(words: str, says: str) -> None:
    result = run(*words.split())
    assert (result.exit_code, says in result.output) == (1, True), result.output


def test_a_report_of_what_does_not_fit_says_so_and_writes_nothing(tmp_path: Path) -> None:
    big = campaign_files.write_files(tmp_path / "big", {"campaign.configurations": [{"devices_per_host": [1, 40]}]})
    result = run("report", str(big), "--results", str(tmp_path / "results"))
    assert (result.exit_code, "configuration 1x40-local does not fit" in result.output) == (1, True)
    assert not (tmp_path / "results").exists()
    status = run("status", str(big)).output
    assert "1x40-local does not fit and cannot be measured: 1 host with" in status
    assert re.search(r"^1x40-local.c1 +0/\d+ +does not fit", status, re.MULTILINE)


def test_logs_show_the_end_of_a_log_the_evidence_without_one_and_what_is_named() -> None:
    output = run("logs", "results/small").output
    assert output.count("    | ") >= 2
    assert "    | Traceback\n    | RuntimeError: boom\n" in output
    document = json.loads(run("logs", "results/small", "--lines", "1", "--format", "json").output)
    assert {run["status"] for run in document["runs"]} == {"crashed", "oom_device"}
    assert ["RuntimeError: boom"] in [run["end"] for run in document["runs"]]
    of_one = json.loads(run("logs", "results/small", "--of", "1x1-local", "--format", "json").output)["runs"]
    assert {run["lease"].partition(".")[0] for run in of_one} == {"1x1-local"}
    assert json.loads(run("logs", "small.zip", "--format", "json").output)["missing"] == []


def test_systems_are_those_that_a_campaign_can_name() -> None:
    rows = json.loads(run("systems", "--format", "json").output)
    assert rows[0]["system"] == "bench"
    assert {path.stem for path in (CONFIG_DIRECTORY / "systems").glob("*.yaml")} <= {row["system"] for row in rows}
    assert "falcon-demo" in run("systems").output
    assert "Hosts of bench" in run("inventory", "config/systems/bench.yaml").output


def test_results_are_removed_after_a_question_and_not_while_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    campaign = archive_data.campaign_in(tmp_path / "config")
    results = Results.from_directory(archive_data.fill(campaign, tmp_path / "results" / "small"))
    monkeypatch.chdir(tmp_path)
    assert "would delete results/small: 31 records in " in run("remove", "--dry-run").output
    assert run("remove").exit_code == 1  # nobody answers
    lock = acquire_lock(results.measure_lock_file("1x1-local.c1"))
    assert lock is not None
    assert "results/small: lease 1x1-local.c1 is being measured" in run("remove", "--yes").output
    os.close(lock)
    assert run("compose", "1x1-fabric", "config/campaign.yaml").exit_code == 0
    assert "lease small.kept-1x1-fabric" in run("remove", "results/small", "--yes").output
    assert results.records.is_dir()
    assert run("release", "1x1-fabric", "results/small").exit_code == 0
    assert "deleted results/small" in run("remove", "--yes").output
    assert not results.directory.exists()
    assert "config/campaign.yaml has no results yet" in run("remove", "--yes").output


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="takes the rights of root away")
def test_results_that_may_not_be_removed_are_named_with_their_directory(tmp_path: Path) -> None:
    campaign = archive_data.campaign_in(tmp_path / "config")
    archive_data.fill(campaign, tmp_path / "results" / "small")
    shard = sorted((tmp_path / "results" / "small" / "records").iterdir())[0]
    shard.chmod(0o555)
    command = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", sys.executable, "-m", "campaign.cli", "remove"]
    command += [str(tmp_path / "config" / "campaign.yaml"), "--results", str(tmp_path / "results"), "--yes"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    finally:
        shard.chmod(0o755)
    assert done.returncode == 1
    assert f"error: {shard}/" in done.stderr
    assert "Permission denied" in done.stderr


def test_help_shows_commands_in_groups_and_stages_last() -> None:
    output = run("--help").output
    places = [output.index(f"\n{group}:") for group in COMMAND_GROUPS]
    assert places == sorted(places)
    assert next(iter(COMMAND_GROUPS)) == "Start"
    assert set(list(COMMAND_GROUPS.values())[-1]) == {"measure", "measured", "collect"}
