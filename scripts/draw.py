"""Rule `figures`: all figures from the tables."""

import sys
from pathlib import Path

from campaign.errors import CampaignError
from campaign.report.write import draw_figures

if "snakemake" in globals():
    tables, figures = Path(snakemake.input.runs).parent, Path(snakemake.output.json[0]).parent
    try:
        draw_figures(tables, figures, Path(snakemake.input.scripts[0]).parent.parent, Path(snakemake.input.style))
    except CampaignError as error:
        sys.exit(f"error: {error}")
