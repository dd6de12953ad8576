"""Programs and input files of workloads: an archive brings them along, so that a campaign goes on where there is nothing else."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from campaign.archive.read import check_archive, extract_to_directory, open_archive
from campaign.archive.write import ArchiveOptions, WrittenArchive, write_archive
from campaign.cli.main import main
from campaign.common.errors import ArchiveError, CampaignError
from campaign.plan.campaign.resolve import load_campaign
from campaign.plan.dag import read_plan
from campaign.plan.request import PlanRequest
from campaign.report import figure
from campaign.run.preflight import check_campaign_files, find_missing_inputs
from tests import campaign_files
from tests.unit.archive import archive_data

SCRIPT = "print('rate: 1')\n"
TOKEN = "hf_" + "aB3" * 11


def scripted(directory: Path, command: list[str] | None = None, script: str = SCRIPT, **keys: Any) -> Path:
    """A campaign of a program beside its workload file; gives the campaign's path."""
    beside = directory / "workloads" / "bench.py"
    beside.parent.mkdir(parents=True, exist_ok=True)
    beside.write_text(script)
    beside.chmod(0o755)
    given = {"command": command or ["python3", "bench.py"], **keys}
    changes = {
        "campaign.axes.workload": "program",
        **{f"workloads.program.{name}": value for name, value in given.items()},
    }
    return campaign_files.write_files(directory, {**archive_data.CHANGES, **changes})


@pytest.fixture
def there(tmp_path: Path) -> Path:
    """A directory with a campaign of a script, and its results."""
    path = scripted(tmp_path / "there" / "config")
    archive_data.fill(load_campaign(path), tmp_path / "there" / "results" / "small")
    return tmp_path / "there"


def packed(there: Path, out: Path, **wishes: Any) -> WrittenArchive:
    campaign = load_campaign(there / "config" / "campaign.yaml", results=there / "results")
    return write_archive(
        campaign, there / "results" / "small", out, options=ArchiveOptions(**wishes), current_inputs=campaign.inputs
    )


def run(*words: object) -> str:
    result = CliRunner().invoke(main, list(map(str, words)))
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize("inputs_mib", [16.0, 0.0])
def test_an_extracted_archive_says_what_the_archive_says(
    there: Path, tmp_path: Path, inputs_mib: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figure, "list_figure_names", lambda *arguments: ["memory_frontier"])
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "a.zip"
    written = packed(there, out, inputs_mib=inputs_mib)
    assert list(written.programs.files_by_member) == (["config/workloads/bench.py"] if inputs_mib else [])
    assert written.programs.left_out == (
        () if inputs_mib else ("bench.py of program: not packed because of --inputs-mib 0",)
    )
    before = read_plan(PlanRequest(there / "config" / "campaign.yaml", there / "results"))
    shutil.rmtree(there)
    assert (
        "inspect them first: config/workloads/bench.py" in run("archive", "extract", out, "--into", "here")
    ) == bool(inputs_mib)
    campaign = Path("here/small/config/campaign.yaml")
    summary = CliRunner().invoke(main, ["summary", "here/small"])
    assert "16 cells, 32 runs: 26 measured" in summary.output
    assert "There is no report yet; 'campaign report here/small' makes it" in summary.output
    assert "error: some runs have no record" in summary.output
    run("report", "here/small", "--output", "directory.html")
    assert not Path("here/small/figures").exists(), "reading it changes nothing"
    run("report", out, "--output", "archive.html")
    run("report", campaign, "--results", "here", "--output", "campaign.html")
    pages = [Path(f"{name}.html").read_text() for name in ("directory", "archive", "campaign")]
    places = [re.findall('data-results="([^"]*)"', page) for page in pages]
    assert places == [["here/small"], [""], ["here/small"]], "an archive has no files to link to"
    assert len({page.replace('data-results="here/small"', 'data-results=""') for page in pages}) == 1
    after = read_plan(PlanRequest(campaign, Path("here")))
    assert (after.runs, after.missing) == (before.runs, before.missing) == (before.runs, 1)
    status = json.loads(run("status", campaign, "--results", "here", "--format", "json"))
    assert (status["runs_done"], len(status["missing_inputs"])) == (before.runs - 1, 0 if inputs_mib else 1)
    if inputs_mib:
        check_campaign_files(after.campaign)
        assert f"{campaign}: valid" in run("validate", campaign)
    else:
        with pytest.raises(CampaignError, match=r"input file 'bench.py' is missing"):
            check_campaign_files(after.campaign)
        assert CliRunner().invoke(main, ["validate", str(campaign)]).exit_code == 1


def test_an_edited_program_is_not_what_was_measured(
    there: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figure, "list_figure_names", lambda *arguments: ["memory_frontier"])
    campaign = there / "config" / "campaign.yaml"
    given = ("report", campaign, "--results", there / "results", "--output")
    assert "was edited" not in run(*given, tmp_path / "before.html")
    (there / "config" / "workloads" / "bench.py").write_text("print('rate: 2')\n")
    assert "bench.py: the file was edited after the measurement" in run(*given, tmp_path / "after.html")
    assert (tmp_path / "before.html").read_bytes() == (tmp_path / "after.html").read_bytes()
    said = run("archive", campaign, "--results", there / "results", "--output", tmp_path / "a.zip")
    assert "left out: bench.py of program: was edited after it was measured" in said


@pytest.mark.parametrize("absolute", [False, True])
def test_programs_go_from_archive_to_archive(tmp_path: Path, absolute: bool) -> None:
    """Also those of an absolute path, and with the right to be executed."""
    there = tmp_path / "there"
    program = there / "config" / "workloads" / "bench.py"
    path = scripted(there / "config", [str(program)] if absolute else ["python3", "bench.py"])
    archive_data.fill(load_campaign(path), there / "results" / "small")
    first = packed(there, tmp_path / "a.zip")
    (place,) = first.programs.files_by_member
    assert place.startswith("config/inputs/") == absolute
    shutil.rmtree(there)
    directory = extract_to_directory(tmp_path / "a.zip", tmp_path / "here").directory
    assert os.access(directory / place, os.X_OK)
    again = load_campaign(directory / "config" / "campaign.yaml", results=tmp_path / "here")
    assert [file.path for file in again.inputs["program"].values()] == [str(directory / place)]
    assert not find_missing_inputs(again)
    with open_archive(tmp_path / "a.zip") as archive:
        as_used = archive.campaign
    write_archive(as_used, directory, tmp_path / "b.zip")
    assert (tmp_path / "b.zip").read_bytes() == (tmp_path / "a.zip").read_bytes()
    shutil.rmtree(directory / "config")
    assert list(write_archive(as_used, directory, tmp_path / "b.zip").programs.files_by_member) == [place], (
        "the older one has it"
    )
    assert (tmp_path / "b.zip").read_bytes() == (tmp_path / "a.zip").read_bytes()


@pytest.mark.parametrize(
    ("script", "wishes", "words"),
    [
        ("#" * 2**20, {"inputs_mib": 0.5}, "is larger than 0.5 MiB (1 MiB)"),
        (f"x = 1\nTOKEN = '{TOKEN}'\n", {}, "contains a token of Hugging Face in line 2"),
    ],
)
def test_what_is_left_out_is_listed(tmp_path: Path, script: str, wishes: dict[str, Any], words: str) -> None:
    path = scripted(tmp_path / "config", script=script)
    archive_data.fill(load_campaign(path), tmp_path / "results" / "small")
    written = packed(tmp_path, tmp_path / "a.zip", **wishes)
    assert written.programs.left_out == (f"bench.py of program: {words}",)
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        assert f"Not in this archive:\n\n- bench.py of program: {words}" in archive.read("README.md").decode()
        assert not any(script.encode() == archive.read(name) for name in archive.namelist())


def test_what_looks_like_a_secret_is_named(there: Path) -> None:
    path = next((there / "results" / "small" / "records").rglob("*.1.json"))
    record = json.loads(path.read_bytes())
    record["failure"] = {"reason": "ended with 1", "evidence": f"login with {TOKEN} failed"}
    path.write_text(json.dumps(record))
    written = packed(there, there / "a.zip")
    name = path.relative_to(there / "results" / "small")
    assert written.secrets == (f"{name}: a token of Hugging Face at evidence",)


def replant(path: Path, change: Callable[[dict[str, bytes]], None]) -> None:
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    change(members)
    index = json.loads(members.pop("archive.json"))
    index["sha256"] = {name: hashlib.sha256(content).hexdigest() for name, content in members.items()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in {**members, "archive.json": json.dumps(index).encode()}.items():
            archive.writestr(name, content)


@pytest.mark.parametrize("name", ["config/workloads/bench.py", "config/workloads/torch.py", "config/inputs/0/run.sh"])
def test_a_program_that_was_not_measured_is_refused(there: Path, name: str) -> None:
    packed(there, there / "a.zip")
    replant(there / "a.zip", lambda members: members.update({name: b"import os"}))
    with pytest.raises(ArchiveError, match=rf"'{name}' is not a program or input file that was measured; do not trust"):
        check_archive(there / "a.zip")


def test_results_that_may_only_be_read_give_a_report(
    there: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figure, "list_figure_names", lambda *arguments: ["memory_frontier"])
    results = there / "results" / "small"
    given = ("report", there / "config" / "campaign.yaml", "--results", there / "results", "--output")
    run(*given, tmp_path / "a.html")
    times = {path: path.stat().st_mtime_ns for path in (there / "results").rglob("*")}
    # A test may be run by root, whom no mode keeps from writing.
    monkeypatch.setattr(os, "access", lambda path, mode: not Path(path).is_relative_to(results))
    run(*given, tmp_path / "b.html")
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()
    assert times == {path: path.stat().st_mtime_ns for path in (there / "results").rglob("*")}


def test_the_crate_says_which_lease_ran_which_program(there: Path) -> None:
    packed(there, there / "a.zip")
    assert check_archive(there / "a.zip")[1] == []
    with zipfile.ZipFile(there / "a.zip") as archive:
        graph = json.loads(archive.read("ro-crate-metadata.json"))["@graph"]
    actions = [entity for entity in graph if entity["@type"] == "CreateAction" and entity["@id"].startswith("#lease")]
    used = [
        {each["@id"] for each in action["object"]}
        for action in actions
        if action["actionStatus"].endswith("CompletedActionStatus")
    ]
    assert used
    assert all("config/workloads/bench.py" in each for each in used)
