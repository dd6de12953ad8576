"""Runner of Slurm commands that logs each call, so that the load on the controller can be counted.

`campaign.slurm.parse` parses the output of the commands.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from campaign.common.errors import ConfigError
from campaign.common.files import append_json
from campaign.common.processes.command import TIMEOUT_EXIT_CODE, CompletedCommand, run_command

# Personal defaults for these commands would change their output or hide jobs.
_USER_DEFAULT_PREFIXES = ("SQUEUE_", "SACCT_", "SINFO_", "SCONTROL_")

SHOW_HIDDEN = {"SQUEUE_ALL": "1", "SINFO_ALL": "1", "SCONTROL_ALL": "1"}
"""Environment with which squeue, sinfo and scontrol also list the jobs and hosts of hidden partitions (their option `--all`)."""


class SlurmCommands:
    """Callable that runs Slurm commands and logs each call.

    Args:
        log: file that gets one JSON line per call (time_s, argv, seconds, code); it is created with its directory.
    """

    def __init__(self, log: Path | None = None) -> None:
        self.log = log

    def __call__(self, *argv: str, timeout_s: float = 60.0) -> CompletedCommand:
        """Run one command, such as `slurm("squeue", "--me")`, until it ends or `timeout_s` seconds have passed.

        Raises ConfigError if the program is not installed on this machine. Every other failure is returned as a result.
        """
        started_s, ticks_s = time.time(), time.monotonic()
        try:
            answer = run_command(argv, timeout_s, build_command_environment(os.environ))
        except (FileNotFoundError, PermissionError) as error:
            raise ConfigError(
                f"{argv[0]}: Slurm is not installed on this machine ({error.strerror}); start the campaign on a login node of a "
                "cluster, or load the module that provides Slurm's commands; `snakemake --profile local` measures without Slurm"
            ) from error
        self.log_call(argv, started_s, time.monotonic() - ticks_s, answer.code)
        # Partial output of a command that timed out is discarded.
        return answer._replace(out="") if answer.code == TIMEOUT_EXIT_CODE else answer

    def log_call(self, argv: Sequence[str], started_s: float, seconds: float, code: int) -> None:
        """Append one call to the log. Calls that submitit makes (sbatch) are also logged by this method."""
        if self.log is None:
            return
        entry = {"time_s": round(started_s, 3), "argv": list(argv), "seconds": round(seconds, 3), "code": code}
        # A directory that is unwritable for a moment must not end a campaign, so a lost line is accepted.
        with suppress(OSError):
            append_json(self.log, entry)


def build_command_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for Slurm commands, without personal defaults that change their output."""
    variables = {name: value for name, value in environment.items() if not name.startswith(_USER_DEFAULT_PREFIXES)}
    return {**variables, **SHOW_HIDDEN, "SLURM_TIME_FORMAT": "standard"}
