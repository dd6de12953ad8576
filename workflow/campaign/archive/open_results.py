"""Tables and reports from any source of measurements: a campaign file, an archive, or a results directory."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from campaign.archive.read import opened
from campaign.config.resolve import Campaign, from_document, load_campaign, systems_of
from campaign.documents.record import Store
from campaign.errors import ConfigError, RecordError
from campaign.files import read_json
from campaign.paths import Results
from campaign.report.write import draw_figures, render_report
from campaign.tables.collect import collect, gather, tables_of

if TYPE_CHECKING:  # it brings pandas
    from campaign.tables.io import Tables


def as_planned(campaign: Campaign, directory: Path) -> Campaign:
    """The campaign as its plan has it, where both differ only in what a profile or an option said: who starts runs, and whether
    implied runs are started. So a page says the same, whether the workflow, a command or an archive makes it."""
    name = read_json(Results.at(directory).plan_document).get("campaign_hash")
    try:
        planned = from_document(Store(directory).shared_document(str(name))) if name else campaign
    except (ConfigError, RecordError):
        return campaign
    return planned if _files_of(planned) == _files_of(campaign) else campaign


def _files_of(campaign: Campaign) -> dict[str, Any]:
    document = campaign.document()
    del document["campaign"]["protocol"]["skip_implied"]
    for system in systems_of(document).values():
        del system["launcher"]
    return document


def tables_from(source: Path, results: Path = Path("results"), where: str | None = None) -> Tables:
    """The tables of a source, made from its records as they are now.

    source: a campaign file (its results are below `results`), an archive (`.zip`), or one campaign's results directory, whose
    tables/ are read as they are. ConfigError for anything else, with what is allowed.
    """
    if source.suffix == ".zip":
        with opened(source) as archive:
            return tables_of(gather(archive.campaign, archive.directory, where or archive.where))
    if source.suffix in (".yaml", ".yml"):
        campaign = load_campaign(source)
        directory = Results(results, campaign.name).directory
        return tables_of(gather(as_planned(campaign, directory), directory, where))
    if (Results.at(source).tables / "runs.parquet").is_file():
        if where:
            raise ConfigError(f"{source}: --where needs a campaign file or an archive, not a directory of results")
        from campaign.tables.io import read

        return read(Results.at(source).tables)
    raise ConfigError(
        f"{source}: is not a source of measurements; give a campaign file (.yaml), an archive (.zip), or a campaign's results "
        "directory, which holds tables/"
    )


def report_from_archive(path: Path, out: Path, where: str | None = None) -> None:
    """The page from an archive alone; where: instead of what the archive shows by default."""
    with opened(path) as archive, TemporaryDirectory(prefix="campaign-report-") as scratch:
        report_from(archive.campaign, archive.directory, where or archive.where, Path(scratch), out)


def report_from(campaign: Campaign, results: Path, where: str | None, scratch: Path, out: Path) -> None:
    """Tables and figures into `scratch`, the page into `out`."""
    made = Results.at(scratch)
    collect(gather(campaign, results, where), made.tables)
    draw_figures(made.tables, made.figures, recommendation=made.recommendation)
    render_report(made.tables, made.figures, out)
