"""A corpus of broken files: each gives one message with file, line, key, reason and remedy, a fitting exit code and no traceback.

tests/data/broken has valid files and `edits.txt`: each edit of one of them ('old => new', where `\\n` is a line break), and how the
message about it begins. After a change of wording: python -m tests.unit.plan.campaign.test_broken_files
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from campaign.cli.main import main
from campaign.common.paths import ROOT

CORPUS = Path(__file__).parents[3] / "data" / "broken"
FILES = ("campaign.yaml", "systems/site.yaml", "workloads/steps.yaml", "workloads/program.yaml")
BASE = {name: (CORPUS / name).read_text() for name in FILES}
LENGTH = 110
REMEDY = re.compile(
    r"; |did you mean|there are|input should be|, such as|choose|: give "
    r"|appears twice|is required, and not both|not allowed in an expression"
)


def edits() -> Iterator[tuple[str, str, str]]:
    """File, edit and the beginning of the message about it ('' where there is none yet)."""
    lines = (CORPUS / "edits.txt").read_text().splitlines()
    name = ""
    for line, after in zip(lines, [*lines[1:], ""], strict=True):
        if line.startswith("# "):
            name = line.removeprefix("# ")
        elif not line.startswith("      "):
            yield name, line, after.strip() if after.startswith("      ") else ""


def check(directory: Path, name: str, edit: str) -> Result:
    """What `campaign validate` says of the files with this edit."""
    old, new = (text.replace("\\n", "\n") for text in edit.partition(" =>")[::2])
    new = new.removeprefix(" ")
    assert old in BASE[name], f"{name} has no {old!r}"
    indent = old[: len(old) - len(old.lstrip(" "))]
    return validated(directory, {**BASE, name: BASE[name].replace(old, indent + new if new else "", 1)})


def validated(directory: Path, files: Mapping[str, str]) -> Result:
    for name, text in files.items():
        (directory / name).parent.mkdir(exist_ok=True, parents=True)
        (directory / name).write_text(text)
    return CliRunner().invoke(main, ["validate", str(directory / "campaign.yaml")])


def messages(directory: Path, result: Result) -> list[str]:
    said = result.output.replace(f"{directory}/", "").replace(str(directory), ".").replace(str(directory.parent), "..")
    said = said.replace(str(ROOT), "/checkout")
    return [line for line in said.splitlines() if not line.startswith("campaign.yaml: valid")]


CASES = list(edits())


def test_there_are_more_than_200() -> None:
    assert len({(name, edit) for name, edit, _ in CASES}) == len(CASES) > 350


def test_the_files_are_valid_without_an_edit(tmp_path: Path) -> None:
    result = check(tmp_path, "campaign.yaml", "name: small => name: small")
    assert (result.exit_code, messages(tmp_path, result)) == (0, [])


@pytest.mark.parametrize(("name", "edit", "begins"), CASES, ids=[f"{name}: {edit}" for name, edit, _ in CASES])
def test_a_broken_file_gives_one_message(tmp_path: Path, name: str, edit: str, begins: str) -> None:
    result = check(tmp_path, name, edit)
    assert isinstance(result.exception, SystemExit | None), result.exception
    (message,) = messages(tmp_path, result)
    assert result.exit_code == (0 if message.startswith("warning: ") else 1)
    place = re.match(r"(?:error|warning): ([\w/]+\.yaml):(\d+): ", message)
    assert place, message
    assert 1 <= int(place[2]) <= len((tmp_path / place[1]).read_text().splitlines()) + 1
    assert REMEDY.search(message), message
    assert begins
    assert message.startswith(begins)


VALUES = (
    "",
    "null",
    "-1",
    "0",
    "1e999",
    "[]",
    "{}",
    "[[]]",
    "{a: b}",
    "'x'",
    "yes",
    "012",
    "*x",
    "&x",
    "!!int x",
    "- -",
    "\\x1b[2J",
    "9" * 30,
)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(name=st.sampled_from(FILES), data=st.data())
def test_no_mutation_ends_in_a_traceback(tmp_path: Path, name: str, data: st.DataObject) -> None:
    lines = BASE[name].splitlines()
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(lines) - 1))
        key, colon, _ = lines[at].partition(":")
        spot = data.draw(st.integers(0, len(lines[at])))
        new = data.draw(st.sampled_from(VALUES))
        change = data.draw(st.sampled_from(["value", "insert", "double", "remove", "indent"]))
        lines[at : at + 1] = {
            "value": [f"{key}{colon} {new}"],
            "insert": [f"{lines[at][:spot]}{new}{lines[at][spot:]}"],
            "double": [lines[at]] * 2,
            "remove": [] if len(lines) > 1 else lines,
            "indent": [f"  {lines[at]}"],
        }[change]
    result = validated(tmp_path, {**BASE, name: "\n".join(lines)})
    assert isinstance(result.exception, SystemExit | None), "\n".join(lines)


if __name__ == "__main__":
    written, last = [], ""
    for file, change, _ in CASES:
        with tempfile.TemporaryDirectory() as made:
            told = messages(Path(made), check(Path(made), file, change))
        written += [f"# {file}"] * (file != last) + [change, *(f"      {line[:LENGTH]}" for line in told)]
        last = file
    (CORPUS / "edits.txt").write_text("\n".join(written) + "\n")
