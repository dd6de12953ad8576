"""Rule `report`: the page."""

from pathlib import Path

from campaign.report.write import render_report

if "snakemake" in globals():
    render_report(Path(snakemake.input.runs).parent, Path(snakemake.input.figures[0]).parent, Path(snakemake.output[0]))
