"""Printing for commands that load no table of a terminal: every text that may hold names from elsewhere goes through `echo`."""

from __future__ import annotations

import click

from campaign.common.wording import printable


def echo(text: object = "", *, err: bool = False, fg: str | None = None) -> None:
    """Print text that may hold names from elsewhere; control characters in it are shown and not obeyed."""
    click.secho(printable(str(text)), err=err, fg=fg)
