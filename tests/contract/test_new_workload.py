"""The kind of workload in docs/how-to/own-workload.md, one module and one line, is checked, documented, shown, run and tested."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import pytest
import yaml
from click.testing import CliRunner

from campaign.cli.main import main
from campaign.common.errors import ConfigError
from campaign.common.paths import ROOT
from campaign.plan.campaign.json_schemas import build_schema
from campaign.run.launchers import open_launcher
from campaign.workloads import WORKLOADS, load_workload_class
from campaign.workloads.launcher import Launcher
from docs import generate
from tests.campaign_files import one_cell
from tests.contract import test_workload as contract
from tests.unit.run.launch.compositions import composition, system

PAGE = ROOT / "docs" / "how-to" / "own-workload.md"


@pytest.fixture(autouse=True)
def sleep_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    module = PAGE.read_text(encoding="utf-8").partition("```python\n")[2].partition("```")[0]
    (tmp_path / "sleep_workload.py").write_text(module)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(WORKLOADS, "sleep", "sleep_workload:SleepWorkload")
    yield
    sys.modules.pop("sleep_workload", None)


@pytest.fixture(scope="module")
def launcher() -> Iterator[Launcher]:
    launcher = open_launcher("local", system(), composition((8, 0)))
    yield launcher
    launcher.close()


def test_it_keeps_the_contract(launcher: Launcher, tmp_path: Path) -> None:
    contract.test_the_class_documents_itself("sleep")
    contract.test_its_file_survives_being_written_and_read("sleep")
    for ended, status in contract.ENDS.values():
        contract.test_a_run_that_was_ended_or_crashed_says_so("sleep", ended, status, tmp_path)
    outcome = contract.measured(launcher, contract.example_of("sleep"), one_cell(devices=2, batch=2), tmp_path)
    contract.check_rate(outcome, one_cell(devices=2, batch=2))


def test_the_command_line_shows_and_tries_it(tmp_path: Path) -> None:
    file = tmp_path / "nap.yaml"
    file.write_text(load_workload_class("sleep").example)
    shown = CliRunner().invoke(main, ["workload", "show", str(file)])
    assert shown.exit_code == 0, shown.output
    assert yaml.safe_load(shown.output)["sleep_ms"] == 5
    tried = CliRunner().invoke(main, ["workload", "try", str(file), "--steps", "3"])
    assert tried.exit_code == 0, tried.output
    assert "ok" in tried.output


def test_its_own_check_names_file_and_key(tmp_path: Path) -> None:
    file = tmp_path / "nap.yaml"
    file.write_text(load_workload_class("sleep").example.replace("5}", "5000}"))
    tried = CliRunner().invoke(main, ["workload", "try", str(file)])
    assert tried.exit_code != 0
    assert f"{file}:1: sleep_ms: 5000.0 is too sleepy" in tried.output


def test_the_reference_the_schema_and_the_status_table_have_it() -> None:
    text = generate.with_parts(generate.REFERENCE / "workload-file.md")
    assert "## sleep\n" in text
    assert "Sleeps `sleep_ms` in each step." in text
    assert "| `sleep_ms` | number > 0 | **required** | Time of a step. |" in text
    assert "`sleep`" in generate.with_parts(generate.REFERENCE / "workloads.md")
    schema = jsonschema.Draft202012Validator(build_schema("workload"))
    schema.validate(yaml.safe_load(load_workload_class("sleep").example))
    assert not schema.is_valid({"name": "nap", "kind": "sleep", "precisions": ["fp32"]})


def test_the_reference_refuses_a_kind_without_introduction(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_workload_class("sleep"), "introduction", "")
    with pytest.raises(ConfigError, match="give the class an 'introduction'"):
        generate.with_parts(generate.REFERENCE / "workload-file.md")


def test_no_other_room_knows_a_kind() -> None:
    package = ROOT / "workflow" / "campaign"
    kinds = "train|synthetic|service|service_run|earlier_service|command"
    names = re.compile(rf"campaign\.workloads\.(?:{kinds})\b|\b(?:{kinds.title()})Workload\b")
    knowing = [
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        if path.relative_to(package).parts[0] != "workloads" and names.search(path.read_text(encoding="utf-8"))
    ]
    assert knowing == [], "ask the workload (workloads/protocol.py: Workload) instead of testing its kind"
