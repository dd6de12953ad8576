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
    help="Directory of all results; the state that campaigns on a system share is in it.",
)
campaign_argument = click.argument(
    "campaign", type=click.Path(path_type=Path), default=CAMPAIGN_FILE, metavar="[CAMPAIGN]"
)
# Of finished measurements, wherever they are.
tables_argument = click.argument(
    "source", type=click.Path(path_type=Path), default=CAMPAIGN_FILE, metavar="[CAMPAIGN|ARCHIVE|DIRECTORY]"
)
cells_option = click.option("--where", metavar="EXPRESSION", help='Only cells for which this holds, e.g. "batch >= 8".')
# Of campaigns that are planned and measured.
campaign_option = click.option(
    "--campaign", type=click.Path(path_type=Path), default=CAMPAIGN_FILE, show_default=True, help="Campaign file."
)
where_option = click.option(
    "--where",
    metavar="EXPRESSION",
    help="Only cells for which this holds, as 'batch >= 8'; \"host == 'host3'\" selects the cells that ran on it.",
)
implied_option = click.option(
    "--run-implied", is_flag=True, help="Also run batches that a smaller one implies to run out of memory."
)
budget_option = click.option(
    "--budget",
    metavar="AMOUNT",
    help="Only the runs that tell most for it: '500 device-hours', or '8 h' from start to end.",
)
learn_option = click.option(
    "--learn-from",
    type=click.Path(path_type=Path, exists=True),
    multiple=True,
    help="Archive or results directory to learn costs from, beside all below --results; may be repeated.",
)
name_option = click.option("--name", help="What it is kept under. Default: the configuration's name.")


def format_option(*styles: str, says: str = "How to print it.") -> Callable[[Command], Command]:
    """`--format`, which a command gets as `style`; the first is the default."""
    return click.option("--format", "style", type=click.Choice(styles), default=styles[0], show_default=True, help=says)
