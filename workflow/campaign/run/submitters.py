"""Table of submitters, one per launcher, and submission of whole commands.

submitit writes the batch file, calls sbatch, and restarts a driver after a preemption or a time limit. This package and
`campaign.slurm` add features that submitit lacks. Leases are processes without shared memory. Each submits its own job, and one
process polls the queue for all of them. A submission is recorded before sbatch is called, and marked by a token in the job's
comment. Therefore a job is found again after kill -9 of any process, none is lost, and none is submitted twice. Refusals of
sbatch are distinguished: this program waits for the end of a limit, and reports a mistake with its key in the system file. Ended
jobs are judged without accounting. Hosts that fail are excluded, and hosts are reserved or registered again with their composed
devices.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Protocol, cast

from campaign.common.errors import ConfigError, LaunchError
from campaign.common.files import make_directory, write_atomic
from campaign.common.paths import Results
from campaign.common.processes.command import run_command
from campaign.plan.campaign.resolve import Campaign
from campaign.slurm.submitter import DriverStatus, MakeDriver, StillQueuedError, Submission, Submitter
from campaign.spec.system_file import SlurmOptions

__all__ = ["DriverStatus", "StillQueuedError", "Submission", "Submitter", "open_submitter"]

SUBMITTERS: dict[str, str] = {"local": "campaign.run.local_submitter", "slurm": "campaign.slurm.slurm_submitter"}


class _SubmitterModule(Protocol):
    """Interface of a submitter module."""

    def open_submitter(
        self, campaign: Campaign, results: Results, driver: MakeDriver, report: Callable[[str], None]
    ) -> Submitter: ...


def open_submitter(
    campaign: Campaign, results: Results, driver: MakeDriver, report: Callable[[str], None] = print
) -> Submitter:
    """Create the submitter of the campaign's launcher.

    Args:
        campaign: campaign to measure.
        results: results directory.
        driver: function that makes the callable driver for a request.
        report: callback for messages about waiting.
    """
    name = campaign.system.launcher
    if name not in SUBMITTERS:
        raise ConfigError(f"launcher '{name}' is not available; there are: {', '.join(SUBMITTERS)}")
    return cast(_SubmitterModule, import_module(SUBMITTERS[name])).open_submitter(campaign, results, driver, report)


_SBATCH_TIMEOUT_S = 60.0
_JOB_MEMORY = "4G"  # enough for 64 waiting processes and the stages after them


def submit_command(command: Sequence[str], results: Results, options: SlurmOptions) -> str:
    """Submit a command as a job in this directory, and return a message for the user.

    The user's SBATCH_* variables apply to this job. At the job's time limit, Slurm ends the command by SIGTERM. The jobs of
    leases then stay, and the same command continues with them.

    Raises:
        LaunchError: Slurm refuses the job.
        ConfigError: Slurm is not installed on this machine.
    """
    log = results.logs.resolve() / "run.%j.log"
    if "\n" in str(log):
        raise ConfigError(
            f"{str(log.parent)!r} contains a line break, which sbatch does not accept; choose another directory"
        )
    make_directory(log.parent)
    sbatch_options = {
        "job-name": f"{results.campaign}/run",
        "comment": f"campaign={results.campaign}",
        "ntasks": 1,
        "mem": _JOB_MEMORY,
        "output": log,
        "open-mode": "append",
        **options.model_dump(include={"partition", "account", "qos"}, exclude_none=True),
    }
    lines = [f"#SBATCH --{name}={shlex.quote(str(value))}" for name, value in sbatch_options.items()]
    script = results.slurm_state / "run.sh"
    write_atomic(script, "\n".join(["#!/bin/sh", *lines, "#SBATCH --requeue", f"exec {shlex.join(command)}", ""]))
    try:
        answer = run_command(["sbatch", "--parsable", str(script)], _SBATCH_TIMEOUT_S)
    except OSError as error:
        raise ConfigError(
            f"sbatch: Slurm is not installed on this machine ({error.strerror}); leave out --submit"
        ) from error
    if not answer.is_success:
        raise LaunchError(f"sbatch refused {script}: {answer.last_error_line}")
    job_id = answer.out.strip().splitlines()[-1].partition(";")[0]
    return (
        f"submitted job {job_id}, which logs to {str(log).replace('%j', job_id)}; 'scancel {job_id}' ends this job, but not the "
        "jobs of leases"
    )
