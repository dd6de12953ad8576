"""The files that a public repository has."""

from __future__ import annotations

import re
import tomllib

import yaml
from click.testing import CliRunner

from campaign import __version__
from campaign.cli.main import main
from tests.docs.pages import PAGES, ROOT, blocks


def test_there_is_one_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["dynamic"] == ["version"]
    assert project["tool"]["hatch"]["version"]["path"] == "workflow/campaign/__init__.py"
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == __version__
    assert __version__ in CliRunner().invoke(main, ["--version"]).output
    assert re.fullmatch(r"\d+\.\d+\.\d+", __version__), "not a version that can be a tag"


def test_the_changelog_has_a_section_for_the_version() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    sections = re.findall(r"^## \[?([\d.]+|Unreleased)\]?", text, re.MULTILINE)
    assert sections
    assert __version__ in sections
    assert len(text.splitlines()) < 100, "the section of a version is one page"


def test_the_forge_runs_what_ci_runs() -> None:
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())["jobs"]
    steps = [step for job in jobs.values() for step in job["steps"]]
    assert {"run": ".ci/run"} in steps
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o111


def test_hooks_before_a_commit_are_programs_of_the_environment() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    packages = {"lint-imports": "import-linter"}
    for hook in hooks:
        program = hook["entry"].split()[0].removeprefix(".venv/bin/")
        assert any(need.startswith(packages.get(program, program)) for need in extras["check"])


def test_no_page_starts_from_an_address_or_an_index_that_has_no_package() -> None:
    """The first commands are those of a checkout; nothing is cloned from a placeholder or installed by its name."""
    first_commands = blocks(ROOT / "README.md", "bash")[0].text
    assert re.findall(r"^\S+ \S+", first_commands, re.MULTILINE) == ["make demo", "make test"]
    places = [*PAGES, ROOT / "pyproject.toml", ROOT / "CITATION.cff"]
    refused = re.compile(
        r"example\.com/composable|git clone|pip install [^.'\n]*composable-campaign|once it is published"
    )
    assert not {path: found for path in places if (found := refused.findall(path.read_text(encoding="utf-8")))}
