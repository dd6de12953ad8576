"""The `campaign` command. A command's module is imported when the command is used."""

from __future__ import annotations

import errno
import gc
import sys
from collections.abc import MutableMapping
from importlib import import_module
from typing import Any

import click

from campaign import __version__
from campaign.cli.options import ERROR_CODE
from campaign.cli.practice_cluster import use_practice_cluster
from campaign.errors import CampaignError, unwritable
from campaign.wording import printable

_COMMANDS = {
    "archive": ("archive", "Pack a campaign into one file; verify, merge and extract such archives."),
    "cluster": ("cluster", "A local practice cluster: Slurm on emulated hosts of this machine."),
    "collect": ("report", "Write the tables of a planned campaign from its records."),
    "compare": ("compare", "Compare campaign B with campaign A, or a campaign with published claims."),
    "compose": ("compose", "Compose one CONFIGURATION by hand and keep it until 'campaign release'."),
    "fabric": ("fabric", "Check a site's fabric, release what a crash left behind, or start an emulated fabric."),
    "figures": ("figures", "Draw the figures of a campaign, an archive, or a results directory."),
    "import": ("import_logs", "Make records from logs that were written without this program."),
    "init": ("init", "Make a directory a project: a campaign to change, Snakemake profiles, and a Snakefile."),
    "inventory": ("compose", "Show the system's hosts and devices, and who holds them."),
    "measure": ("measure", "Measure the runs of one lease that have no record."),
    "plan": ("plan", "Show what would be measured, in which order, and at what cost."),
    "published": ("published", "Show campaigns beside published claims, and how many of these they reach."),
    "recommend": ("recommend", "Recommend what to build, from measured cells and model predictions."),
    "redo": ("run", "Move the records that match aside, so that 'campaign run' measures their runs again."),
    "release": ("compose", "Release a composition that is kept, or what dead processes left (--orphans)."),
    "report": ("report", "Write the report as one HTML page."),
    "run": ("run", "Measure the runs that have no record, and write the report, through Snakemake."),
    "serve": ("serve", "Show the results of all campaigns in a browser."),
    "sql": ("sql", "Run one query over the tables runs, cells, leases, links and telemetry."),
    "status": ("status", "Show what is done, what is running, and what failed so far."),
    "summary": ("report", "Show on one screen what was measured and found."),
    "validate": ("validate", "Check a campaign file and everything it names, or a system or workload file alone."),
    "verify": ("compose", "Read back every composition that is held, device by device."),
    "workload": (
        "workload",
        "List and show workloads, run one once on this machine, trace it for replays, or read a saved log.",
    ),
}
"""Module of each command in this package, and what the command does."""


class _Commands(click.Group):
    """Loads a command when it is used, and reports a CampaignError as one message without a traceback."""

    def list_commands(self, context: click.Context) -> list[str]:
        return sorted(_COMMANDS)

    def get_command(self, context: click.Context | None, name: str) -> click.Command | None:
        if name not in _COMMANDS:
            return None
        path = f"campaign.cli.{_COMMANDS[name][0]}"
        is_new = path not in sys.modules
        module = import_module(path)
        if is_new:
            # It stays: looking through it for garbage takes a tenth of a short command, and has each fork copy its pages.
            gc.freeze()
        command: click.Command = getattr(module, "import_logs" if name == "import" else name)
        return command

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, words) for name, (_, words) in _COMMANDS.items()])

    @property
    def commands(self) -> MutableMapping[str, click.Command]:
        return {name: command for name in _COMMANDS if (command := self.get_command(None, name))}

    @commands.setter
    def commands(self, commands: MutableMapping[str, click.Command]) -> None:
        pass

    def invoke(self, context: click.Context) -> Any:
        use_practice_cluster()
        try:
            return super().invoke(context)
        except CampaignError as error:
            problem = error
        except OSError as error:
            if error.errno == errno.EPIPE:
                raise  # whoever reads the output has seen enough; click ends quietly
            problem = unwritable(error, "a file")
        click.secho(f"error: {printable(str(problem))}", err=True, fg="red")
        context.exit(context.meta.get(ERROR_CODE, 1))


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110, "show_default": True},
)
@click.version_option(__version__, prog_name="campaign")
def main() -> None:
    """Characterization campaigns on composable infrastructure.

    CAMPAIGN is a campaign file. Default: config/campaign.yaml. Start with 'campaign plan', which changes nothing.
    """


if __name__ == "__main__":
    main()
