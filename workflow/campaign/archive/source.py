"""Where measurements come from: a campaign file, an archive, or a directory of results."""

from __future__ import annotations

from pathlib import Path

from campaign.archive import opened
from campaign.config.resolve import load_campaign
from campaign.errors import ConfigError
from campaign.paths import Results
from campaign.tables.collect import gather, tables_of
from campaign.tables.io import Tables, read


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
        return tables_of(gather(campaign, Results(results, campaign.name).directory, where))
    if (source / "tables" / "runs.parquet").is_file():
        if where:
            raise ConfigError(f"{source}: --where needs a campaign file or an archive, not a directory of results")
        return read(source / "tables")
    raise ConfigError(
        f"{source}: is no source of measurements; give a campaign file (.yaml), an archive (.zip), or a campaign's results "
        "directory, which holds tables/"
    )
