"""Rule `summary`: what was measured and found, on one screen."""

import sys
from collections.abc import Iterable
from pathlib import Path

from campaign.errors import CampaignError, unwritable
from campaign.report.summary import missing_reasons, summary


def main(tables: Path, figures: Path, recommendation: Path, report: Path, manifests: Iterable[Path], out: Path) -> None:
    """Print the summary, and keep it when the campaign is complete."""
    text = summary(tables, figures, recommendation, report)
    print(text, flush=True)
    if missing := missing_reasons(manifests):
        sys.exit("\n".join(["error: some runs have no record; the same command again measures them", *missing]))
    try:
        out.write_text(text + "\n")
    except OSError as error:
        raise unwritable(error, out) from error


if "snakemake" in globals():
    try:
        main(
            Path(snakemake.input.cells).parent,
            Path(snakemake.input.figures[0]).parent,
            Path(snakemake.input.recommendation),
            Path(snakemake.input.report[0]),
            [Path(manifest) for manifest in snakemake.input.manifests],
            Path(snakemake.output[0]),
        )
    except CampaignError as error:
        sys.exit(f"error: {error}")
