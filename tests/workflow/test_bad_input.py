"""Bad input through the real command line: one clear message, a failing exit code, and everything measured stays as it was."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from tests.campaign_files import load, write_files
from tests.campaign_records import fill
from tests.warm_start import run

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT / "workflow")}
SMALL = {"campaign.configurations": [{"devices_per_host": [1, 2]}], "campaign.axes.precision": "fp32"}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A directory in which the checkout's workflow runs, with records of an earlier campaign."""
    for name in ("workflow", "scripts", "reports", "local", "slurm", "config"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / "tmp").mkdir()
    fill(load(tmp_path / "mine", SMALL), tmp_path / "results" / "small")
    return tmp_path


def snakemake(project: Path, *arguments: str, changes: dict[str, Any] | None = None) -> tuple[int, str]:
    """Exit code, and what was printed."""
    write_files(project / "mine", {**SMALL, "system.machine_lock": str(project / "tmp" / "lock"), **(changes or {})})
    command = ["snakemake", "--profile", "local", "--config", "campaign=mine/campaign.yaml", *arguments]
    return run(command, project, ENVIRONMENT, 120)


def records(project: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in (project / "results" / "small" / "records").glob("*/*.json")}


def told(result: tuple[int, str]) -> list[str]:
    """What was said, less the lines that Snakemake begins with."""
    code, said = result
    assert code != 0
    assert "Traceback" not in said
    return [line for line in said.splitlines() if line and not line.startswith(("Using profile", "Config file"))]


@pytest.mark.parametrize(
    ("arguments", "changes", "expected"),
    [
        ((), {"campaign.protcol": 1}, ["error: mine/campaign.yaml: protcol: unknown key; did you mean 'protocol'?"]),
        (
            (),
            {"campaign.axes.batch": ["many"], "system.fabric.kind": "simulatd"},
            ["error: mine/campaign.yaml: axes.batch.0: input should be a valid integer (found 'many')"],
        ),
        (
            ("where=__import__('os').system('touch made')",),
            {},
            [
                "error: --where: '__import__('os').system('touch made')' is not allowed in an expression; allowed are axis "
                "names, numbers, quoted strings, lists, comparisons, 'in', 'and', 'or', 'not' and + - * / % //"
            ],
        ),
        (("campain=x",), {}, ["error: --config campain: there is no such key; the keys are: "]),
        # Snakemake reads it as 535104.
        (("version=535_104",), {}, ["error: version: '535_104' is a number or truth value to YAML"]),
    ],
    ids=["unknown key", "wrong type", "code", "unknown --config", "a number with _"],
)
def test_one_message_and_nothing_is_touched(
    project: Path, arguments: tuple[str, ...], changes: dict[str, Any], expected: list[str]
) -> None:
    before = records(project)
    lines = told(snakemake(project, *arguments, changes=changes))
    assert len(lines) == len(expected)
    for line, start in zip(lines, expected, strict=True):
        without_number, lines_named = re.subn(r"(?<=\.yaml):\d+", "", line)
        assert without_number.startswith(start)
        assert lines_named == start.count(".yaml")
    assert records(project) == before
    assert len(before) == 8
    assert not (project / "made").exists()


def test_a_configuration_that_can_never_fit_stops_the_campaign_before_it_begins(project: Path) -> None:
    lines = told(snakemake(project, changes={"campaign.configurations": [{"devices_per_host": 9, "attach": "fabric"}]}))
    (line,) = lines
    assert re.match(r"error: mine/campaign.yaml:\d+: configurations.0: configuration 1x9-fabric does not fit: ", line)
    assert line.endswith("; remove it, or correct hosts and pool in the system file")


def test_a_missing_program_is_told_once_a_lease_and_at_the_end_and_the_dag_goes_on(project: Path) -> None:
    before = records(project)
    changes = {
        "campaign.axes.workload": "program",
        "workloads.program.command": ["no-such-program"],
        "campaign.configurations": [{}],
    }
    code, said = snakemake(project, "--until", "measure", changes=changes)
    assert code == 0, said
    message = (
        "workload program: command: 'no-such-program' was not found on this machine; install it, or give its full path"
    )
    assert said.count(message) == 2
    assert said.splitlines()[-1] == f"  1x1-local.c1: {message}"
    reasons = [json.loads(path.read_text())["reason"] for path in (project / "results/small/manifests").glob("*.json")]
    assert reasons.count(message) == 1
    assert records(project) == before


def test_a_truncated_record_is_set_aside_and_measured_again_and_the_others_stay(project: Path) -> None:
    path = sorted(records(project))[0]
    damaged = path.read_bytes()[:50]
    path.write_bytes(damaged)
    before = records(project)
    code, said = snakemake(project, "--until", "measure")
    assert code == 0, said
    after = records(project)
    assert {each for each in before if after[each] != before[each]} == {path}
    assert len(after) == len(before)
    aside = list((project / "results" / "small" / "superseded").glob(f"*/records/*/{path.name}"))
    assert [each.read_bytes() for each in aside] == [damaged]
