"""Rule `tables`: from records to tables."""

import argparse
import sys
from pathlib import Path

from campaign.config.resolve import load_campaign
from campaign.errors import CampaignError, unwritable
from campaign.paths import Results
from campaign.tables.collect import collect, gather


def main(campaign_path: Path, results_root: Path, where: str | None, run_implied: bool) -> None:
    """Write the tables of the campaign's cells."""
    campaign = load_campaign(campaign_path, run_implied=run_implied)
    results = Results(results_root, campaign.name)
    collected = gather(campaign, results.directory, where)
    try:
        collect(collected, results.tables)
    except OSError as error:
        raise unwritable(error, results.tables) from error


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("--campaign", "--results"):
        parser.add_argument(name, type=Path, required=True)
    parser.add_argument("--where")
    # What a budget chose stands in the results directory.
    parser.add_argument("--budget")
    parser.add_argument("--run-implied", action="store_true")
    asked = parser.parse_args()
    try:
        main(asked.campaign, asked.results, asked.where, asked.run_implied)
    except CampaignError as error:
        sys.exit(f"error: {error}")
