"""Tables and reports from any source of measurements: a campaign file, an archive, or a results directory."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from campaign.analysis.tables.collect import collect, gather, tables_of
from campaign.archive.read import opened
from campaign.common.errors import ConfigError
from campaign.common.paths import Results
from campaign.plan.campaign.resolve import Campaign, from_document, load_campaign, systems_of
from campaign.report.write import forked, write_page
from campaign.spec.campaign_file import NO_VERSION
from campaign.spec.record import Store, campaigns_as_used

if TYPE_CHECKING:  # it brings pandas
    from campaign.analysis.tables.io import Tables


def as_planned(campaign: Campaign, directory: Path) -> Campaign:
    """The campaign as its plan has it, where both differ only in what a profile or an option said (who starts runs, whether implied
    runs are started, the label of a campaign without one), or in input files, which may have been moved, edited or lost since.

    So a page says what was measured, and the same, whether the workflow, a command or an archive makes it.
    """
    files = _files_of(campaign)
    for document in campaigns_as_used(directory):
        try:
            planned = from_document(document)
        except ConfigError:
            continue
        if _files_of(planned if campaign.file.version else planned.labelled(NO_VERSION)) == files:
            return planned
    return campaign


def _files_of(campaign: Campaign) -> dict[str, Any]:
    document = campaign.document()
    for name in ("inputs", "workload_dirs", "readings"):
        document.pop(name, None)
    del document["campaign"]["references"]  # names of files, whose content stands beside
    del document["campaign"]["protocol"]["skip_implied"]
    for system in systems_of(document).values():
        del system["launcher"]
    return document


def tables_from(
    source: Path, results: Path = Path("results"), where: str | None = None, version: str | None = None
) -> Tables:
    """The tables of a source, made from its records as they are now.

    source: a campaign file (its results are below `results`), an archive (`.zip`), or one campaign's results directory, whose
    tables/ are read as they are, if it has them and all is wanted. version: of the runs that are meant, in place of the campaign's
    (`Campaign.labelled`); the tables are named after it. ConfigError for anything else, with what is allowed.
    """
    if source.suffix == ".zip" and not source.is_dir():
        with opened(source) as archive:
            return _tables(archive.campaign, archive.directory, where or archive.where, version)
    if not where and not version and (Results.at(source).tables / "runs.parquet").is_file():
        from campaign.analysis.tables.io import read

        return read(Results.at(source).tables)
    if not source.is_dir() and source.suffix not in (".yaml", ".yml"):
        raise ConfigError(
            f"{source}: is not a source of measurements; give a campaign file (.yaml), an archive (.zip), or the results directory "
            "of a campaign"
        )
    campaign = load_campaign(source, results=results)
    directory = source if source.is_dir() else Results(results, campaign.name).directory
    return _tables(as_planned(campaign, directory), directory, where, version)


def _tables(campaign: Campaign, directory: Path, where: str | None, version: str | None) -> Tables:
    tables = tables_of(gather(campaign.labelled(version), directory, where))
    if version is None:
        return tables
    if tables.runs.empty:
        known = sorted({str(each.specification.get("version", NO_VERSION)) for each in Store(directory)})
        raise ConfigError(
            f"version {version}: campaign {campaign.name} has no runs of it; there are: {', '.join(known)}"
        )
    named = {**tables.context["campaign"], "name": f"{tables.name} ({version})"}
    return replace(tables, context={**tables.context, "campaign": named})


def collect_into(scratch: Path, source: Path, results: Results) -> Results:
    """Make the tables of results in a directory that is empty; gives it. source: what `load_campaign` reads."""
    campaign = as_planned(load_campaign(source, results=results.root), results.directory)
    made = Results.at(scratch)
    collect(gather(campaign, results.directory), made.tables)
    return made


def report_from_archive(path: Path, out: Path, where: str | None = None) -> None:
    """The page from an archive alone; where: instead of what the archive shows by default."""
    with opened(path) as archive, TemporaryDirectory(prefix="campaign-report-") as scratch:
        report_from(archive.campaign, archive.directory, where or archive.where, Path(scratch), out)


@contextmanager
def writable(results: Results) -> Iterator[Path]:
    """Where tables and figures may be made: the directory of the results, or, where it may only be read, one that is gone
    afterwards."""
    made = (results.tables, results.figures, results.recommendation)
    paths = [results.directory, *(path for each in made if each.is_dir() for path in (each, *each.iterdir()))]
    if all(os.access(path, os.W_OK) for path in paths):
        yield results.directory
        return
    with TemporaryDirectory(prefix="campaign-report-") as scratch:
        yield Path(scratch)


def report_from(campaign: Campaign, results: Path, where: str | None, scratch: Path, out: Path) -> None:
    """Tables and figures into `scratch`, the page into `out`."""
    # Once for all processes that are forked here, each of which would load pandas and scipy.
    import scipy.special  # noqa: F401

    from campaign.analysis.tables import io  # noqa: F401

    made = Results.at(scratch)
    # In a process of its own, which gives back the memory that all records take.
    forked([partial(_collect, campaign, results, where, made.tables)], _import_drawing)
    write_page(made, out)


def _import_drawing() -> None:
    """Import what the processes that draw and recommend need."""
    import campaign.analysis.recommend.advise
    import campaign.report.page
    import campaign.report.plot  # noqa: F401


def _collect(campaign: Campaign, results: Path, where: str | None, tables: Path) -> None:
    gc.disable()  # records refer to each other nowhere, and looking through all of them takes as long as reading them
    collect(gather(campaign, results, where), tables)
