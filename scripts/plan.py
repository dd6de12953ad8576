"""Rule `plan`: the plan as JSON and as a table of all cells."""

import sys
from pathlib import Path

from campaign.errors import CampaignError, unwritable
from campaign.plan.budget import parse_budget
from campaign.plan.dag import Request, read_plan
from campaign.report.write import write_plan


def main(request: Request, json_path: Path, tsv_path: Path) -> None:
    """Write the plan's two files."""
    plan = read_plan(request)
    try:
        write_plan(plan, json_path, tsv_path)
    except OSError as error:
        raise unwritable(error, json_path.parent) from error


if "snakemake" in globals():
    try:
        main(
            Request(
                Path(snakemake.resources.campaign),
                Path(snakemake.resources.results),
                snakemake.resources.where or None,
                run_implied=snakemake.resources.run_implied == "yes",
                budget=parse_budget(snakemake.resources.budget) if snakemake.resources.budget else None,
                learn_from=tuple(Path(path) for path in snakemake.resources.learn_from.split(",") if path),
            ),
            Path(snakemake.output.json),
            Path(snakemake.output.tsv),
        )
    except CampaignError as error:
        sys.exit(f"error: {error}")
