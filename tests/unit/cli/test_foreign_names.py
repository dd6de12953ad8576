"""No name from elsewhere reaches a terminal as it is: every text that a command prints goes through the escaping functions."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from campaign.cli.main import main
from campaign.common.paths import ROOT
from tests import campaign_files

SOURCES = sorted((ROOT / "workflow" / "campaign" / "cli").glob("*.py"))
ESCAPING = {"json.dumps", "escape_control_characters", "click.style"}
OWN = {
    "error: {replace_scratch_path(escape_control_characters(str(problem)))}",
    "warning: {escape_control_characters(message)}",
    "ended by {interrupted}; {_CLEANUP_HINT}",
}
"""Texts whose parts are escaped, or constants of this program."""


def unescaped_calls(tree: ast.AST) -> Iterator[ast.Call]:
    """Yield the calls of click that print a text with parts which no function has escaped."""
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args):
            continue
        if ast.unparse(node.func) not in ("click.echo", "click.secho", "click.confirm", "click.prompt"):
            continue
        text = node.args[0]
        escaped = isinstance(text, ast.Call) and ast.unparse(text.func) in ESCAPING
        if not (isinstance(text, ast.Constant) or escaped or ast.unparse(text)[2:-1] in OWN):
            yield node


def test_every_text_that_a_command_prints_is_escaped() -> None:
    found = [
        f"{path}:{call.lineno}: {ast.unparse(call)}"
        for path in SOURCES
        for call in unescaped_calls(ast.parse(path.read_bytes()))
    ]
    assert found == []


@pytest.mark.parametrize("command", [["init"], ["remove", "--dry-run"], ["workload", "show"], ["cluster", "down"]])
def test_escapes_in_names_are_shown_and_not_obeyed(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "a\x1b[31mb\u202e"
    campaign = campaign_files.write_files(place / "config")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SLURM_CONF", raising=False)
    words = {
        "init": [str(place / "new")],
        "remove": [str(campaign), "--results", str(place / "results")],
        "workload": [str(campaign.parent / "workloads" / "program.yaml")],
        "cluster": ["--directory", str(place / "cluster")],
    }[command[0]]
    if command[0] == "remove":
        assert CliRunner().invoke(main, ["plan", *words, "--write"]).exit_code == 0
    output = CliRunner().invoke(main, [*command, *words]).output
    assert "a\\x1b[31mb\\u202e" in output
    assert not {"\x1b", "\u202e"} & set(output)
