"""The command `campaign init`: create a project directory for a user's own campaign."""

from __future__ import annotations

import os
from pathlib import Path

import click

from campaign.cli.echo import echo
from campaign.common.errors import ConfigError, convert_os_error
from campaign.common.paths import CONFIG_DIRECTORY, ROOT

PROFILES = ("local", "slurm")
_SNAKEFILE = """\
# This uses the workflow of the installed package composable-campaign as a module. Your own rules can follow.
from campaign.common.paths import SNAKEFILE


module composable_campaign:
    snakefile:
        str(SNAKEFILE)
    config:
        config


use rule * from composable_campaign
"""
_NEXT_STEPS = """
Next, in {directory}:
  campaign plan                    show what would be measured
  campaign run                     measure it on this machine and write results/first/report.html
  snakemake --profile local        the same
  snakemake --profile slurm        the same in Slurm allocations; first set account and partition in profiles/slurm/values.yaml

{guide} explains the files in config/, and {reference} every key."""


@click.command()
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False), default=Path())
def init(directory: Path) -> None:
    """Create a project in DIRECTORY: a campaign, a system and a workload to edit, Snakemake profiles, and a Snakefile.

    The campaign runs in seconds on any machine. Existing files are never changed.
    """
    files = read_project_files()
    if existing := [name for name in (*files, *PROFILES) if os.path.lexists(directory / name)]:
        raise ConfigError(
            f"{directory} already contains {', '.join(existing)}; choose another directory, or move them away"
        )
    try:
        for name, content in files.items():
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            (directory / name).write_bytes(content)
        # Snakemake looks up `--profile` as a directory of this name, and `--workflow-profile` below profiles/.
        for name in PROFILES:
            (directory / name).symlink_to(f"profiles/{name}")
    except OSError as error:
        raise convert_os_error(error, directory) from error
    for name in files:
        echo(directory / name)
    pages = {"guide": CONFIG_DIRECTORY / "README.md", "reference": ROOT / "docs" / "reference" / "configuration.md"}
    echo(_NEXT_STEPS.format(directory=directory.resolve(), **pages))


def read_project_files() -> dict[str, bytes]:
    """Return the content of each file of a new project, by its path in the project directory."""
    starter = CONFIG_DIRECTORY / "starter"
    profiles = sorted((ROOT / "profiles").rglob("*.yaml"))
    return {
        "workflow/Snakefile": _SNAKEFILE.encode(),
        **{f"config/{path.relative_to(starter)}": path.read_bytes() for path in sorted(starter.rglob("*.yaml"))},
        **{str(path.relative_to(ROOT)): path.read_bytes() for path in profiles},
    }
