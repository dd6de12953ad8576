"""A campaign in one file: everything that its report needs, with checksums, and nothing of the machine it was made on.

A zip file with `archive.json` (schema `archive/1`: campaign, expression, SHA-256 of every member), `campaign.json` (the campaign
as used) and the results directory's plan/, records/, shared/, leases/, links/, manifests/, stops/,
slurm/excluded/ and tables/.
"""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any

from campaign.collect import collect, gather
from campaign.config.resolve import Campaign, from_document
from campaign.errors import ArchiveError
from campaign.outputs import draw_figures, render_report

SCHEMA = "archive/1"
PARTS = ("plan", "records", "shared", "leases", "links", "manifests", "stops", "slurm/excluded", "tables")
MAX_BYTES = 50 * 2**30  # what an archive may unpack to: a bomb must not fill the disk
_INDEX = "archive.json"
_CAMPAIGN = "campaign.json"
# Zip keeps times to two seconds and needs one; the same results must give the same bytes.
_NO_TIME = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True)
class Opened:
    """An archive that was checked and unpacked."""

    campaign: Campaign
    directory: Path
    where: str | None


def write_archive(campaign: Campaign, results: Path, out: Path, where: str | None = None) -> int:
    """Pack a campaign's results; gives the number of members. The same results give the same bytes.

    Raises ArchiveError when there are no records or the file cannot be written; nothing partial stays behind.
    """
    members = {
        path.relative_to(results).as_posix(): path
        for part in PARTS
        for path in sorted((results / part).rglob("*"))
        if path.is_file() and not path.name.startswith(".")
    }
    if not any(name.startswith("records/") for name in members):
        raise ArchiveError(f"{results}: there are no records to archive; run the campaign first")
    document = _dumped(campaign.document())
    checksums = {_CAMPAIGN: hashlib.sha256(document).hexdigest()}
    temporary = out.with_name(f".{out.name}.tmp")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive:
            _add(archive, _CAMPAIGN, document)
            for name, path in members.items():
                content = path.read_bytes()
                checksums[name] = hashlib.sha256(content).hexdigest()
                _add(archive, name, content)
            index = {"schema_version": SCHEMA, "campaign": campaign.name, "where": where, "sha256": checksums}
            _add(archive, _INDEX, _dumped(index))
        temporary.replace(out)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise ArchiveError(f"{out}: could not be written ({error.strerror or error})") from error
    return len(members)


def _add(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    info = zipfile.ZipInfo(name, _NO_TIME)
    info.compress_type = zipfile.ZIP_DEFLATED
    info.external_attr = 0o644 << 16
    archive.writestr(info, content)


def _dumped(document: object) -> bytes:
    return (json.dumps(document, indent=1, sort_keys=True) + "\n").encode()


@contextmanager
def opened(path: Path) -> Iterator[Opened]:
    """Check an archive and unpack it into a directory that is gone afterwards.

    Raises ArchiveError for what is no archive, for another schema version, for a member that is missing, added or damaged
    (each named), and for a member that points outside.
    """
    with TemporaryDirectory(prefix="campaign-archive-") as scratch:
        directory = Path(scratch)
        try:
            with zipfile.ZipFile(path) as archive:
                index = _index(path, archive)
                _unpack(path, archive, index["sha256"], directory)
        except FileNotFoundError:
            raise ArchiveError(f"{path}: no such file") from None
        except (zipfile.BadZipFile, EOFError, OSError, NotImplementedError, RuntimeError) as error:
            raise ArchiveError(
                f"{path}: is not a whole archive ({error}); copy it again from where it was made"
            ) from error
        campaign = from_document(json.loads((directory / _CAMPAIGN).read_bytes()))
        yield Opened(campaign, directory, index["where"])


def _index(path: Path, archive: zipfile.ZipFile) -> dict[str, Any]:
    try:
        index = json.loads(archive.read(_INDEX))
        version = index["schema_version"]
    except (KeyError, ValueError, TypeError):
        raise ArchiveError(f"{path}: has no readable {_INDEX}; it was not made by 'campaign archive'") from None
    if version != SCHEMA:
        raise ArchiveError(
            f"{path}: has schema {version!r}; this version reads {SCHEMA!r}. Use the version that made it"
        )
    if not isinstance(index.get("sha256"), dict) or _CAMPAIGN not in index["sha256"]:
        raise ArchiveError(f"{path}: its {_INDEX} lists no checksums; it was not made by 'campaign archive'")
    return {"where": index.get("where"), "sha256": index["sha256"]}


def _unpack(path: Path, archive: zipfile.ZipFile, checksums: dict[str, str], directory: Path) -> None:
    infos = [info for info in archive.infolist() if info.filename != _INDEX]
    for info in infos:
        if not _inside(info):
            raise ArchiveError(f"{path}: member '{info.filename}' points outside the archive; do not trust this file")
    names = [info.filename for info in infos]
    if problems := _differences(names, checksums):
        raise ArchiveError(
            f"{path}: members differ from the archive's list: {', '.join(problems)}; copy it again from where it was made"
        )
    if sum(info.file_size for info in infos) > MAX_BYTES:
        raise ArchiveError(f"{path}: would unpack to more than {MAX_BYTES // 2**30} GiB; do not trust this file")
    damaged = []
    for info in infos:
        content = archive.read(info)
        if hashlib.sha256(content).hexdigest() != checksums[info.filename]:
            damaged.append(info.filename)
            continue
        target = directory / info.filename
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    if damaged:
        told = ", ".join(damaged[:5]) + (f" and {len(damaged) - 5} more" if len(damaged) > 5 else "")
        raise ArchiveError(f"{path}: the checksum differs for {told}; copy it again from where it was made")


def _inside(info: zipfile.ZipInfo) -> bool:
    parts = PurePosixPath(info.filename).parts
    link = (info.external_attr >> 16) & 0o170000 == 0o120000
    plain = info.filename and "\\" not in info.filename and ":" not in parts[0]
    return bool(plain and not link and not info.is_dir() and not info.filename.startswith("/") and ".." not in parts)


def _differences(names: list[str], checksums: dict[str, str]) -> list[str]:
    twice = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
    lacking, added = sorted(set(checksums) - set(names)), sorted(set(names) - set(checksums))
    return [
        *(f"'{name}' stands twice" for name in twice[:3]),
        *(f"'{name}' is missing" for name in lacking[:3]),
        *(f"'{name}' is not listed" for name in added[:3]),
    ]


def report_from_archive(path: Path, out: Path, where: str | None = None) -> None:
    """The report of an archive, byte for byte the one that the campaign itself gives."""
    with opened(path) as archive, TemporaryDirectory(prefix="campaign-report-") as scratch:
        report_from(archive.campaign, archive.directory, where or archive.where, Path(scratch), out)


def report_from(campaign: Campaign, results: Path, where: str | None, scratch: Path, out: Path) -> None:
    """Tables and figures into `scratch`, the page into `out`."""
    collect(gather(campaign, results, where), scratch / "tables")
    draw_figures(scratch / "tables", scratch / "figures")
    render_report(scratch / "tables", scratch / "figures", out)
