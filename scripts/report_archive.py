"""Rule `report` with an archive: the page from the archive alone."""

import sys
from pathlib import Path

from campaign.archive import report_from_archive
from campaign.errors import CampaignError

if "snakemake" in globals():
    try:
        report_from_archive(Path(snakemake.input[0]), Path(snakemake.output[0]), snakemake.params.where)
    except CampaignError as error:
        sys.exit(f"error: {error}")
