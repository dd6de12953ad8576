"""The command `campaign site`: a static website about the results of many campaigns."""

from __future__ import annotations

from pathlib import Path

import click

from campaign.cli.echo import echo
from campaign.cli.options import PATH, build_output_option
from campaign.cli.terminal import print_warnings
from campaign.common.errors import ConfigError


@click.command()
@click.argument("sources", type=PATH, nargs=-1, required=True, metavar="DIR...")
@build_output_option("Directory of the site. Default: site/.", file_okay=False)
def site(sources: tuple[Path, ...], output: Path | None) -> None:
    """Write a static website about the results of many campaigns: reports, comparisons, and every cell over time.

    DIR is the results directory of a campaign, an archive, or a directory of these. The site consists of files only. Publish it
    with any web server or on a file share. A second call adds campaigns and keeps the existing ones. Pages that would not change
    are not written again. To remove a campaign, delete its directory in the site and run the command again.

    \b
    campaign site results/                      all campaigns of a results directory, into site/
    campaign site archives/ --output /srv/www   all archives of a directory
    """
    from campaign.report.site import campaigns
    from campaign.report.site.write import write_site

    target = output or Path("site")
    problems: list[str] = []
    count = write_site(campaigns.find_sources(sources), target, problems.append)
    print_warnings(problems)
    if not count:
        raise ConfigError(f"{target}: no campaign could be read, so the site is empty")
    echo(f"{target / 'index.html'}: {count} campaign{'' if count == 1 else 's'}")
