"""Archives: the same page from the file alone, and every kind of damage named."""

from __future__ import annotations

import hashlib
import json
import shutil
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from campaign.archive import as_planned, opened, report_from, report_from_archive, write_archive
from campaign.config.resolve import Campaign
from campaign.documents.plan import PLAN_SCHEMA
from campaign.documents.record import Record, RecordedCell, Store
from campaign.errors import ArchiveError
from campaign.plan.matrix import expand, specification
from campaign.report import figure
from campaign.slurm.excluded_hosts import ExcludedHosts
from tests import campaign_files


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> Campaign:
    return campaign_files.load(tmp_path_factory.mktemp("config"))


@pytest.fixture(scope="module")
def results(campaign: Campaign, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Records of all cells but one, a lease, and shared documents."""
    directory = tmp_path_factory.mktemp("results")
    store = Store(directory)
    environment = store.share({"schema_version": "environment/1", "host": "h", "packages": {"torch": "2"}})
    as_used, composition = store.share(campaign.document()), store.share({"hosts": []})
    for position, cell in enumerate(expand(campaign).cells[1:]):
        for repetition in range(1, cell.settings.repetitions + 1):
            store.write(
                Record(
                    cell_id=cell.id,
                    repetition=repetition,
                    cell=RecordedCell.of(cell),
                    specification=specification(campaign, cell),
                    status="ok",
                    started=1000.0 + position,
                    ended=1001.0 + position,
                    lease_id="small.1",
                    composition=composition,
                    environment=environment,
                    campaign=as_used,
                    throughput_per_s=100.0 * cell.batch_global + repetition,
                    step_times_s=((0.1, 0.2),),
                    window_s=(0.3,),
                )
            )
    ExcludedHosts(directory / "slurm").add("host2", "Slurm says DOWN", "small")
    (directory / "slurm" / "commands.jsonl").write_text("of no use to a report")
    return directory


@pytest.fixture(scope="module")
def packed(campaign: Campaign, results: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_archive(campaign, results, tmp_path_factory.mktemp("packed") / "small.zip").path


@pytest.fixture
def archive(packed: Path, tmp_path: Path) -> Path:
    """An archive that a test may change."""
    return Path(shutil.copy(packed, tmp_path))


def rewritten(path: Path, change: Callable[[dict[str, bytes]], None]) -> Path:
    """The archive with its members changed."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    change(members)
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def test_the_report_from_the_archive_alone_is_the_same_bytes(
    campaign: Campaign, results: Path, archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # That every figure draws the same from the same tables is tested with the figures.
    some = ["composition_times", "precision"]
    monkeypatch.setattr(figure, "figure_names", lambda *arguments: some)
    report_from(campaign, results, None, tmp_path / "live", tmp_path / "live.html")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    shutil.move(archive, elsewhere / "copy.zip")
    report_from_archive(elsewhere / "copy.zip", elsewhere / "page.html")
    page = (elsewhere / "page.html").read_bytes()
    assert page == (tmp_path / "live.html").read_bytes()
    assert str(tmp_path).encode() not in page
    assert b"host2</th><td>Slurm says DOWN" in page


def test_the_same_results_give_the_same_archive(
    campaign: Campaign, results: Path, archive: Path, tmp_path: Path
) -> None:
    write_archive(campaign, results, tmp_path / "again.zip")
    assert (tmp_path / "again.zip").read_bytes() == archive.read_bytes()


def test_it_holds_config_records_and_checksums(archive: Path, campaign: Campaign) -> None:
    with opened(archive) as content:
        assert content.campaign.document() == campaign.document()
        assert len(Store(content.directory).index()) == 30
        assert [path.name for path in (content.directory / "slurm").rglob("*.json*")] == ["host2.json"]
    with zipfile.ZipFile(archive) as members:
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
    members["archive.json"] = json.dumps({"schema_version": "archive/1"}).encode()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (damage, "checksum differs for records/"),
        (remove, "is missing"),
        (add, "is not listed"),
        (escape, "'../outside.json' points outside"),
        (absolute, "points outside"),
        *(
            (planted(name), f"'{name}' is none that 'campaign archive' packs")
            for name in (
                "work/1x1-local/submitit/71_0_result.pkl",
                "work/1x1-local/job.json",
                "slurm/batches/0123456789abcdef/1_submitted.pkl",
                "slurm/requests/1x1-local.json",
                "superseded/1/work/1x1-local/job.json",
                "plan/leases/1x1-local.pkl",
                "records/.hidden.json",
                "config/run.py",
                "workflow/scripts/more.py",
                "rules/more.smk",
            )
        ),
        (no_index, "was not made by 'campaign archive'"),
        (listless, "lists no checksums"),
        (future, "'archive/99'; this version reads 'archive/1' and 'archive/2'"),
    ],
)
def test_every_damage_is_named(
    archive: Path, tmp_path: Path, change: Callable[[dict[str, bytes]], None], words: str
) -> None:
    rewritten(archive, change)
    with pytest.raises(ArchiveError) as caught:
        report_from_archive(archive, tmp_path / "page.html")
    assert words in str(caught.value)
    assert str(archive) in str(caught.value)
    assert not (tmp_path / "page.html").exists()
    assert not (tmp_path.parent / "outside.json").exists()


@pytest.mark.parametrize("content", [b"", b"not a zip at all", b"PK\x03\x04 torn"])
def test_what_is_no_archive_says_so(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.zip"
    path.write_bytes(content)
    with pytest.raises(ArchiveError, match="is not a complete archive"):
        report_from_archive(path, tmp_path / "page.html")


def test_a_truncated_archive_says_so(archive: Path, tmp_path: Path) -> None:
    archive.write_bytes(archive.read_bytes()[:-200])
    with pytest.raises(ArchiveError, match="is not a complete archive"):
        report_from_archive(archive, tmp_path / "page.html")


def test_nothing_to_archive_says_so(campaign: Campaign, tmp_path: Path) -> None:
    with pytest.raises(ArchiveError, match="no records to archive"):
        write_archive(campaign, tmp_path, tmp_path / "x.zip")
    assert not (tmp_path / "x.zip").exists()


def test_what_a_profile_said_when_it_was_planned_is_in_the_archive(tmp_path: Path) -> None:
    campaign, directory = campaign_files.load(tmp_path), tmp_path / "results" / "small"
    by_profile = replace(campaign, systems={campaign.part: campaign.system.model_copy(update={"launcher": "slurm"})})
    assert as_planned(campaign, directory) is campaign
    plan = {
        "schema_version": PLAN_SCHEMA,
        "campaign_hash": Store(directory).share(by_profile.document()),
        "where": None,
    }
    (directory / "plan").mkdir()
    (directory / "plan" / "plan.json").write_text(json.dumps(plan))
    assert as_planned(campaign, directory).document() == by_profile.document()
    edited = campaign_files.load(tmp_path, {"campaign.title": "Another"})
    assert as_planned(edited, directory) is edited
