"""Archives: the same page from the file alone, and every kind of damage named."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from campaign.archive.read import open_archive
from campaign.archive.write import write_archive
from campaign.common.errors import ArchiveError
from campaign.plan.campaign.resolve import Campaign
from campaign.report import figure
from campaign.report.sources import find_planned_campaign, write_archive_report, write_report
from campaign.spec.plan import PLAN_SCHEMA
from campaign.spec.record import RecordStore
from tests import campaign_files
from tests.unit.archive.archive_data import contents


def rewritten(path: Path, change: Callable[[dict[str, bytes]], None]) -> Path:
    """The archive with its members changed."""
    members = contents(path)
    change(members)
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def test_the_report_from_the_archive_alone_is_the_same_bytes(
    campaign: Campaign, results: Path, there: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # That every figure draws the same from the same tables is tested with the figures.
    some = ["composition_times", "precision"]
    monkeypatch.setattr(figure, "list_figure_names", lambda *arguments: some)
    write_report(campaign, results, None, tmp_path / "live", tmp_path / "live.html")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    shutil.move(there, elsewhere / "copy.zip")
    write_archive_report(elsewhere / "copy.zip", elsewhere / "page.html")
    page, live_page = (elsewhere / "page.html").read_bytes(), (tmp_path / "live.html").read_bytes()
    place = f'data-results="{os.path.relpath(results, tmp_path)}"'.encode()
    assert page == live_page.replace(place, b'data-results=""'), "only the page of the results has links to them"
    assert place in live_page
    assert str(tmp_path).encode() not in page
    assert b"host2</dt><dd>Slurm says DOWN" in page


def test_the_same_results_give_the_same_archive(campaign: Campaign, results: Path, there: Path, tmp_path: Path) -> None:
    write_archive(campaign, results, tmp_path / "again.zip")
    assert (tmp_path / "again.zip").read_bytes() == there.read_bytes()


def test_it_holds_config_records_and_checksums(there: Path, campaign: Campaign) -> None:
    with open_archive(there) as content:
        assert content.campaign.to_document() == campaign.to_document()
        assert len(RecordStore(content.directory).list_keys()) == 31
        assert [path.name for path in (content.directory / "slurm").rglob("*.json*")] == ["host2.json"]
    with zipfile.ZipFile(there) as members:
        index = json.loads(members.read("archive.json"))
        assert set(index["sha256"]) == set(members.namelist()) - {"archive.json"}


def first_record(members: dict[str, bytes]) -> str:
    return next(name for name in members if name.startswith("records/"))


def damage(members: dict[str, bytes]) -> None:
    members[first_record(members)] += b" "


def remove(members: dict[str, bytes]) -> None:
    del members[first_record(members)]


def add(members: dict[str, bytes]) -> None:
    members["records/more.json"] = b"{}"


def escape(members: dict[str, bytes]) -> None:
    members["../outside.json"] = b"{}"


def absolute(members: dict[str, bytes]) -> None:
    members["/tmp/outside.json"] = b"{}"


def planted(name: str) -> Callable[[dict[str, bytes]], None]:
    def plant(members: dict[str, bytes]) -> None:
        index = json.loads(members["archive.json"])
        index["sha256"][name] = hashlib.sha256(b"{}").hexdigest()
        members |= {name: b"{}", "archive.json": json.dumps(index).encode()}

    return plant


def no_index(members: dict[str, bytes]) -> None:
    del members["archive.json"]


def future(members: dict[str, bytes]) -> None:
    index = json.loads(members["archive.json"])
    members["archive.json"] = json.dumps({**index, "schema_version": "archive/99"}).encode()


def listless(members: dict[str, bytes]) -> None:
    members["archive.json"] = json.dumps({"schema_version": "archive/3", "campaign": "small"}).encode()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (damage, "checksum differs for records/"),
        (remove, "is missing"),
        (add, "is not listed"),
        (escape, "'../outside.json' points outside"),
        (absolute, "points outside"),
        *(
            (planted(name), f"'campaign archive' never packs member '{name}'")
            for name in (
                "work/1x1-local/submitit/71_0_result.pkl",
                "work/1x1-local/job.json",
                "slurm/batches/0123456789abcdef/1_submitted.pkl",
                "slurm/requests/1x1-local.json",
                "superseded/1/work/1x1-local/job.json",
                "plan/leases/1x1-local.pkl",
                "records/.hidden.json",
                "workflow/scripts/more.py",
                "rules/more.smk",
            )
        ),
        (no_index, "was not made by 'campaign archive'"),
        (listless, "lists no checksums"),
        (future, "'archive/99', but this version reads only 'archive/3'"),
    ],
)
def test_every_damage_is_named(
    there: Path, tmp_path: Path, change: Callable[[dict[str, bytes]], None], words: str
) -> None:
    rewritten(there, change)
    with pytest.raises(ArchiveError) as caught:
        write_archive_report(there, tmp_path / "page.html")
    assert words in str(caught.value)
    assert str(there) in str(caught.value)
    assert not (tmp_path / "page.html").exists()
    assert not (tmp_path.parent / "outside.json").exists()


@pytest.mark.parametrize("content", [b"", b"not a zip at all", b"PK\x03\x04 torn", None])
def test_what_is_no_archive_or_a_part_of_one_says_so(there: Path, tmp_path: Path, content: bytes | None) -> None:
    there.write_bytes(there.read_bytes()[:-200] if content is None else content)
    with pytest.raises(ArchiveError, match="is not a complete archive"):
        write_archive_report(there, tmp_path / "page.html")


def test_nothing_to_archive_says_so(campaign: Campaign, tmp_path: Path) -> None:
    with pytest.raises(ArchiveError, match="no records to archive"):
        write_archive(campaign, tmp_path, tmp_path / "x.zip")
    assert not (tmp_path / "x.zip").exists()


def test_what_a_profile_said_when_it_was_planned_is_in_the_archive(tmp_path: Path) -> None:
    campaign, directory = campaign_files.load(tmp_path), tmp_path / "results" / "small"
    by_profile = replace(campaign, systems={campaign.part: campaign.system.model_copy(update={"launcher": "slurm"})})
    assert find_planned_campaign(campaign, directory) is campaign
    plan = {
        "schema_version": PLAN_SCHEMA,
        "campaign_hash": RecordStore(directory).share_document(by_profile.to_document()),
        "where": None,
    }
    (directory / "plan").mkdir()
    (directory / "plan" / "plan.json").write_text(json.dumps(plan))
    assert find_planned_campaign(campaign, directory).to_document() == by_profile.to_document()
    edited = campaign_files.load(tmp_path, {"campaign.title": "Another"})
    assert find_planned_campaign(edited, directory) is edited
