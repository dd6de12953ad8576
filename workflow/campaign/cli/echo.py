"""Output of commands that do not load the table library. `echo` prints all text that may contain external names."""

from __future__ import annotations

import click

from campaign.common.wording import escape_control_characters


def echo(text: object = "", *, err: bool = False, fg: str | None = None) -> None:
    """Print text that may contain external names. Control characters are shown instead of interpreted.

    Args:
        text: object to print.
        err: whether to print to standard error.
        fg: foreground colour; None for the default.
    """
    click.secho(escape_control_characters(str(text)), err=err, fg=fg)
