from __future__ import annotations

from typing import get_args

import click

from campaign.cli.main import main
from campaign.spec.record import Status
from tests.docs.pages import DOCS, anchors


def test_every_command_is_in_the_reference() -> None:
    found = anchors(DOCS / "reference" / "commands.md")

    def check(command: click.Command, path: str) -> None:
        assert path.replace(" ", "-") in found
        if isinstance(command, click.Group):
            for name, inner in command.commands.items():
                check(inner, f"{path} {name}")

    check(main, "campaign")


def test_every_status_of_a_run_is_in_the_glossary() -> None:
    text = (DOCS / "reference" / "glossary.md").read_text(encoding="utf-8")
    assert all(f"| `{status}` |" in text for status in get_args(Status))
