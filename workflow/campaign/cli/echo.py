"""Output of commands that do not load the table library. `echo` prints all text that may contain external names."""

from __future__ import annotations

import sys

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


def confirm(question: str, *, default: bool = False) -> bool:
    """Ask a question that is answered with yes or no. Control characters in it are shown instead of interpreted.

    Raises click.ClickException if there is no terminal that answers. The command must have an option --yes.
    """
    try:
        return click.confirm(escape_control_characters(question), default=default)
    except click.Abort:
        if sys.stdin.isatty():
            raise
        raise click.ClickException(
            "nobody answered the question, and nothing was changed; add --yes to answer yes"
        ) from None
