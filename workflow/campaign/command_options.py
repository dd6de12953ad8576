"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path

import click

results_option = click.option(
    "--results",
    type=click.Path(path_type=Path),
    default=Path("results"),
    show_default=True,
    help="Directory of all results; the state that campaigns on a system share is in it.",
)
