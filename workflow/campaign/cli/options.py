"""Arguments and options that several commands share."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import yaml

from campaign.documents.cell import Scalar
from campaign.errors import ConfigError

Command = Callable[..., Any]
ERROR_CODE = "campaign.error_code"
"""Key of click's `meta` under which a command says the exit code of an error, where that is not 1."""
CAMPAIGN_FILE = Path("config/campaign.yaml")
PATH = click.Path(path_type=Path)
# What a campaign file takes.
STEPS = click.IntRange(1, 1_000_000)
WARMUP = click.IntRange(0, 100_000)
FILE = click.Path(path_type=Path, exists=True, dir_okay=False)

results_option = click.option(
    "--results",
    type=PATH,
    default=Path("results"),
    help="Directory of all results. Campaigns on the same system share state in it.",
)
campaign_argument = click.argument("campaign", type=PATH, default=CAMPAIGN_FILE, metavar="[CAMPAIGN]")
# Of finished measurements, wherever they are.
tables_argument = click.argument("source", type=PATH, default=CAMPAIGN_FILE, metavar="[CAMPAIGN|ARCHIVE|DIRECTORY]")
cells_option = click.option("--where", metavar="EXPRESSION", help='Only cells that match, e.g. "batch >= 8".')
# Of campaigns that are planned and measured.
campaign_option = click.option("--campaign", type=PATH, default=CAMPAIGN_FILE, help="Campaign file.")
where_option = click.option(
    "--where",
    metavar="EXPRESSION",
    help="Only cells that match, e.g. 'batch >= 8'. \"host == 'host3'\" selects cells with a run on that host.",
)
name_option = click.option("--name", help="Name of the composition. Default: the configuration's name.")
_implied_option = click.option(
    "--run-implied", is_flag=True, help="Also run batches that are skipped because a smaller batch ran out of memory."
)
_until_option = click.option(
    "--until",
    metavar="QUESTION",
    help="Choose leases in rounds until it is answered: 'the best configuration is known within 5 %'.",
)
_budget_option = click.option(
    "--budget",
    metavar="AMOUNT",
    help="Choose the most informative runs for this cost: '500 device-hours', or '8 h' of elapsed time.",
)
_assume_option = click.option(
    "--assume",
    metavar="TIME",
    default="",
    help="Time where nothing is known: '10 min a run', 'bert-large: 2 h a run', '30 s to compose'; several with commas.",
)
_learn_option = click.option(
    "--learn-from",
    type=click.Path(path_type=Path, exists=True),
    multiple=True,
    help="Further archive or results directory to learn durations from. May be repeated.",
)


def request_options(*, costs: bool) -> Callable[[Command], Command]:
    """A campaign and which of its runs are meant, which a command gets as `asked`. costs: with a budget, and what to learn from."""

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def called(campaign: Path, results: Path, where: str | None, run_implied: bool, **others: Any) -> Any:
            from campaign.plan.cost.assumption import NOTHING_ASSUMED, parse_assumption  # most commands plan nothing
            from campaign.plan.cost.budget import parse_budget
            from campaign.plan.dag import Request

            budget, learn_from, until = (others.pop(name, None) for name in ("budget", "learn_from", "until"))
            paid = parse_budget(budget) if budget else None
            assumed = parse_assumption(text) if (text := others.pop("assume", "")) else NOTHING_ASSUMED
            asked = Request(
                campaign, results, where, run_implied=run_implied, until=until, budget=paid, learn_from=learn_from or (),
                assumed=assumed,
            )  # fmt: skip
            return command(asked, **others)

        options = [campaign_argument, where_option, _implied_option, results_option]
        options[3:3] = [_until_option, _budget_option, _assume_option, _learn_option] if costs else []
        return functools.reduce(lambda made, option: option(made), reversed(options), called)

    return decorate


def options_option(command: Command) -> Command:
    """`--option KEY=VALUE`, which a command gets as the mapping `options`; values are what YAML makes of them."""

    @functools.wraps(command)
    def called(options: tuple[str, ...], **others: Any) -> Any:
        return command(options=dict(map(_option, options)), **others)

    return click.option(
        "--option", "options", multiple=True, metavar="KEY=VALUE", help="An option of the workload; may be repeated."
    )(called)


def _option(text: str) -> tuple[str, Scalar]:
    key, equals, value = text.partition("=")
    try:
        read = yaml.safe_load(value)
    except yaml.YAMLError:
        read = value
    if not key or not equals:
        raise ConfigError(f"--option {text}: write KEY=VALUE, as in --option image_px=64")
    return key, read if isinstance(read, str | int | float | bool) else value


def output_option(says: str, **kind: bool) -> Callable[[Command], Command]:
    """`--output`, a path of a kind (`dir_okay`, `file_okay`)."""
    return click.option("--output", type=click.Path(path_type=Path, **kind), help=says)


def dry_run_option(says: str) -> Callable[[Command], Command]:
    return click.option("--dry-run", "-n", is_flag=True, help=says)


def format_option(*styles: str, says: str = "Output format.") -> Callable[[Command], Command]:
    """`--format`, which a command gets as `style`; the first is the default."""
    return click.option("--format", "style", type=click.Choice(styles), default=styles[0], help=says)
