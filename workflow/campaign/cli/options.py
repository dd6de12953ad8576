"""Arguments and options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

Command = Callable[..., Any]
CAMPAIGN_FILE = Path("config/campaign.yaml")

results_option = click.option(
    "--results",
    type=click.Path(path_type=Path),
    default=Path("results"),
    show_default=True,
    help="Directory of all results. Campaigns on the same system share state in it.",
)
campaign_argument = click.argument(
    "campaign", type=click.Path(path_type=Path), default=CAMPAIGN_FILE, metavar="[CAMPAIGN]"
)
# Of finished measurements, wherever they are.
tables_argument = click.argument(
    "source", type=click.Path(path_type=Path), default=CAMPAIGN_FILE, metavar="[CAMPAIGN|ARCHIVE|DIRECTORY]"
)
cells_option = click.option("--where", metavar="EXPRESSION", help='Only cells that match, e.g. "batch >= 8".')
# Of campaigns that are planned and measured.
campaign_option = click.option(
    "--campaign", type=click.Path(path_type=Path), default=CAMPAIGN_FILE, show_default=True, help="Campaign file."
)
where_option = click.option(
    "--where",
    metavar="EXPRESSION",
    help="Only cells that match, e.g. 'batch >= 8'. \"host == 'host3'\" selects cells with a run on that host.",
)
implied_option = click.option(
    "--run-implied", is_flag=True, help="Also run batches that are skipped because a smaller batch ran out of memory."
)
budget_option = click.option(
    "--budget",
    metavar="AMOUNT",
    help="Choose the most informative runs for this cost: '500 device-hours', or '8 h' of elapsed time.",
)
learn_option = click.option(
    "--learn-from",
    type=click.Path(path_type=Path, exists=True),
    multiple=True,
    help="Further archive or results directory to learn durations from. May be repeated.",
)
name_option = click.option("--name", help="Name of the composition. Default: the configuration's name.")


def format_option(*styles: str, says: str = "Output format.") -> Callable[[Command], Command]:
    """`--format`, which a command gets as `style`; the first is the default."""
    return click.option("--format", "style", type=click.Choice(styles), default=styles[0], show_default=True, help=says)
