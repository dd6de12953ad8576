"""Archives under attack: torn, flipped, swollen, killed while written, without space, written twice at once."""

from __future__ import annotations

import io
import json
import os
import resource
import shutil
import signal
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from campaign.archive import opened, read, write_archive, zip_file
from campaign.config.resolve import Campaign
from campaign.documents.record import Store
from campaign.errors import ArchiveError
from tests.unit.archive import archive_data


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> Campaign:
    return archive_data.campaign_in(tmp_path_factory.mktemp("config"))


@pytest.fixture(scope="module")
def whole(campaign: Campaign, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    """A results directory with tables, and the bytes of its archive."""
    root = tmp_path_factory.mktemp("whole")
    results = archive_data.fill(campaign, root / "results")
    write_archive(campaign, results, root / "a.zip")
    with zipfile.ZipFile(root / "a.zip") as archive:
        archive.extractall(results, [name for name in archive.namelist() if name.startswith("tables/")])
    write_archive(campaign, results, root / "a.zip")
    return results, (root / "a.zip").read_bytes()


@pytest.fixture
def results(whole: tuple[Path, bytes], tmp_path: Path) -> Path:
    """A copy of the results that a test may change."""
    return Path(shutil.copytree(whole[0], tmp_path / "results"))


@pytest.fixture
def there(whole: tuple[Path, bytes], tmp_path: Path) -> Path:
    """An archive of all results."""
    path = tmp_path / "out" / "small.zip"
    path.parent.mkdir()
    path.write_bytes(whole[1])
    return path


def contents(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def crate_of(content: bytes) -> bytes:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return archive.read("ro-crate-metadata.json")


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(where=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_a_flipped_bit_is_found_or_changes_nothing(
    whole: tuple[Path, bytes], tmp_path: Path, where: float, bit: int
) -> None:
    content = bytearray(whole[1])
    content[int(where * len(content))] ^= 1 << bit
    (tmp_path / "x.zip").write_bytes(content)
    # What is left unchecked of a zip file are times, comments and the like: of every member, every byte counts.
    with suppress(ArchiveError), opened(tmp_path / "x.zip") as archive:
        assert len(Store(archive.directory).index()) == 31
        assert (archive.directory / "ro-crate-metadata.json").read_bytes() == crate_of(whole[1])


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(share=st.floats(0, 1, exclude_max=True))
def test_a_torn_archive_is_never_believed(whole: tuple[Path, bytes], tmp_path: Path, share: float) -> None:
    (tmp_path / "x.zip").write_bytes(whole[1][: int(share * len(whole[1]))])
    with pytest.raises(ArchiveError, match="is not a complete archive"), opened(tmp_path / "x.zip"):
        pass


def swollen(members: dict[str, bytes], path: Path) -> None:
    """A member of 200 MB of nothing, listed with its checksum."""
    bomb = bytes(200 * 2**20)
    index = json.loads(members["archive.json"])
    index["sha256"]["records/00/bomb.json"] = "0" * 64
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in {
            **members,
            "records/00/bomb.json": bomb,
            "archive.json": json.dumps(index).encode(),
        }.items():
            archive.writestr(name, content)


def test_a_bomb_is_refused_before_anything_is_written(
    there: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    swollen(contents(there), tmp_path / "bomb.zip")
    written: list[str] = []
    monkeypatch.setattr(read, "_write", lambda *arguments: written.append("all of it"))
    with pytest.raises(ArchiveError, match="more than it can hold"), opened(tmp_path / "bomb.zip"):
        pass
    monkeypatch.setattr(read, "_MAX_RATIO", 10_000)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=10 * 2**20))
    with pytest.raises(ArchiveError, match=r"are free in .*TMPDIR"), opened(tmp_path / "bomb.zip"):
        pass
    assert not written


def test_members_that_share_their_bytes_are_refused(there: Path, tmp_path: Path) -> None:
    """As in a bomb of overlapping members: together they claim more compressed bytes than the file has."""
    members = contents(there)
    index = json.loads(members["archive.json"])
    path = tmp_path / "x.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            if name != "archive.json":
                archive.writestr(name, content)
        info = archive.getinfo("campaign.json")
        for number in range(100):
            again = zipfile.ZipInfo(f"records/00/{number}.json")
            again.header_offset, again.compress_size, again.file_size, again.CRC = (
                info.header_offset,
                5000,
                5000,
                info.CRC,
            )
            archive.filelist.append(again)
            index["sha256"][again.filename] = index["sha256"]["campaign.json"]
        archive.writestr("archive.json", json.dumps(index))
    with pytest.raises(ArchiveError, match=r"more than it can hold|is not a complete archive"), opened(path):
        pass


def in_a_child(work: Callable[[], object], told: Path) -> int:
    """Run in a fork; gives its exit code (1 for an ArchiveError, whose words are in `told`), or minus the signal that ended it."""
    child = os.fork()
    if child == 0:  # pragma: no cover
        code = 70
        try:
            work()
            code = 0
        except ArchiveError as error:
            told.write_text(str(error))
            code = 1
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("members", [0, 30])
def test_killed_while_writing_leaves_the_old_archive_and_the_next_writes_it(
    campaign: Campaign, results: Path, there: Path, members: int, tmp_path: Path
) -> None:
    before = there.read_bytes()
    (results / "leases" / "new.json").write_text('{"lease_id": "new", "lease": "new"}')

    def killed() -> None:
        added, real = 0, zip_file.add

        def add(*arguments: object) -> None:
            nonlocal added
            if added == members:
                os.kill(os.getpid(), signal.SIGKILL)
            added += 1
            real(*arguments)  # type: ignore[arg-type]

        zip_file.add = add
        write_archive(campaign, results, there)

    assert in_a_child(killed, tmp_path / "told") == -signal.SIGKILL
    assert there.read_bytes() == before
    write_archive(campaign, results, there)
    assert "leases/new.json" in contents(there)
    assert [path.name for path in there.parent.iterdir()] == ["small.zip"]


def test_what_a_killed_process_left_does_not_get_into_the_next_archive(
    campaign: Campaign, results: Path, there: Path
) -> None:
    before = there.read_bytes()
    there.with_name(".small.zip.tmp").write_bytes(bytes(10 * len(before)))
    write_archive(campaign, results, there)
    assert there.read_bytes() == before


@pytest.mark.parametrize("name", ["small.zip", "first.zip"])
def test_a_full_disk_leaves_what_was_there(
    campaign: Campaign, results: Path, there: Path, name: str, tmp_path: Path
) -> None:
    before, limit = there.read_bytes(), 45_000
    assert max(len(content) for content in contents(there).values()) < limit < len(before), "all but the archive fits"

    def limited() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        write_archive(campaign, results, there.with_name(name))

    assert in_a_child(limited, tmp_path / "told") == 1
    assert f"{name}: could not be read or written (File too large)" in (tmp_path / "told").read_text()
    assert there.read_bytes() == before
    assert [path.name for path in there.parent.iterdir()] == ["small.zip"]


def test_no_space_to_unpack_is_no_fault_of_the_archive(there: Path, tmp_path: Path) -> None:
    def limited() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
        with opened(there):
            pass

    assert in_a_child(limited, tmp_path / "told") == 1
    assert "could not be unpacked" in (tmp_path / "told").read_text()
    assert "whole" not in (tmp_path / "told").read_text()


def test_two_at_once_do_not_write_into_each_other(campaign: Campaign, results: Path, there: Path) -> None:
    told: list[str] = []

    def second(name: str, content: bytes) -> None:
        if not told:
            told.append(name)
            with pytest.raises(ArchiveError, match="another process is writing it"):
                zip_file.pack(there, {}, lambda written: iter(()))

    zip_file.pack(there, {"a": b"1", "b": b"2"}, lambda written: iter(()), second)
    assert told
    assert contents(there) == {"a": b"1", "b": b"2"}
