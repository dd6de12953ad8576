"""The campaigns of a site: each a directory with its report, figures and tables, which is all that the site's other pages read.

A campaign is the same where name, system and the start of its first run are, whether it comes as results or as an archive.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pydantic import TypeAdapter

from campaign.analysis.tables.io import DOCUMENTS, Tables, read
from campaign.archive.read import open_archive
from campaign.archive.write import collect_members
from campaign.common.errors import ConfigError, RecordError
from campaign.common.files import load_json, open_regular, reject_damaged_document, write_json
from campaign.common.paths import Results
from campaign.plan.campaign.resolve import load_campaign
from campaign.report import in_page_order
from campaign.report.figure import ANSWERS
from campaign.report.sources import find_planned_campaign, write_report
from campaign.report.write import figures_of, render_report

FACTS = "campaign.json"
COMPARISON = "compare.html"
_TABLES = (
    *(f"{name}.{kind}" for name in ("runs", "cells") for kind in ("csv", "parquet")),
    *(f"{name}.json" for name in DOCUMENTS),
    "reference.parquet",
)
_HEADER = b'<header>\n<p class="kicker">'
_LAST_S = 253_402_300_800.0  # the year 10000, which no calendar here writes
_PICTURES = (".svg", ".csv", ".pdf")


@dataclass(frozen=True)
class ListedCampaign:
    """A campaign of the site. directory: its name in the site; digests: of all sources that held it; started, ended: Unix seconds;
    headline: its first finding; figures: title by file name."""

    directory: str
    digests: tuple[str, ...]
    name: str
    title: str
    system: str
    workloads: tuple[str, ...]
    started: float
    ended: float
    runs: int
    cells: int
    headline: str
    figures: Mapping[str, str]


_ENTRY = TypeAdapter(ListedCampaign)


def sources(paths: Iterable[Path]) -> Iterator[Path]:
    """Yield the results directories and archives among paths, or in directories among them.

    Raises ConfigError if a path holds none.
    """
    for path in paths:
        found = [path] if _is_source(path) else []
        if not found and path.is_dir():
            found = [each for each in sorted(path.iterdir()) if not each.name.startswith(".") and _is_source(each)]
        if not found:
            raise ConfigError(
                f"{path}: holds no results; give the results directory of a campaign, an archive (.zip), or a directory of these"
            )
        yield from found


def _is_source(path: Path) -> bool:
    if path.is_dir():
        return any((path / part).is_dir() for part in ("records", "tables"))
    return path.suffix == ".zip" and path.is_file()


def digest_of(source: Path) -> str:
    """Return the hash of the content that a campaign of the site is made from.

    This is the archive itself, or the tables, the report and the figures of a results directory. Results without tables are hashed
    by the content of every file that an archive of them holds. Names of records are no identity: each repetition of a plan writes
    the same names.
    """
    digest = hashlib.sha256()
    made = Results.from_directory(source)
    if source.is_file():
        files = [source]
    elif (made.tables / "runs.parquet").is_file():
        written = (made.report_file, *_files(made.tables), *_files(made.figures))
        files = [path for path in written if path.is_file()]
    else:
        files = [path for path in collect_members(source).values() if isinstance(path, Path)]
    for path in files:
        with open_regular(path) as file:
            digest.update(f"{path.name}\0".encode() + hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def _files(directory: Path) -> Iterable[Path]:
    return sorted(directory.iterdir()) if directory.is_dir() else ()


def entries(site: Path) -> list[ListedCampaign]:
    """Read the campaigns of a site, the oldest first."""
    found = []
    for path in sorted(site.glob(f"*/{FACTS}")):
        with reject_damaged_document(path, "delete its directory and run again"):
            found.append(_ENTRY.validate_python({**load_json(path), "directory": path.parent.name}))
    return sorted(found, key=lambda each: (each.started, each.directory))


def add(source: Path, digest: str, site: Path, known: Iterable[ListedCampaign]) -> ListedCampaign:
    """Add a campaign to the site as a directory, completely or not at all.

    It replaces the same campaign unless that has more runs. Raises CampaignError if it is unreadable or has no run.
    """
    with _made(source) as (made, figures), TemporaryDirectory(prefix=".adding-", dir=site) as scratch:
        tables = read(made.tables)
        new = Path(scratch) / "new"
        (new / "figures").mkdir(parents=True)
        (new / "tables").mkdir()
        drawings = _drawings(figures)
        entry = _entry(tables, digest, drawings)
        same = (entry.name, entry.system, entry.started)
        old = next((each for each in known if (each.name, each.system, each.started) == same), None)
        directory = old.directory if old else _free(site, entry.directory)
        entry = replace(entry, directory=directory, digests=(*(old.digests if old else ()), digest))
        if old and old.runs > entry.runs:
            old = replace(old, digests=entry.digests)
            _keep(old, site / directory)
            return old
        with open_regular(made.report_file) as report:
            (new / "report.html").write_bytes(_with_way_back(report.read()))
        for name in entry.figures:
            for path in (figures / f"{name}{kind}" for kind in _PICTURES):
                if path.is_file():
                    _copy(path, new / "figures" / path.name)
        for name in _TABLES:
            if (made.tables / name).is_file():
                _copy(made.tables / name, new / "tables" / name)
        _keep(entry, new)
        if old:
            (site / directory).rename(Path(scratch) / "old")
        new.rename(site / directory)
    return entry


def _keep(entry: ListedCampaign, directory: Path) -> None:
    write_json(directory / FACTS, {key: value for key, value in asdict(entry).items() if key != "directory"}, indent=1)


@contextmanager
def _made(source: Path) -> Iterator[tuple[Results, Path]]:
    """Yield results with tables and report, and the directory of their figures; an archive's are always made anew."""
    own = Results.from_directory(source)
    if source.is_dir() and (own.tables / "runs.parquet").is_file():
        if own.report_file.is_file() and own.figures.is_dir():
            yield own, own.figures
            return
        with TemporaryDirectory(prefix="campaign-site-") as scratch, figures_of(own) as figures:
            made = Results.from_directory(Path(scratch))
            render_report(own.tables, figures, made.report_file)
            made.tables.symlink_to(own.tables.absolute())
            yield made, figures
        return
    with TemporaryDirectory(prefix="campaign-site-") as scratch:
        made = Results.from_directory(Path(scratch))
        if source.is_dir():
            write_report(
                find_planned_campaign(load_campaign(source), source), source, None, Path(scratch), made.report_file
            )
        else:
            with open_archive(source) as archive:
                write_report(archive.campaign, archive.directory, archive.where, Path(scratch), made.report_file)
        yield made, made.figures


def _drawings(figures: Path) -> dict[str, dict[str, Any]]:
    """Figures that show something, by file name, in the order of the page, those that answer first."""
    found = {}
    for path in sorted(figures.glob("*.json")):
        with reject_damaged_document(path, "delete the figures and run again"):
            document = load_json(path)
            if document["shown"]:
                found[path.stem] = {**document, "file": path.stem}
    ordered = sorted(in_page_order(found), key=lambda each: each.get("part", ANSWERS) != ANSWERS)
    return {str(each["file"]): dict(each) for each in ordered}


def _entry(tables: Tables, digest: str, drawings: Mapping[str, Mapping[str, Any]]) -> ListedCampaign:
    about, runs = tables.context["campaign"], tables.runs
    if runs.empty:
        raise RecordError("no run has a record yet")
    started, ended = float(runs["started"].min()), float(runs["ended"].max())
    if not 0 <= started <= ended < _LAST_S:
        raise RecordError(f"its runs began at {started:g} and ended at {ended:g}, which are no times in Unix seconds")
    systems = [str(name) for name in tables.cells["system"].unique() if name]
    findings = [str(finding) for each in drawings.values() for finding in each["findings"]]
    return ListedCampaign(
        directory=f"{plain(tables.name)}-{datetime.fromtimestamp(started, UTC):%Y-%m-%d-%H%M%S}",
        digests=(digest,),
        name=tables.name,
        title=str(about.get("title") or tables.name),
        system=", ".join(systems) or str(about.get("system", "")),
        workloads=tuple(map(str, tables.cells["workload"].unique())),
        started=started,
        ended=ended,
        runs=len(runs),
        cells=len(tables.cells),
        headline=findings[0] if findings else "The measurements allow no comparison.",
        figures={name: str(each["title"]) for name, each in drawings.items()},
    )


def plain(name: str) -> str:
    """Convert a name to a part of an address that any file system allows."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:60] or "campaign"


def _free(site: Path, name: str) -> str:
    further = (f"{name}-{number}" for number in range(2, 10_000))
    return next(each for each in (name, *further) if not (site / each).exists())


def _copy(source: Path, target: Path) -> None:
    with open_regular(source) as file, target.open("wb") as copy:
        shutil.copyfileobj(file, copy)


def _with_way_back(report: bytes) -> bytes:
    """Add a link to the site's index above the title of a report."""
    return report.replace(_HEADER, _HEADER + b'<a href="../index.html">All campaigns</a> \xc2\xb7 ', 1)
