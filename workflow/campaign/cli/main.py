"""The `campaign` command. The module of a subcommand is imported when the subcommand is used."""

from __future__ import annotations

import errno
import gc
import os
import sys
from collections.abc import MutableMapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from campaign import __version__
from campaign.cli.options import ERROR_CODE_META_KEY
from campaign.cli.practice_cluster import use_practice_cluster
from campaign.cli.source import replace_scratch_path
from campaign.common.errors import CampaignError, convert_os_error
from campaign.common.files import apply_sharing_umask
from campaign.common.processes.signals import SignalInterrupt
from campaign.common.processes.standard_files import open_standard_files, set_utf8_encoding
from campaign.common.wording import escape_control_characters

COMMAND_GROUPS = {
    "Start": {
        "init": ("init", "Create a project directory with a campaign to edit, Snakemake profiles, and a Snakefile."),
        "systems": ("compose", "List the systems that a campaign can name."),
        "workload": ("workload", "List and show workloads, run one once, or read a saved log."),
        "validate": ("validate", "Check a campaign, system, workload or claims file for mistakes."),
    },
    "Plan and run": {
        "plan": ("plan", "Show what would be measured, in which order, and at what cost."),
        "detect": ("detect", "Show how many compositions, runs and steps detect a difference, and their cost."),
        "run": ("run", "Measure the runs that have no record, and write the report, through Snakemake."),
        "status": ("status", "Show the progress of a campaign: what is done, what is running, and what has failed."),
        "logs": ("logs", "Show why runs failed or are missing, and the ends of their logs."),
        "parse": ("parse", "Read the stored logs again with corrected parsers, without measuring."),
        "redo": ("run", "Move matching records aside, so that 'campaign run' measures their runs again."),
        "remove": ("run", "Delete the results of a campaign."),
    },
    "Look at results": {
        "summary": ("report", "Show the findings of a campaign on one screen: what was measured, and what to build."),
        "report": ("report", "Write the report as one HTML page."),
    },
    "Answer questions": {
        "recommend": ("recommend", "Recommend what to build, from measured cells."),
        "compare": ("compare", "Compare campaign B with campaign A, or a campaign with published claims."),
        "published": ("compare", "Compare campaigns with published claims, and count how many of them agree."),
    },
    "Publish and share": {
        "figures": ("report", "Draw the figures of a campaign, for a page or for a paper in LaTeX."),
        "site": ("site", "Write a static website about the results of many campaigns."),
        "archive": ("archive", "Pack a campaign into one file; verify and extract such archives."),
        "import": ("import_logs", "Create records from logs that were written without this program."),
    },
    "Your site": {
        "check": ("check", "Check whether a site is ready: control plane, hosts, Slurm, results directory."),
        "inventory": ("compose", "List the hosts and devices that a system's fabric reports now, and who holds them."),
        "compose": ("compose", "Compose one CONFIGURATION by hand, and keep it until 'campaign release'."),
        "release": ("compose", "Release a composition made by hand, or the leases of dead processes (--orphans)."),
        "verify": ("compose", "Check held devices, or the files of a results directory, and list what is wrong."),
        "fabric": ("fabric", "Check a site's fabric, release what a crash left behind, or start an emulated fabric."),
        "cluster": ("cluster", "Run a local practice cluster: Slurm on emulated hosts of this machine."),
    },
    "Stages that the rules of the workflow call": {
        "measure": ("measure", "Measure the runs of one lease that have no record."),
        "measured": ("measure", "Summarise the runs of a finished plan, and clean up after its leases."),
        "collect": ("report", "Write the tables of a planned campaign from its records."),
    },
}
"""Commands by group: name of the command, and its module in this package with a summary."""
_COMMANDS = {name: entry for group in COMMAND_GROUPS.values() for name, entry in group.items()}
_CLEANUP_HINT = "'campaign fabric reconcile SYSTEM --grace 0' lists the devices that are still held"
_READ_ONLY_MODULES = {"detect", "report", "recommend", "compare", "site"}
"""Modules of commands that start no runs."""


class _LazyCommands(click.Group):
    """Command group that imports a subcommand on first use, and reports a CampaignError as a message without a traceback."""

    def list_commands(self, context: click.Context) -> list[str]:
        """Return the names of all subcommands."""
        return list(_COMMANDS)

    def get_command(self, context: click.Context | None, name: str) -> click.Command | None:
        """Import and return a subcommand, or return None if the name is unknown."""
        if name not in _COMMANDS:
            return None
        if _COMMANDS[name][0] in _READ_ONLY_MODULES:
            # The statistics use small matrices, for which several threads wait for each other and double the processor time.
            os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
            # Arrow's own memory pools do not return memory, so a report of many cells would need a tenth more.
            os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
        module_name = f"campaign.cli.{_COMMANDS[name][0]}"
        is_new = module_name not in sys.modules
        module = import_module(module_name)
        if is_new:
            # The module stays loaded. Collecting its garbage takes a tenth of a short command and makes forks copy its pages.
            gc.freeze()
        command: click.Command = getattr(module, "import_logs" if name == "import" else name)
        return command

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of subcommands into the help text, by group."""
        width = max(map(len, _COMMANDS))
        for group, commands in COMMAND_GROUPS.items():
            with formatter.section(group):
                formatter.write_dl([(name.ljust(width), summary) for name, (_, summary) in commands.items()])

    @property
    def commands(self) -> MutableMapping[str, click.Command]:
        """All subcommands by name. Reading the property imports them all."""
        return {name: command for name in _COMMANDS if (command := self.get_command(None, name))}

    @commands.setter
    def commands(self, commands: MutableMapping[str, click.Command]) -> None:
        pass

    def invoke(self, context: click.Context) -> Any:
        """Run the command. Convert errors and interruptions to a message and an exit status."""
        open_standard_files()
        set_utf8_encoding()
        use_practice_cluster()
        try:
            apply_sharing_umask(Path.cwd())
            return super().invoke(context)
        except SignalInterrupt as interrupted:
            with suppress(OSError):  # The terminal may have been closed.
                click.echo(f"ended by {interrupted}; {_CLEANUP_HINT}", err=True)
            context.exit(128 + interrupted.number)
        except CampaignError as error:
            problem = error
        except OSError as error:
            if error.errno == errno.EPIPE:
                raise  # The reader of the output has closed it. Click then ends without a message.
            problem = convert_os_error(error, "a file")
        click.secho(f"error: {replace_scratch_path(escape_control_characters(str(problem)))}", err=True, fg="red")
        context.exit(context.meta.get(ERROR_CODE_META_KEY, 1))


@click.group(
    cls=_LazyCommands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110, "show_default": True},
)
@click.version_option(__version__, prog_name="campaign")
def main() -> None:
    """Run characterization campaigns on composable infrastructure.

    CAMPAIGN is a campaign file, the results directory of a campaign, or an archive. Default: config/campaign.yaml. Start with
    'campaign init', then 'campaign plan', which changes nothing.
    """


if __name__ == "__main__":
    main()
