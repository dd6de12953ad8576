"""Tables and reports from any source of measurements: a campaign file, an archive, or a results directory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from campaign.analysis.tables.collect import build_tables, read_campaign_results, write_campaign_tables
from campaign.archive.read import open_archive
from campaign.common.errors import ConfigError
from campaign.common.paths import Results
from campaign.plan.campaign.resolve import Campaign, campaign_from_document, load_campaign, stored_systems
from campaign.report.write import run_in_processes, write_figures_and_page
from campaign.spec.campaign_file import NO_VERSION
from campaign.spec.record import RecordStore, read_campaigns_as_used

if TYPE_CHECKING:  # It imports pandas.
    from campaign.analysis.tables.io import Tables


def find_planned_campaign(campaign: Campaign, directory: Path) -> Campaign:
    """Return the campaign stored in the plan if it differs only in details that do not affect measurements.

    Such details come from a profile or an option (launcher, start of implied runs, version label), or are input files that have
    been moved, edited or lost since. A page therefore describes the measured campaign, no matter whether the workflow, a command or
    an archive makes it.
    """
    comparable = _make_comparable_document(campaign)
    for document in read_campaigns_as_used(directory):
        try:
            planned_campaign = campaign_from_document(document)
        except ConfigError:
            continue
        if (
            _make_comparable_document(
                planned_campaign if campaign.file.version else planned_campaign.with_version(NO_VERSION)
            )
            == comparable
        ):
            return planned_campaign
    return campaign


def _make_comparable_document(campaign: Campaign) -> dict[str, Any]:
    """Return the campaign as a document without the details that a profile, an option or a moved file may change."""
    document = campaign.to_document()
    for name in ("inputs", "workload_dirs", "readings"):
        document.pop(name, None)
    del document["campaign"]["references"]  # The document also has the content of these files.
    del document["campaign"]["protocol"]["skip_implied"]
    for system in stored_systems(document).values():
        del system["launcher"]
    return document


def load_tables(
    source: Path, results: Path = Path("results"), where: str | None = None, version: str | None = None
) -> Tables:
    """Build the tables of a source from its records as they are now.

    The existing tables of a results directory are read instead if all runs and versions are requested. Raises ConfigError for any
    other source.

    Args:
        source: a campaign file, an archive (`.zip`), or the results directory of one campaign.
        results: directory of all results, for a campaign file.
        where: filter of the runs.
        version: version of the runs, instead of that of the campaign. It is added to the name of the tables.
    """
    if source.suffix == ".zip" and not source.is_dir():
        with open_archive(source) as archive:
            return _build_tables(archive.campaign, archive.directory, where or archive.where, version)
    if not where and not version and (Results.from_directory(source).tables / "runs.parquet").is_file():
        from campaign.analysis.tables.io import read_tables

        return read_tables(Results.from_directory(source).tables)
    if not source.is_dir() and source.suffix not in (".yaml", ".yml"):
        raise ConfigError(
            f"{source} has no measurements; give a campaign file (.yaml), an archive (.zip), or the results directory of a campaign"
        )
    campaign = load_campaign(source, results=results)
    directory = source if source.is_dir() else Results(results, campaign.name).directory
    return _build_tables(find_planned_campaign(campaign, directory), directory, where, version)


def _build_tables(campaign: Campaign, directory: Path, where: str | None, version: str | None) -> Tables:
    tables = build_tables(read_campaign_results(campaign.with_version(version), directory, where))
    if version is None:
        return tables
    if tables.runs.empty:
        known_versions = sorted(
            {str(record.specification.get("version", NO_VERSION)) for record in RecordStore(directory)}
        )
        raise ConfigError(
            f"Campaign {campaign.name} has no runs of version {version}; its versions are {', '.join(known_versions)}"
        )
    campaign_context = {**tables.context["campaign"], "name": f"{tables.name} ({version})"}
    return replace(tables, context={**tables.context, "campaign": campaign_context})


def collect_tables(scratch: Path, source: Path, results: Results) -> Results:
    """Build the tables of results in an empty directory, and return the paths of that directory.

    Args:
        scratch: empty directory.
        source: campaign file or any other source that `load_campaign` reads.
        results: results with the records.
    """
    campaign = find_planned_campaign(load_campaign(source, results=results.root), results.directory)
    output = Results.from_directory(scratch)
    write_campaign_tables(read_campaign_results(campaign, results.directory), output.tables)
    return output


def write_archive_report(path: Path, out: Path, where: str | None = None) -> None:
    """Write the report of an archive from its content alone.

    Args:
        path: the archive.
        out: HTML file to write.
        where: filter of the runs, instead of the filter of the archive.
    """
    with open_archive(path) as archive, TemporaryDirectory(prefix="campaign-report-") as scratch:
        write_report(archive.campaign, archive.directory, where or archive.where, Path(scratch), out, is_archive=True)


@contextmanager
def open_writable_directory(results: Results) -> Iterator[Path]:
    """Yield the directory for tables and figures: that of the results, or a temporary one if the results are read-only."""
    directories = (results.tables, results.figures, results.recommendation)
    paths = [
        results.directory,
        *(path for directory in directories if directory.is_dir() for path in (directory, *directory.iterdir())),
    ]
    if all(os.access(path, os.W_OK) for path in paths):
        yield results.directory
        return
    with TemporaryDirectory(prefix="campaign-report-") as scratch:
        yield Path(scratch)


def write_report(
    campaign: Campaign, results: Path, where: str | None, scratch: Path, out: Path, *, is_archive: bool = False
) -> None:
    """Write the report of a campaign, with its tables and figures in a scratch directory.

    Args:
        campaign: the campaign.
        results: directory with its records.
        where: filter of the runs.
        scratch: directory for tables and figures.
        out: HTML file to write.
        is_archive: whether the results are those of an extracted archive, so that the page has no links to them.
    """
    # These modules are imported once here; otherwise each forked process would load pandas and scipy.
    import scipy.special  # noqa: F401

    from campaign.analysis.tables import io  # noqa: F401
    from campaign.report.cell_runs import ResultFiles

    output = Results.from_directory(scratch)
    # A separate process returns the memory that the records need.
    run_in_processes([partial(_collect_tables, campaign, results, where, output.tables)], _import_drawing)
    write_figures_and_page(output, out, ResultFiles.list(results, None if is_archive else out))


def _import_drawing() -> None:
    """Import the modules that the processes for figures and recommendations need."""
    import campaign.analysis.recommend.advise
    import campaign.report.page
    import campaign.report.plot  # noqa: F401


def _collect_tables(campaign: Campaign, results: Path, where: str | None, tables: Path) -> None:
    write_campaign_tables(read_campaign_results(campaign, results, where), tables)
