"""Campaigns of a site. Each has a directory with its report, figures and tables; the other pages of the site read only these.

Two sources hold the same campaign if its name, its system and the start of its first run are equal, whether they are results
directories or archives.
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

from campaign.analysis.tables.io import DOCUMENT_NAMES, Tables, read_tables
from campaign.archive.read import open_archive
from campaign.archive.write import collect_members
from campaign.common.errors import ConfigError, RecordError
from campaign.common.files import load_json, open_regular, reject_damaged_document, write_json
from campaign.common.paths import Results
from campaign.plan.campaign.resolve import load_campaign
from campaign.report import sort_by_page_order
from campaign.report.figure import ANSWERS
from campaign.report.sources import find_planned_campaign, write_report
from campaign.report.write import provide_figures, render_report

CAMPAIGN_FILE = "campaign.json"
COMPARISON_FILE = "compare.html"
_TABLES = (
    *(f"{name}.{kind}" for name in ("runs", "cells") for kind in ("csv", "parquet")),
    *(f"{name}.json" for name in DOCUMENT_NAMES),
    "reference.parquet",
)
_HEADER = b'<header>\n<p class="kicker">'
_MAX_TIME_S = 253_402_300_800.0  # the year 10000, which datetime does not support
_PICTURES = (".svg", ".csv", ".pdf")


@dataclass(frozen=True)
class ListedCampaign:
    """Campaign listed on the site.

    Args:
        directory: name of its directory in the site.
        digests: digests of all its sources.
        name: name of the campaign.
        title: title of the campaign.
        system: names of its systems.
        workloads: names of its workloads.
        started: start of the first run, in Unix seconds.
        ended: end of the last run, in Unix seconds.
        runs: number of runs.
        cells: number of cells.
        headline: its first finding.
        figures: title of each figure, by file name.
    """

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


def find_sources(paths: Iterable[Path]) -> Iterator[Path]:
    """Yield the results directories and archives among paths, or in directories among them.

    Raises ConfigError if a path has none.
    """
    for path in paths:
        matches = [path] if _is_source(path) else []
        if not matches and path.is_dir():
            matches = [
                entry for entry in sorted(path.iterdir()) if not entry.name.startswith(".") and _is_source(entry)
            ]
        if not matches:
            raise ConfigError(
                f"{path} has no results; give the results directory of a campaign, an archive (.zip), or a directory of these"
            )
        yield from matches


def _is_source(path: Path) -> bool:
    if path.is_dir():
        return any((path / part).is_dir() for part in ("records", "tables"))
    return path.suffix == ".zip" and path.is_file()


def hash_source(source: Path) -> str:
    """Return the hash of the content that a campaign of the site is made from.

    The content is the archive itself, or the tables, the report and the figures of a results directory. For results without tables,
    it is that of every file in an archive of them. Names of records do not identify a campaign, because each repetition of a plan
    writes the same names.
    """
    digest = hashlib.sha256()
    results = Results.from_directory(source)
    if source.is_file():
        files = [source]
    elif (results.tables / "runs.parquet").is_file():
        report_files = (results.report_file, *_list_files(results.tables), *_list_files(results.figures))
        files = [path for path in report_files if path.is_file()]
    else:
        files = [path for path in collect_members(source).values() if isinstance(path, Path)]
    for path in files:
        with open_regular(path) as file:
            digest.update(f"{path.name}\0".encode() + hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def _list_files(directory: Path) -> Iterable[Path]:
    return sorted(directory.iterdir()) if directory.is_dir() else ()


def read_entries(site: Path) -> list[ListedCampaign]:
    """Read the campaigns of a site, the oldest first."""
    listed_campaigns = []
    for path in sorted(site.glob(f"*/{CAMPAIGN_FILE}")):
        with reject_damaged_document(path, "delete its directory and run again"):
            listed_campaigns.append(_ENTRY.validate_python({**load_json(path), "directory": path.parent.name}))
    return sorted(listed_campaigns, key=lambda campaign: (campaign.started, campaign.directory))


def add_campaign(source: Path, digest: str, site: Path, existing: Iterable[ListedCampaign]) -> ListedCampaign:
    """Add a campaign to the site as a directory, completely or not at all.

    It replaces an earlier version of the same campaign, unless that has more runs. Raises CampaignError if the source is unreadable
    or has no run.
    """
    with _prepare_results(source) as (results, figures), TemporaryDirectory(prefix=".adding-", dir=site) as scratch:
        tables = read_tables(results.tables)
        new = Path(scratch) / "new"
        (new / "figures").mkdir(parents=True)
        (new / "tables").mkdir()
        drawings = _read_drawings(figures)
        entry = _build_entry(tables, digest, drawings)
        identity = (entry.name, entry.system, entry.started)
        old = next(
            (campaign for campaign in existing if (campaign.name, campaign.system, campaign.started) == identity), None
        )
        directory = old.directory if old else _choose_free_name(site, entry.directory)
        entry = replace(entry, directory=directory, digests=(*(old.digests if old else ()), digest))
        if old and old.runs > entry.runs:
            old = replace(old, digests=entry.digests)
            _write_entry(old, site / directory)
            return old
        with open_regular(results.report_file) as report:
            (new / "report.html").write_bytes(_add_index_link(report.read()))
        for name in entry.figures:
            for path in (figures / f"{name}{kind}" for kind in _PICTURES):
                if path.is_file():
                    _copy_file(path, new / "figures" / path.name)
        for name in _TABLES:
            if (results.tables / name).is_file():
                _copy_file(results.tables / name, new / "tables" / name)
        _write_entry(entry, new)
        if old:
            (site / directory).rename(Path(scratch) / "old")
        new.rename(site / directory)
    return entry


def _write_entry(entry: ListedCampaign, directory: Path) -> None:
    write_json(
        directory / CAMPAIGN_FILE, {key: value for key, value in asdict(entry).items() if key != "directory"}, indent=1
    )


@contextmanager
def _prepare_results(source: Path) -> Iterator[tuple[Results, Path]]:
    """Yield results with tables and report, and the directory of their figures. For an archive, they are always made anew."""
    source_results = Results.from_directory(source)
    if source.is_dir() and (source_results.tables / "runs.parquet").is_file():
        if source_results.report_file.is_file() and source_results.figures.is_dir():
            yield source_results, source_results.figures
            return
        with TemporaryDirectory(prefix="campaign-site-") as scratch, provide_figures(source_results) as figures:
            new_results = Results.from_directory(Path(scratch))
            render_report(source_results.tables, figures, new_results.report_file)
            new_results.tables.symlink_to(source_results.tables.absolute())
            yield new_results, figures
        return
    with TemporaryDirectory(prefix="campaign-site-") as scratch:
        new_results = Results.from_directory(Path(scratch))
        if source.is_dir():
            write_report(
                find_planned_campaign(load_campaign(source), source),
                source,
                None,
                Path(scratch),
                new_results.report_file,
                is_archive=True,
            )
        else:
            with open_archive(source) as archive:
                write_report(
                    archive.campaign,
                    archive.directory,
                    archive.where,
                    Path(scratch),
                    new_results.report_file,
                    is_archive=True,
                )
        yield new_results, new_results.figures


def _read_drawings(figures: Path) -> dict[str, dict[str, Any]]:
    """Read the figures that have data, by file name, in the order of the page, beginning with the part on answers."""
    drawings = {}
    for path in sorted(figures.glob("*.json")):
        with reject_damaged_document(path, "delete the figures and run again"):
            document = load_json(path)
            if document["shown"]:
                drawings[path.stem] = {**document, "file": path.stem}
    sorted_drawings = sorted(sort_by_page_order(drawings), key=lambda drawing: drawing.get("part", ANSWERS) != ANSWERS)
    return {str(drawing["file"]): dict(drawing) for drawing in sorted_drawings}


def _build_entry(tables: Tables, digest: str, drawings: Mapping[str, Mapping[str, Any]]) -> ListedCampaign:
    campaign_document, runs = tables.context["campaign"], tables.runs
    if runs.empty:
        raise RecordError("The campaign has no records yet")
    started, ended = float(runs["started"].min()), float(runs["ended"].max())
    if not 0 <= started <= ended < _MAX_TIME_S:
        raise RecordError(f"The times of its runs, {started:g} to {ended:g}, are not valid Unix seconds")
    systems = [str(name) for name in tables.cells["system"].unique() if name]
    findings = [str(finding) for drawing in drawings.values() for finding in drawing["findings"]]
    return ListedCampaign(
        directory=f"{to_address(tables.name)}-{datetime.fromtimestamp(started, UTC):%Y-%m-%d-%H%M%S}",
        digests=(digest,),
        name=tables.name,
        title=str(campaign_document.get("title") or tables.name),
        system=", ".join(systems) or str(campaign_document.get("system", "")),
        workloads=tuple(map(str, tables.cells["workload"].unique())),
        started=started,
        ended=ended,
        runs=len(runs),
        cells=len(tables.cells),
        headline=findings[0] if findings else "The measurements allow no comparison.",
        figures={name: str(drawing["title"]) for name, drawing in drawings.items()},
    )


def to_address(name: str) -> str:
    """Convert a name to an address component that is valid in any file system."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:60] or "campaign"


def _choose_free_name(site: Path, name: str) -> str:
    numbered_names = (f"{name}-{number}" for number in range(2, 10_000))
    return next(candidate for candidate in (name, *numbered_names) if not (site / candidate).exists())


def _copy_file(source: Path, target: Path) -> None:
    with open_regular(source) as file, target.open("wb") as copy:
        shutil.copyfileobj(file, copy)


def _add_index_link(report: bytes) -> bytes:
    """Add a link to the site's index above the title of a report."""
    return report.replace(_HEADER, _HEADER + b'<a href="../index.html">All campaigns</a> \xc2\xb7 ', 1)
