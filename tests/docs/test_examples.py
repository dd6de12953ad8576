"""Every YAML block is valid, every command exists, and blocks marked `run` do what the page says."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from unittest import mock

import click
import pytest
import yaml
from click.testing import CliRunner

from campaign.cli.main import main
from campaign.plan.campaign.json_schemas import SUBJECTS
from campaign.plan.campaign.load import validate
from campaign.report import figure
from campaign.report.write import draw_figures
from campaign.spec.published_file import ReferenceSet
from campaign.spec.yaml_file import parse_yaml
from tests.docs.pages import DOCS, EXAMPLES, PAGES, ROOT, Block, blocks

TUTORIAL = DOCS / "tutorial" / "first-campaign.md"
YAML = [block for page in PAGES for block in blocks(page, "yaml")]
SHELL = [block for page in PAGES for block in blocks(page, "bash", "console", "sh")]
SHOWN_FIGURES = ["overhead", "scaling"]
RUN = sorted({block.page for block in SHELL if "run" in block.words} - {TUTORIAL})
# Programs of others, whose options are theirs.
FOREIGN = frozenset(
    (
        "cd",
        "cp",
        "dot",
        "snakedeploy",
        "echo",
        "export",
        "git",
        "head",
        "ls",
        "mkdir",
        "pip",
        "python3",
        "source",
        "squeue",
        "ssh",
        "sudo",
        "xargs",
    )
)


@pytest.mark.parametrize("block", YAML, ids=str)
def test_a_yaml_block_is_valid(block: Block) -> None:
    """The info string says what it is: `yaml campaign` is a whole file, `yaml campaign part` some of its keys."""
    if "invalid" in block.words:  # the page shows what the message says
        return
    noun = block.words[1] if len(block.words) > 1 else _noun(block.text)
    text = block.text
    if "part" in block.words:
        document = {**yaml.safe_load(EXAMPLES[noun]), **yaml.safe_load(text)}
        if "systems" in document:
            del document["system"]  # in its place
        text = yaml.safe_dump(document, sort_keys=False)
    if noun == "published":
        ReferenceSet.model_validate(yaml.safe_load(text))
    elif noun == "values":
        assert set(yaml.safe_load(text)) <= {"slurm", "launcher"}
    else:
        validate(parse_yaml(text, Path(str(block))), SUBJECTS[noun][0])


def _noun(text: str) -> str:
    """What an unmarked block of a generated page is, by its keys."""
    keys = yaml.safe_load(text).keys()
    signs = {"logs": "import", "configurations": "campaign", "kind": "workload", "hosts": "system"}
    return next(noun for sign, noun in signs.items() if sign in keys)


@pytest.mark.parametrize("block", SHELL, ids=str)
def test_every_command_and_option_exists(block: Block) -> None:
    for words in _commands(block.text):
        match words[0]:
            case "campaign":
                _check_click(main, words[1:])
            case "snakemake":
                from snakemake.cli import get_argument_parser

                _check_argparse(get_argument_parser(), words[1:])
            case "make":
                targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
                assert set(words[1:]) <= set(targets), f"{shlex.join(words)}: no such target"
            case other:
                assert other in FOREIGN or other.startswith("."), f"{shlex.join(words)}: what is {other}?"


def _commands(text: str) -> Iterator[list[str]]:
    """The words of each command; what stands in brackets in a synopsis, redirections and variables do not count."""
    without_comments = re.sub(r"(^|\s\s)\s*#.*", "", text.replace("\\\n", " "), flags=re.MULTILINE)
    lexer = shlex.shlex(without_comments, posix=True, punctuation_chars=";&|\n<>()")
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t", True, ""
    words: list[str] = []
    for word in (*lexer, "\n"):
        if set(word) <= set(";&|\n"):
            while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
                words = words[1:]
            if words:
                yield words
            words = []
        else:
            words.append(word)


def _check_click(command: click.Command, words: list[str]) -> None:
    context = click.Context(command)
    while True:
        if not isinstance(command, click.Group):
            command.make_parser(context).parse_args(words)
            return
        if words[0] not in command.commands and "pack" in command.commands:
            words = ["pack", *words]  # `campaign archive FILE` is short for `campaign archive pack FILE`
        if words[0].startswith("-"):
            command.make_parser(context).parse_args(words)
            return
        assert words[0] in command.commands, f"no command {words[0]}"
        command, words = command.commands[words[0]], words[1:]
        context = click.Context(command, parent=context)


def _check_argparse(parser: argparse.ArgumentParser, words: list[str]) -> None:
    parser.parse_args(words)


@pytest.mark.parametrize("block", [block for page in PAGES for block in blocks(page, "python")], ids=str)
def test_code_compiles_and_is_that_of_its_file(block: Block) -> None:
    """`python examples/NAME.py`: other tests run that file of docs/."""
    compile(block.text, str(block), "exec")
    if len(block.words) > 1:
        assert block.text == (DOCS / block.words[1]).read_text(encoding="utf-8")


@pytest.fixture(scope="session")
def tutorial(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory in which the tutorial was followed to its end.

    Cells have two runs instead of three, which changes only numbers in the output. Both campaigns end with the tables: other tests
    draw all figures.
    """
    directory = tmp_path_factory.mktemp("tutorial")
    campaign_runs = 0

    def run(block: Block, directory: Path) -> str:
        nonlocal campaign_runs
        if block.text.strip() == "campaign run first.yaml":
            campaign_runs += 1
            _run_here(replace(block, text="campaign run first.yaml -- --until tables"), directory)
            block = replace(block, text="campaign report results/first --output results/first/report.html")
        return _run_here(block, directory)

    follow(TUTORIAL, directory, run)
    assert campaign_runs == 2
    return directory


Run = Callable[[Block, Path], str]


def follow(page: Path, directory: Path, run: Run) -> None:
    """Do what a page says, in order: write the files that it shows, run its commands, compare what they print."""
    printed = ""
    for block in blocks(page, "yaml", "bash", "python", "text"):
        if block.words[0] == "bash" and "run" in block.words:
            printed = run(block, directory)
        elif block.words == ("text",):
            _compare(block, printed)
        elif block.file_name:
            path = directory / block.file_name
            path.parent.mkdir(parents=True, exist_ok=True)
            is_system = path.parent.name == "systems"  # which no other session of tests waits for
            text = block.text.replace("repetitions: 3", "repetitions: 2") if page == TUTORIAL else block.text
            path.write_text(text + (f"machine_lock: {directory}/machine.lock\n" if is_system else ""))


def _run_here(block: Block, directory: Path) -> str:
    """Commands of this program in this process: an interpreter with all imports for each of them takes half of the time."""
    lines = block.text.splitlines()
    # `campaign run` becomes Snakemake.
    here = [line.startswith("campaign ") and not re.search(r"^campaign run\b|[|&;<>$`\\]", line) for line in lines]
    if not all(here):
        return _run(block, directory)
    printed = ""
    for line in lines:
        # Other tests draw all figures; here the page only has to exist.
        with contextlib.chdir(directory), mock.patch.object(figure, "list_figure_names", return_value=SHOWN_FIGURES):
            done = CliRunner().invoke(main, shlex.split(line)[1:], prog_name="campaign")
        printed += done.output
        expected = 1 if "fails" in block.words else 0
        assert done.exit_code == expected, f"{block}: exit code {done.exit_code}\n{done.output}\n{done.exception!r}"
    return printed


def _run(block: Block, directory: Path) -> str:
    binaries = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", block.text],
        cwd=directory,
        env={**os.environ, "PATH": binaries},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=480,
    )
    expected = 1 if "fails" in block.words else 0
    assert done.returncode == expected, f"{block}: exit code {done.returncode}\n{done.stdout}"
    return done.stdout


def _compare(block: Block, printed: str) -> None:
    """Every line stands in what was printed, in order; digits may differ, and `...` stands for anything."""
    rest = [_alike(line) for line in printed.splitlines()]
    for line in block.text.splitlines():
        pattern = ".*".join(map(re.escape, _alike(line).split("...")))
        found = next((place for place, other in enumerate(rest) if re.fullmatch(pattern, other)), None)
        if line.strip() not in ("", "..."):
            assert found is not None, f"{block}: not printed: {line}\n{printed}"
            rest = rest[found + 1 :]


def _alike(line: str) -> str:
    return re.sub(r"\d+(?:[.,]\d+)*", "0", " ".join(line.split()))


@pytest.mark.slow
def test_the_tutorial_can_be_followed(tutorial: Path) -> None:
    assert (tutorial / "results" / "first" / "report.html").stat().st_size > 50_000


@pytest.mark.slow
@pytest.mark.parametrize("page", RUN, ids=lambda page: page.stem)
def test_a_guide_can_be_followed(page: Path, tutorial: Path, tmp_path: Path) -> None:
    """Guides go on from where the tutorial ends."""
    directory = tmp_path / "tutorial"
    shutil.copytree(tutorial, directory, symlinks=True)
    follow(page, directory, _run_here)


@pytest.mark.slow
def test_the_figure_of_the_guide_is_drawn(tutorial: Path, tmp_path: Path) -> None:
    (block,) = blocks(DOCS / "how-to" / "own-figure.md", "python")
    (tmp_path / "scripts" / "figures").mkdir(parents=True)
    (tmp_path / "scripts" / "figures" / "throughput.py").write_text(block.text)
    draw_figures(tutorial / "results" / "first" / "tables", tmp_path / "drawn", tmp_path / "scripts")
    assert json.loads((tmp_path / "drawn" / "throughput.json").read_text())["picture"]


def test_examples_are_found() -> None:
    assert len(YAML) > 10
    assert len(SHELL) > 20
    assert any("run" in block.words for block in blocks(TUTORIAL, "bash"))
