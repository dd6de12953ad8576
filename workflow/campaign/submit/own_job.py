"""A campaign's own command as a Slurm job: sites that end what runs long on login nodes let it wait there."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from campaign.config.system_file import SlurmOptions
from campaign.errors import ConfigError, LaunchError
from campaign.files import write_atomic
from campaign.paths import Results
from campaign.processes.command import run_command

_SBATCH_S = 60.0
_MEMORY = "2G"  # of 64 processes that wait, and of the stages after them


def submit_command(command: Sequence[str], results: Results, options: SlurmOptions) -> str:
    """Submit a command to run in this directory; gives what to tell. The user's SBATCH_* variables hold for this job.

    At the job's time limit Slurm ends the command by SIGTERM: the jobs of leases stay, and the same command picks them up.
    LaunchError: Slurm refused. ConfigError: there is no Slurm here.
    """
    log = results.logs.resolve() / "run.%j.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    given = {
        "job-name": f"{results.campaign}/run",
        "comment": f"campaign={results.campaign}",
        "ntasks": 1,
        "mem": _MEMORY,
        "output": log,
        "open-mode": "append",
        **options.model_dump(include={"partition", "account", "qos"}, exclude_none=True),
    }
    lines = [f"#SBATCH --{name}={shlex.quote(str(value))}" for name, value in given.items()]
    script = results.slurm / "run.sh"
    write_atomic(script, "\n".join(["#!/bin/sh", *lines, "#SBATCH --requeue", f"exec {shlex.join(command)}", ""]))
    try:
        answer = run_command(["sbatch", "--parsable", str(script)], _SBATCH_S)
    except OSError as error:
        raise ConfigError(
            f"sbatch: there is no Slurm on this machine ({error.strerror}); leave out --submit"
        ) from error
    if not answer.ok:
        raise LaunchError(f"sbatch refused {script}: {answer.words}")
    number = answer.out.strip().splitlines()[-1].partition(";")[0]
    return f"submitted job {number}; it logs to {str(log).replace('%j', number)}; 'scancel {number}' ends it, not the leases' jobs"
