"""Arguments and options that several commands share."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import yaml

from campaign.cli.source import resolve_source
from campaign.common.errors import ConfigError
from campaign.spec.cell import Scalar

Command = Callable[..., Any]
ERROR_CODE_META_KEY = "campaign.error_code"
"""Key of click's `meta` for the exit code of errors, if a command uses another one than 1."""
CAMPAIGN_FILE = Path("config/campaign.yaml")


class FiniteNumber(click.FloatRange):
    """Parameter type for finite floating-point numbers in a range."""

    def convert(self, value: Any, param: click.Parameter | None, context: click.Context | None) -> Any:
        """Convert a value to a float, and reject infinity and NaN."""
        number = super().convert(value, param, context)
        return number if math.isfinite(number) else self.fail(f"{value} is not a finite number.", param, context)


class _NonEmptyPath(click.Path):
    """Parameter type for paths that are not empty.

    An empty path, as from an unset shell variable, would mean the working directory.
    """

    def convert(self, value: Any, param: click.Parameter | None, context: click.Context | None) -> Any:
        """Convert a value to a path. Reject empty paths and paths with a NUL character."""
        if str(value) == "" or "\0" in str(value):
            self.fail("The path is empty or contains a NUL character; give a file or directory.", param, context)
        return super().convert(value, param, context)


# Click does not check permissions, because our own error also names the owner of the file.
PATH = _NonEmptyPath(path_type=Path, readable=False)
# These are the same ranges as in campaign files.
STEP_COUNT = click.IntRange(1, 1_000_000)
WARMUP_STEP_COUNT = click.IntRange(0, 100_000)
EXISTING_FILE = _NonEmptyPath(path_type=Path, exists=True, dir_okay=False)
_EXISTING_PATH = _NonEmptyPath(path_type=Path, exists=True)

results_option = click.option(
    "--results",
    type=PATH,
    default=Path("results"),
    help="Directory of all results. Campaigns on the same system share state in it.",
)
campaign_argument = click.argument("campaign", type=PATH, default=CAMPAIGN_FILE, metavar="[CAMPAIGN]")
tables_argument = click.argument("source", type=PATH, default=CAMPAIGN_FILE, metavar="[CAMPAIGN]")
cells_option = click.option("--where", metavar="EXPRESSION", help="Use only cells that match, e.g. 'batch >= 8'.")
# Commands that plan and measure campaigns have these options.
campaign_option = click.option("--campaign", "option", type=PATH, hidden=True, help="The campaign, given as an option.")
name_option = click.option("--name", help="Name of the composition. Default: the configuration's name.")


def _build_plan_option(name: str) -> Callable[[Command], Command]:
    """Build the command-line option for a field of `plan.request.PlanRequest`. Its value is text."""
    from campaign.plan.request import OPTIONS  # Imported late, because most commands plan nothing.

    option = OPTIONS[name]
    return click.option(
        f"--{option.flag or name}",
        name,
        help=option.meaning,
        metavar=option.metavar or None,
        is_flag=name == "run_implied",
        multiple=option.repeated,
        type=click.Choice(option.choices) if option.choices else _EXISTING_PATH if option.repeated else None,
    )


def add_source_options(*, changes_results: bool = False) -> Callable[[Command], Command]:
    """Add a campaign argument and `--results` to a command, which receives them as `campaign` and `results`.

    Args:
        changes_results: whether the command changes results. Archives are rejected then.
    """

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def wrapper(campaign: Path, results: Path, **arguments: Any) -> Any:
            campaign, results = resolve_source(campaign, results, changes_results=changes_results)
            return command(campaign=campaign, results=results, **arguments)

        return campaign_argument(results_option(wrapper))

    return decorate


def add_request_options(*groups: str, changes_results: bool = False) -> Callable[[Command], Command]:
    """Add a campaign argument and options of `plan.request` to a command, which receives a PlanRequest as its first argument.

    Args:
        *groups: groups of options of `plan.request` to add.
        changes_results: whether the command changes results. Archives are rejected then.
    """
    from campaign.plan.request import OPTIONS, PlanRequest

    plan_options = {name: option for name, option in OPTIONS.items() if option.group in groups}

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def wrapper(campaign: Path, results: Path, **arguments: Any) -> Any:
            texts = {name: arguments.pop(name) for name in plan_options}
            fields: dict[str, Any] = {
                name: value if isinstance(value, bool) else plan_options[name].read(value)
                for name, value in texts.items()
                if value is not None
            }
            campaign, results = resolve_source(campaign, results, changes_results=changes_results)
            return command(PlanRequest(campaign, results, **fields), **arguments)

        decorated_command: Command = wrapper
        options: list[Callable[[Command], Command]] = [
            campaign_argument,
            *map(_build_plan_option, plan_options),
            results_option,
        ]
        for add_option in reversed(options):
            decorated_command = add_option(decorated_command)
        return decorated_command

    return decorate


def add_workload_option(command: Command) -> Command:
    """Add `--option KEY=VALUE` to a command, which receives a mapping `options`. Values are parsed as YAML."""

    @functools.wraps(command)
    def wrapper(options: tuple[str, ...], **arguments: Any) -> Any:
        return command(options=dict(map(_parse_option, options)), **arguments)

    return click.option(
        "--option", "options", multiple=True, metavar="KEY=VALUE", help="Option of the workload. May be repeated."
    )(wrapper)


def _parse_option(text: str) -> tuple[str, Scalar]:
    """Parse KEY=VALUE into a key and a YAML scalar. Raises ConfigError if the key or the equals sign is missing."""
    key, equals, value = text.partition("=")
    try:
        parsed_value = yaml.safe_load(value)
    except yaml.YAMLError:
        parsed_value = value
    if not key or not equals:
        raise ConfigError(f"--option {text} has no value; write KEY=VALUE, as in --option image_px=64")
    return key, parsed_value if isinstance(parsed_value, str | int | float | bool) else value


def build_output_option(help_text: str, **path_options: bool) -> Callable[[Command], Command]:
    """Return the option `--output`, which is a path.

    Args:
        help_text: help text of the option.
        **path_options: arguments of `click.Path`, such as `dir_okay` and `file_okay`.
    """
    return click.option("--output", type=_NonEmptyPath(path_type=Path, **path_options), help=help_text)


def build_dry_run_option(help_text: str) -> Callable[[Command], Command]:
    """Return the flag `--dry-run` (`-n`) with this help text."""
    return click.option("--dry-run", "-n", is_flag=True, help=help_text)


def build_format_option(*styles: str, help_text: str = "Output format.") -> Callable[[Command], Command]:
    """Return the option `--format`, which a command receives as `style`.

    Args:
        *styles: allowed formats; the first one is the default.
        help_text: help text of the option.
    """
    return click.option("--format", "style", type=click.Choice(styles), default=styles[0], help=help_text)
