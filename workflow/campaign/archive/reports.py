"""The report of an archive, byte for byte the one that the campaign itself gives."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from campaign.archive.reading import opened
from campaign.config.resolve import Campaign
from campaign.report.write import draw_figures, render_report, write_recommendation
from campaign.tables.collect import collect, gather


def report_from_archive(path: Path, out: Path, where: str | None = None) -> None:
    """The page from an archive alone; where: instead of what the archive shows by default."""
    with opened(path) as archive, TemporaryDirectory(prefix="campaign-report-") as scratch:
        report_from(archive.campaign, archive.directory, where or archive.where, Path(scratch), out)


def report_from(campaign: Campaign, results: Path, where: str | None, scratch: Path, out: Path) -> None:
    """Tables and figures into `scratch`, the page into `out`."""
    collect(gather(campaign, results, where), scratch / "tables")
    draw_figures(scratch / "tables", scratch / "figures")
    write_recommendation(scratch / "tables", scratch / "recommendation")
    render_report(scratch / "tables", scratch / "figures", out)
