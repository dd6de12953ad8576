"""Directories and files that cannot be written: every command says so in one message, without a traceback."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from campaign.cli.main import main
from campaign.report import figure
from tests import campaign_files
from tests.campaign_records import fill

# {file}: a file where a directory is needed; {absent}: below a directory in which nothing can be made.
COMMANDS = [
    "plan {campaign} --output {file}",
    "plan {campaign} --output {absent}",
    "plan {campaign} --results {file}",
    "plan {campaign} --write --results {absent}",
    "status {campaign} --results {file}",
    "compose 1x2-fabric --campaign {campaign} --results {absent}",
    "verify {campaign} --results {file}",
    "collect {campaign} --results {file}",
    "figures {results} --output {absent}",
    "figures {results} --output {file}",
    "report {results} --output {absent}/r.html",
    "report {results} --output {file}/r.html",
    "recommend {results} --output {absent}",
    "summary {results} --output {absent}/s.txt",
    "summary {results} --output {file}/s.txt",
    "compare {results} {results} --output {absent}/c.html",
    "archive write {results} --output {absent}/a.zip",
    "archive write {results} --output {file}/a.zip",
    "init {absent}",
    "fabric emulate redfish --directory {absent}",
    "fabric emulate redfish --directory {file}",
    "import {campaign} --output {absent}",
    "validate {absent}",
    "workload show {absent}",
]


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    top = tmp_path_factory.mktemp("a place")
    campaign = campaign_files.write_files(top / "config")
    results = top / "results" / "small"
    fill(campaign_files.load(top / "config"), results)
    CliRunner().invoke(main, ["plan", str(campaign), "--write", "--results", str(results.parent)])
    CliRunner().invoke(main, ["collect", str(results / "plan" / "plan.json")])
    (top / "file").write_text("")
    return {"campaign": str(campaign), "results": str(results), "file": str(top / "file"), "absent": "/proc/absent"}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_place_that_cannot_be_used_is_one_message(
    command: str, places: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        figure, "list_figure_names", lambda *arguments: ["scaling"]
    )  # drawing all takes longer than all else
    words = [word.format(**places) for word in command.split(" ")]
    result = CliRunner().invoke(main, words)
    assert isinstance(result.exception, SystemExit), (result.exception, result.output)
    assert result.exit_code in (1, 2), result.output
    assert "Traceback" not in result.output
    said = [line for line in result.output.splitlines() if line.startswith(("error: ", "Error: "))]
    assert len(said) == 1, result.output
