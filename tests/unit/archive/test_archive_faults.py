"""Archives under attack: torn, flipped, swollen, killed while written, without space, written twice at once."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import resource
import shutil
import signal
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from campaign.archive import read, zip_file
from campaign.archive.read import check_archive, open_archive
from campaign.archive.write import collect_members, write_archive
from campaign.cli.main import main
from campaign.common.errors import ArchiveError, RecordError
from campaign.common.paths import Results
from campaign.plan.campaign.resolve import Campaign
from campaign.report.sources import load_tables
from campaign.run.check_results import find_problems
from campaign.spec.record import RecordStore
from tests.unit.archive.archive_data import contents


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
    with suppress(ArchiveError), open_archive(tmp_path / "x.zip") as archive:
        assert len(RecordStore(archive.directory).list_keys()) == 31
        assert (archive.directory / "ro-crate-metadata.json").read_bytes() == crate_of(whole[1])


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(share=st.floats(0, 1, exclude_max=True))
def test_a_torn_archive_is_never_believed(whole: tuple[Path, bytes], tmp_path: Path, share: float) -> None:
    (tmp_path / "x.zip").write_bytes(whole[1][: int(share * len(whole[1]))])
    with pytest.raises(ArchiveError, match="is not a complete archive"), open_archive(tmp_path / "x.zip"):
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
    monkeypatch.setattr(read, "_write_members", lambda *arguments: written.append("all of it"))
    with (
        pytest.raises(ArchiveError, match="more than an archive of this size can hold"),
        open_archive(tmp_path / "bomb.zip"),
    ):
        pass
    monkeypatch.setattr(read, "_MAX_COMPRESSION_RATIO", 10_000)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=10 * 2**20))
    with pytest.raises(ArchiveError, match=r"are free in .*TMPDIR"), open_archive(tmp_path / "bomb.zip"):
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
            again.header_offset, again.CRC = info.header_offset, info.CRC
            again.compress_size = again.file_size = 5000
            archive.filelist.append(again)
            index["sha256"][again.filename] = index["sha256"]["campaign.json"]
        archive.writestr("archive.json", json.dumps(index))
    with (
        pytest.raises(ArchiveError, match=r"more than an archive of this size can hold|is not a complete archive"),
        open_archive(path),
    ):
        pass


def rewritten(whole: tuple[Path, bytes], path: Path, members: dict[str, bytes], **index: Any) -> Path:
    """The archive with other members, which it lists with their checksums, and other keys of its index."""
    with zipfile.ZipFile(io.BytesIO(whole[1])) as archive:
        content = {name: archive.read(name) for name in archive.namelist()} | members
    said = json.loads(content.pop("archive.json"))
    said["sha256"] = {name: hashlib.sha256(each).hexdigest() for name, each in content.items()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, each in {**content, "archive.json": json.dumps({**said, **index}).encode()}.items():
            archive.writestr(name, each)
    return path


@pytest.mark.parametrize("name", ["{victim}", "../victim", "campaign.json", "manifests/no/such.json"])
def test_an_order_of_other_files_touches_none(whole: tuple[Path, bytes], tmp_path: Path, name: str) -> None:
    victim = tmp_path / "victim"
    victim.write_text("a user's file")
    os.utime(victim, (5, 5))
    path = rewritten(whole, tmp_path / "x.zip", {}, order=[name.format(victim=victim)])
    with pytest.raises(ArchiveError, match="as a manifest, which it is not; do not trust this file"):
        check_archive(path)
    assert victim.stat().st_mtime == 5


@pytest.mark.parametrize(
    ("members", "index", "words"),
    [
        ({".": b""}, {}, "member '.' points outside"),
        ({"config/a\n.py": b""}, {}, "'campaign archive' never packs"),
        ({}, {"order": 5}, "its archive.json is damaged (order: "),
        ({}, {"order": [5]}, "its archive.json is damaged (order.0: "),
        ({}, {"where": {}}, "its archive.json is damaged (where: "),
        ({}, {"license": 5}, "its archive.json is damaged (license: "),
        ({}, {"sha256": {"campaign.json": 5}}, "its archive.json is damaged (sha256.campaign.json: "),
        ({"campaign.json": b"[" * 100_000}, {}, "its campaign.json cannot be read"),
        (
            {"campaign.json": b'{"schema_version": "campaign-as-used/1", "inputs": 5}'},
            {},
            "the stored campaign is damaged",
        ),
    ],
)
def test_a_hostile_archive_is_refused_in_words(
    whole: tuple[Path, bytes], tmp_path: Path, members: dict[str, bytes], index: dict[str, Any], words: str
) -> None:
    with pytest.raises(ArchiveError) as caught:
        check_archive(rewritten(whole, tmp_path / "x.zip", members, **index))
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("crate", "words"),
    [
        (b"[" * 100_000, "is not JSON"),
        (b'{"@graph": "\xe9"}', "is not JSON"),
        (b"5", "is not an RO-Crate"),
        (b'{"@graph": [{"@id": 5}]}', "is not an RO-Crate"),
    ],
)
def test_a_crate_that_is_none_is_a_problem(whole: tuple[Path, bytes], tmp_path: Path, crate: bytes, words: str) -> None:
    assert words in check_archive(rewritten(whole, tmp_path / "x.zip", {"ro-crate-metadata.json": crate}))[1][0]


ODD: tuple[Any, ...] = (
    None,
    5,
    -1e308,
    True,
    "",
    "x",
    "\0",
    "../..",
    [],
    [[]],
    {},
    {"@id": 5},
    [{"@id": ["a"]}],
    2**70,
)


@pytest.mark.slow
@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(document=st.sampled_from(["archive.json", "campaign.json", "ro-crate-metadata.json"]), data=st.data())
def test_no_value_in_a_document_of_an_archive_ends_in_a_traceback(
    whole: tuple[Path, bytes], tmp_path_factory: pytest.TempPathFactory, document: str, data: st.DataObject
) -> None:
    """A value anywhere in a document is replaced by an odd one, or taken away."""
    with zipfile.ZipFile(io.BytesIO(whole[1])) as archive:
        content = json.loads(archive.read(document))
    place, keys = content, []
    while True:
        key = data.draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))
        keys.append(str(key))
        if not isinstance(place[key], dict | list) or not place[key] or data.draw(st.booleans()):
            break
        place = place[key]
    if data.draw(st.booleans()):
        place[key] = data.draw(st.sampled_from(ODD))
    else:
        del place[key]
    path = tmp_path_factory.getbasetemp() / "odd.zip"
    told = f"{document}: {'.'.join(keys)}"
    try:
        if document == "archive.json":
            rewritten(whole, path, {}, **content)
        else:
            rewritten(whole, path, {document: json.dumps(content).encode()})
        check_archive(path)
    except ArchiveError:
        pass
    except Exception as error:
        raise AssertionError(told) from error


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
        added, real = 0, zip_file.write_member

        def add(*arguments: object, **options: object) -> None:
            nonlocal added
            if added == members:
                os.kill(os.getpid(), signal.SIGKILL)
            added += 1
            real(*arguments, **options)  # type: ignore[arg-type]

        zip_file.write_member = add
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
    assert f"{name} could not be read or written (File too large)" in (tmp_path / "told").read_text()
    assert there.read_bytes() == before
    assert [path.name for path in there.parent.iterdir()] == ["small.zip"]


def test_no_space_to_unpack_is_no_fault_of_the_archive(there: Path, tmp_path: Path) -> None:
    def limited() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
        with open_archive(there):
            pass

    assert in_a_child(limited, tmp_path / "told") == 1
    assert "could not be unpacked" in (tmp_path / "told").read_text()
    assert "whole" not in (tmp_path / "told").read_text()


def test_errors_about_a_member_name_the_archive_and_the_member(
    campaign: Campaign, whole: tuple[Path, bytes], results: Path, tmp_path: Path
) -> None:
    with zipfile.ZipFile(io.BytesIO(whole[1])) as archive:
        name = next(each for each in archive.namelist() if each.startswith("records/"))
    path = rewritten(whole, tmp_path / "x.zip", {name: b"{"})
    with pytest.raises(RecordError) as raised:
        load_tables(path)
    assert str(raised.value).startswith(f"{path}/{name}: ")
    # An archive that is written anew keeps what the results lack, and makes tables of it.
    (results / name).unlink()
    with pytest.raises(RecordError) as raised:
        write_archive(campaign, results, path)
    assert str(raised.value).startswith(f"{path}/{name}: ")
    long = f"records/{'x' * 300}.json"
    with pytest.raises(ArchiveError, match=r"is not a complete archive") as refused:
        check_archive(rewritten(whole, tmp_path / "long.zip", {long: b"{}"}))
    assert f"{tmp_path}/long.zip/{long}" in str(refused.value)


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("name", ["archive.json", "campaign.json"])
def test_two_members_of_one_name_are_refused_by_it(whole: tuple[Path, bytes], tmp_path: Path, name: str) -> None:
    """Some programs read the first one, others the last one."""
    (tmp_path / "x.zip").write_bytes(whole[1])
    with zipfile.ZipFile(tmp_path / "x.zip", "a") as archive:
        archive.writestr(name, archive.read(name))
    done = CliRunner().invoke(main, ["archive", "verify", str(tmp_path / "x.zip")])
    assert (done.exit_code, f"'{name}' occurs twice" in done.output) == (1, True), done.output


def test_no_name_of_a_member_moves_the_cursor(whole: tuple[Path, bytes], tmp_path: Path) -> None:
    text, program = "\x9b2J\u202egpj.sh", b"#!/bin/sh"
    with zipfile.ZipFile(io.BytesIO(whole[1])) as archive:
        campaign = json.loads(archive.read("campaign.json"))
    file = {"path": f"/x/{text}", "sha256": hashlib.sha256(program).hexdigest()}
    campaign["inputs"] = {next(iter(campaign["workloads"])): {text: file}}
    members = {f"config/workloads/{text}": program, "campaign.json": json.dumps(campaign).encode()}
    path = rewritten(whole, tmp_path / "x.zip", members)
    done = CliRunner().invoke(main, ["archive", "extract", str(path), "--into", str(tmp_path / "results")])
    assert done.exit_code == 0, done.output
    assert "config/workloads/\\x9b2J\\u202egpj.sh" in done.output
    assert not {"\x9b", "\u202e"} & set(done.output)


def test_what_readers_reach_through_links_is_packed(
    campaign: Campaign, results: Path, there: Path, tmp_path: Path
) -> None:
    shard = next((results / "records").iterdir())
    shard.rename(tmp_path / "elsewhere")
    shard.symlink_to(tmp_path / "elsewhere")
    lease = next((results / "leases").iterdir())
    lease.rename(tmp_path / "lease.json")
    lease.symlink_to(tmp_path / "lease.json")
    (results / "telemetry").rename(tmp_path / "telemetry")
    (results / "telemetry").symlink_to(tmp_path / "telemetry")
    write_archive(campaign, results, tmp_path / "linked.zip")
    assert (tmp_path / "linked.zip").read_bytes() == there.read_bytes()


def test_manifests_that_readers_read_are_those_that_are_packed(results: Path, tmp_path: Path) -> None:
    manifests = next(path for path in (results / "manifests").iterdir() if path.is_dir())
    manifests.rename(tmp_path / "elsewhere")
    manifests.symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / ".half-written.json").write_text("{")
    read = Results.from_directory(results).list_manifests()
    assert [path.name for path in read] == ["0a1b.json"]
    packed = {name for name in collect_members(results) if name.startswith("manifests/")}
    assert {path.relative_to(results).as_posix() for path in read} == packed
    (tmp_path / "elsewhere" / "torn.json").write_text("{")
    assert any("torn.json" in problem for problem in find_problems(Results.from_directory(results)))
    (tmp_path / "elsewhere" / "torn.json").unlink()
    (tmp_path / "elsewhere" / "round").symlink_to(results / "manifests")
    assert Results.from_directory(results).list_manifests() == read


def _make_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _make_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _link_to(target: str) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        path.unlink()
        path.symlink_to(target)

    return make


def _link_parent(path: Path) -> None:
    shutil.move(path.parent, path.parent.with_suffix(".away"))
    path.parent.symlink_to(path.parent.parent)


def _replace_directory_by_pipe(path: Path) -> None:
    path.parent.rename(path.parent.with_suffix(".away"))
    os.mkfifo(path.parent)


@pytest.mark.parametrize("part", ["records", "shared", "telemetry"])
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_make_directory, "is a directory, but must be a file"),
        (_make_pipe, "is a pipe or device, but must be a file"),
        (_link_to("/dev/null"), "is a broken link"),
        (_link_to("nowhere.json"), "is a broken link"),
        (_link_parent, "links to a directory that contains it"),
        (_replace_directory_by_pipe, "is a pipe or device, but must be a file|cannot be listed"),
    ],
)
def test_what_is_no_file_among_the_results_is_refused_by_name(
    campaign: Campaign, results: Path, tmp_path: Path, part: str, change: Callable[[Path], None], words: str
) -> None:
    path = next(path for path in sorted((results / part).rglob("*.*")))
    change(path)
    with pytest.raises(ArchiveError, match=words) as told:
        write_archive(campaign, results, tmp_path / "new.zip")
    assert re.match(f"({path}|{path.parent}|{path.parent}/{part}) ", str(told.value))
    assert not (tmp_path / "new.zip").exists()


def test_two_at_once_do_not_write_into_each_other(campaign: Campaign, results: Path, there: Path) -> None:
    told: list[str] = []

    def second(name: str, content: bytes) -> None:
        if not told:
            told.append(name)
            with pytest.raises(ArchiveError, match="another process is writing"):
                zip_file.write_zip(there, {}, lambda written: iter(()))

    zip_file.write_zip(there, {"a": b"1", "b": b"2"}, lambda written: iter(()), second)
    assert told
    assert contents(there) == {"a": b"1", "b": b"2"}
