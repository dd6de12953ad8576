"""Rule `recommend`: what to build, by the measurements."""

import sys
from pathlib import Path

from campaign.errors import CampaignError
from campaign.report.write import write_recommendation

if "snakemake" in globals():
    try:
        write_recommendation(
            Path(snakemake.input.runs).parent, Path(snakemake.output.json).parent, Path(snakemake.input.style)
        )
    except CampaignError as error:
        sys.exit(f"error: {error}")
