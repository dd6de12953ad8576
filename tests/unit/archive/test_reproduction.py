"""An archive's campaign made to run again, here or on another system, and its claims held against what was measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from campaign.archive.read import opened
from campaign.archive.reproduction import write_campaign
from campaign.archive.write import write_archive
from campaign.cli.main import main
from campaign.config.load import LoadedFile, validate
from campaign.config.resolve import load_campaign
from campaign.config.system_file import SystemFile
from campaign.config.yaml_file import read_yaml
from campaign.errors import ArchiveError, ConfigError
from campaign.plan.matrix import expand
from tests import campaign_files
from tests.unit.archive import archive_data
from tests.unit.archive.test_archive_programs import packed, scripted


def run(*words: object, fails: bool = False) -> str:
    result = CliRunner().invoke(main, list(map(str, words)))
    assert (result.exit_code != 0) == fails, result.output
    return result.output


def archived(tmp_path: Path, changes: dict[str, Any] | None = None) -> Path:
    campaign = archive_data.campaign_in(tmp_path / "there" / "config", changes)
    results = archive_data.fill(campaign, tmp_path / "there" / "results" / "small")
    return write_archive(campaign, results, tmp_path / "small.zip").path


def other_system(directory: Path, **changes: Any) -> Path:
    path = directory / "mine.yaml"
    path.write_text(yaml.safe_dump({**campaign_files.SYSTEM, "name": "mine", **changes}))
    return path


def test_the_same_cells_are_measured_again_under_another_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = archived(tmp_path)
    monkeypatch.chdir(tmp_path)
    told = run("reproduce", archive)
    path = tmp_path / "small-again" / "config" / "campaign.yaml"
    again = load_campaign(path)
    assert again.name == "small-again"
    assert "next: campaign run small-again/config/campaign.yaml" in told
    with opened(archive) as there:
        assert {cell.id for cell in expand(again).cells} == {cell.id for cell in expand(there.campaign).cells}
    assert not (tmp_path / "results" / "small-again" / "records").exists()
    assert "already exists and is not replaced" in run("reproduce", archive, fails=True)


def test_programs_come_along(tmp_path: Path) -> None:
    path = scripted(tmp_path / "there" / "config")
    archive_data.fill(load_campaign(path), tmp_path / "there" / "results" / "small")
    packed(tmp_path / "there", tmp_path / "a.zip")
    (tmp_path / "there" / "config" / "workloads" / "bench.py").unlink()
    with opened(tmp_path / "a.zip") as archive:
        made = write_campaign(archive, tmp_path / "here")
        again = load_campaign(made)
        assert {cell.id for cell in expand(again).cells} == {cell.id for cell in expand(archive.campaign).cells}
    assert (tmp_path / "here" / "config" / "workloads" / "bench.py").stat().st_mode & 0o100


def test_what_does_not_fit_another_system_is_left_out_and_named(tmp_path: Path) -> None:
    hosts = [{"name": "node1", "cores": 4, "devices": [{"model": "cpu-rank", "count": 1}]}]
    mine = other_system(tmp_path, hosts=hosts)
    told = run(
        "reproduce",
        archived(tmp_path),
        "--system",
        mine,
        "--output",
        tmp_path / "here",
        "--results",
        tmp_path / "results",
    )
    assert "1x2-local" in told
    again = load_campaign(tmp_path / "here" / "config" / "campaign.yaml")
    assert again.system_names == "mine"
    names = {each.name for each in again.configurations}
    assert "1x2-local" not in names
    assert "1x1-local" in names
    assert not (tmp_path / "here" / "config" / "systems" / "bench.yaml").exists()


def test_devices_of_another_name_are_those_of_the_other_system(tmp_path: Path) -> None:
    mine = other_system(
        tmp_path,
        hosts=[{"name": "node1", "cores": 4, "devices": [{"model": "slot", "count": 2}]}],
        pool=[{"model": "slot", "count": 4, "drawer": "falcon1/drawer1"}],
        devices={"slot": {"runs_on": "cpu"}},
    )
    changes = {
        "campaign.configurations": [{"devices_per_host": [1, 2], "attach": ["local", "fabric"], "device": "cpu-rank"}]
    }
    archive = archived(tmp_path, changes)
    run("reproduce", archive, "--system", mine, "--output", tmp_path / "here", "--results", tmp_path / "results")
    again = load_campaign(tmp_path / "here" / "config" / "campaign.yaml")
    assert {each.device for each in again.configurations} == {"slot"}


def test_a_system_that_fits_nothing_is_refused(tmp_path: Path) -> None:
    hosts = [{"name": "node1", "cores": 4, "devices": []}]
    mine = other_system(tmp_path, hosts=hosts, pool=[{"model": "cpu-rank", "count": 1, "drawer": "falcon1/drawer1"}])
    changes = {"campaign.configurations": [{"devices_per_host": [2, 3], "attach": "local"}], "system.hosts": [
        {"name": "host1", "cores": 4, "devices": [{"model": "cpu-rank", "count": 3}]}]}  # fmt: skip
    campaign = archive_data.campaign_in(tmp_path / "there" / "config", changes)
    archive = write_archive(campaign, archive_data.fill(campaign, tmp_path / "r" / "small"), tmp_path / "a.zip").path
    told = run(
        "reproduce", archive, "--system", mine, "--output", tmp_path / "here", "--results", tmp_path / "x", fails=True
    )
    assert "error" in told
    assert "1x2-local" in told


def test_what_was_imported_or_is_on_several_systems_says_so(tmp_path: Path) -> None:
    with opened(archived(tmp_path)) as archive:
        object.__setattr__(archive.campaign, "file", archive.campaign.file.model_copy(update={"imported": True}))
        with pytest.raises(ArchiveError, match="imported from logs"):
            write_campaign(archive, tmp_path / "here")
    source = read_yaml(other_system(tmp_path))
    mine = LoadedFile(validate(source, SystemFile, "mine"), source)
    with opened(tmp_path / "small.zip") as archive:
        several = archive.campaign.file.model_copy(update={"systems": ["bench", "other"]})
        object.__setattr__(archive.campaign, "file", several)
        with pytest.raises(ConfigError, match=r"leave --system out, and name others in `systems` of its file"):
            write_campaign(archive, tmp_path / "here", mine)
    assert not (tmp_path / "here").exists()
    with pytest.raises(ConfigError, match="already exists"), opened(tmp_path / "small.zip") as archive:
        write_campaign(archive, tmp_path)


def test_claims_are_held_against_a_campaign_and_the_page_has_them(tmp_path: Path) -> None:
    archive = archived(tmp_path, {"campaign.protocol.compositions": 1})
    page = tmp_path / "page.html"
    told = run("reproduce", archive, "--against", archive, "--output", page)
    text = page.read_text()
    assert "not comparable" in told
    assert "Claims of small" in text
    assert "An archive measured again" in text
    assert "not tested in the archive" in text
    assert "--system is of the first step" in run(
        "reproduce", archive, "--against", archive, "--system", "x", fails=True
    )
