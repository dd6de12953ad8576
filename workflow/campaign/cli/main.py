"""The `campaign` command. A command's module is imported when the command is used."""

from __future__ import annotations

from collections.abc import MutableMapping
from importlib import import_module
from typing import Any

import click

from campaign import __version__
from campaign.errors import CampaignError

_MODULES = {
    "archive": "archive",
    "cluster": "cluster",
    "collect": "report",
    "compare": "compare",
    "compose": "compose",
    "fabric": "fabric",
    "figures": "figures",
    "import": "import_logs",
    "init": "init",
    "inventory": "compose",
    "measure": "measure",
    "plan": "plan",
    "recommend": "recommend",
    "redo": "run",
    "release": "compose",
    "report": "report",
    "run": "run",
    "serve": "serve",
    "sql": "sql",
    "status": "status",
    "summary": "report",
    "validate": "plan",
    "verify": "compose",
    "workload": "workload",
}
"""Module of each command in this package."""


class _Commands(click.Group):
    """Loads a command when it is used, and reports a CampaignError as one message without a traceback."""

    def list_commands(self, context: click.Context) -> list[str]:
        return sorted(_MODULES)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        return _command(name) if name in _MODULES else None

    @property
    def commands(self) -> MutableMapping[str, click.Command]:
        return {name: _command(name) for name in sorted(_MODULES)}

    @commands.setter
    def commands(self, commands: MutableMapping[str, click.Command]) -> None:
        pass

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except CampaignError as error:
            click.secho(f"error: {error}", err=True, fg="red")
            context.exit(1)


def _command(name: str) -> click.Command:
    module = import_module(f"campaign.cli.{_MODULES[name]}")
    command: click.Command = getattr(module, "import_logs" if name == "import" else name)
    return command


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="campaign")
def main() -> None:
    """Characterization campaigns on composable infrastructure.

    CAMPAIGN is a campaign file. Default: config/campaign.yaml. Start with 'campaign plan', which changes nothing.
    """


if __name__ == "__main__":
    main()
