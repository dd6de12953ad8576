"""An archive written over one that is there: nothing that it had is lost, and what was measured again counts."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from campaign.archive.read import open_archive
from campaign.archive.write import ArchiveOptions, write_archive
from campaign.common.errors import ArchiveError
from campaign.plan.campaign.resolve import Campaign
from campaign.spec.record import RecordStore
from tests import campaign_records
from tests.unit.archive import archive_data
from tests.unit.archive.archive_data import contents


def first_record(results: Path) -> Path:
    return min((results / "records").rglob("*.1.json"))


def test_what_only_the_archive_has_stays(campaign: Campaign, results: Path, there: Path) -> None:
    gone = sorted((results / "records").rglob("*.json"))[:5]
    names = {path.relative_to(results).as_posix() for path in gone}
    for path in gone:
        path.unlink()
    shutil.rmtree(results / "telemetry")
    before = set(contents(there))
    written = write_archive(campaign, results, there)
    assert names <= set(written.kept_members)
    assert any(name.startswith("telemetry/") for name in written.kept_members)
    assert set(contents(there)) == before
    with open_archive(there) as archive:
        assert len(RecordStore(archive.directory).list_keys()) == 31
    runs = contents(there)["tables/runs.csv"].decode().splitlines()
    assert len(runs) == 1 + 31, "tables are of all records"


def test_a_record_that_was_measured_again_replaces_the_old_one_and_keeps_it(
    campaign: Campaign, results: Path, there: Path
) -> None:
    path = first_record(results)
    old, name = path.read_bytes(), path.relative_to(results).as_posix()
    campaign_records.change(path)
    written = write_archive(campaign, results, there)
    assert (written.kept_members, written.superseded_records) == ((), (name,))
    members = contents(there)
    assert members[name] == path.read_bytes()
    assert [content for key, content in members.items() if key.startswith("superseded/") and key.endswith(name)] == [
        old
    ]


def test_a_record_that_was_set_aside_does_not_come_back(campaign: Campaign, results: Path, there: Path) -> None:
    path = first_record(results)
    aside = results / "superseded" / "later" / path.relative_to(results)
    aside.parent.mkdir(parents=True)
    shutil.move(path, aside)
    written = write_archive(campaign, results, there)
    assert written.kept_members == ()
    assert path.relative_to(results).as_posix() not in contents(there)
    assert aside.relative_to(results).as_posix() in contents(there)


def test_what_was_said_of_it_stays_until_something_else_is_said(campaign: Campaign, results: Path, there: Path) -> None:
    write_archive(campaign, results, there, options=ArchiveOptions("CC-BY-4.0", "Ada"))
    write_archive(campaign, results, there)
    with open_archive(there) as archive:
        assert (archive.index.license, archive.index.creator) == ("CC-BY-4.0", "Ada")
    write_archive(campaign, results, there, options=ArchiveOptions(license="CC0-1.0"))
    with open_archive(there) as archive:
        assert (archive.index.license, archive.index.creator) == ("CC0-1.0", "Ada")


def test_without_samples(campaign: Campaign, results: Path, tmp_path: Path) -> None:
    write_archive(campaign, results, tmp_path / "a.zip", options=ArchiveOptions(telemetry=False))
    assert not any(name.startswith("telemetry/") for name in contents(tmp_path / "a.zip"))


def test_a_damaged_or_foreign_file_is_not_written_over(
    campaign: Campaign, results: Path, there: Path, tmp_path: Path
) -> None:
    there.write_bytes(there.read_bytes()[:1000])
    with pytest.raises(ArchiveError, match=r"is not a complete archive.*Nothing was written"):
        write_archive(campaign, results, there)
    assert there.stat().st_size == 1000
    there.unlink()
    write_archive(campaign, results, there)
    other = archive_data.campaign_in(tmp_path / "config", {"campaign.name": "other"})
    with pytest.raises(ArchiveError, match="is the archive of campaign 'small' on bench, not of 'other'"):
        write_archive(other, results, there)


def test_a_damaged_record_is_named_and_nothing_is_written(campaign: Campaign, results: Path, tmp_path: Path) -> None:
    path = first_record(results)
    path.write_text("{}")
    with pytest.raises(ArchiveError, match=f"{path.name} is damaged"):
        write_archive(campaign, results, tmp_path / "new" / "a.zip")
    assert list((tmp_path / "new").iterdir()) == []


@pytest.fixture
def two_manifests(results: Path) -> tuple[Path, Path]:
    lease = results / "manifests" / "1x1-local"
    newer, older = lease / "0a1b.json", lease / "ffff.json"
    document = json.loads(newer.read_text())
    older.write_text(json.dumps({**document, "reason": "an old story"}))
    os.utime(older, (1.0, 1.0))
    return newer, older


def test_the_newest_manifest_still_says_why(
    campaign: Campaign, results: Path, two_manifests: tuple[Path, Path], tmp_path: Path
) -> None:
    from campaign.analysis.tables.collect import read_campaign_results

    write_archive(campaign, results, tmp_path / "a.zip")
    with open_archive(tmp_path / "a.zip") as archive:
        assert read_campaign_results(campaign, archive.directory).missing_reasons == {
            "1x1-local": "the fabric did not answer"
        }


def test_a_plan_stays_until_there_is_another(campaign: Campaign, results: Path, there: Path) -> None:
    plan = results / "plan" / "plan.json"
    plan.parent.mkdir()
    plan.write_text('{"plan": 1}')
    write_archive(campaign, results, there)
    plan.unlink()
    assert write_archive(campaign, results, there).kept_members == ("plan/plan.json",)
    (results / "plan" / "budget.json").write_text('{"plan": 2}')
    write_archive(campaign, results, there)
    assert [name for name in contents(there) if name.startswith("plan/")] == ["plan/budget.json"]
