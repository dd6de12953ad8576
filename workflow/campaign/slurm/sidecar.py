"""Auxiliary processes on the hosts of an allocation, next to the runs, until the end of a context (see `Launcher.sidecar`)."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from campaign.common.errors import CampaignError
from campaign.common.processes.child import END_TIMEOUT_S, end_processes, start_process
from campaign.slurm.run_on_hosts import build_srun_prefix, run_slurm_command

_HOST = "{host}"


@contextmanager
def run_slurm_sidecar(
    argv: Sequence[str],
    hosts: Sequence[str],
    environment: Mapping[str, str],
    directory: Path,
    *,
    sees_devices: bool,
) -> Iterator[tuple[str, ...]]:
    """Run an auxiliary process on every host of the allocation, as a step that shares resources with the steps of runs.

    Args:
        argv: command of the process.
        hosts: hosts of the allocation.
        environment: environment of srun.
        directory: directory for the logs.
        sees_devices: True if the processes see all devices of the job; runs can use them at the same time.
    """
    step = directory / "step"
    try:
        words = build_sidecar_argv(argv, hosts, directory, step, sees_devices=sees_devices)
        srun = start_process(words, environment, subprocess.DEVNULL, ends_with_parent=True)
    except (OSError, subprocess.SubprocessError):
        yield ()
        return
    try:
        yield tuple(hosts)
    finally:
        end_processes([srun], lambda: _cancel_step(step))


def build_sidecar_argv(
    argv: Sequence[str], hosts: Sequence[str], directory: Path, step: Path, *, sees_devices: bool
) -> list[str]:
    """Build the srun command of the auxiliary processes.

    Args:
        argv: command of the process.
        hosts: hosts of the allocation.
        directory: directory for the logs.
        step: file to which the id of the step is written.
        sees_devices: True if the processes see all devices of the job.
    """
    words = " ".join(_insert_host(word) for word in argv)
    script = f'echo "$SLURM_JOB_ID.$SLURM_STEP_ID" >{shlex.quote(str(step))}; exec {words}'
    output = f"{str(directory).replace('%', '%%')}/%N.log"
    # The process is not bound to a core, so that it does not take the core of a rank. The kernel schedules it where there is time.
    options = ["--mem=0", "--cpu-bind=none", "--job-name=sidecar", f"--output={output}"]
    if not sees_devices:
        options.append("--gres=none")
    return [*build_srun_prefix(dict.fromkeys(hosts, 1)), *options, "/bin/sh", "-c", script]


def _insert_host(word: str) -> str:
    return '"$SLURMD_NODENAME"'.join(shlex.quote(part) if part else "" for part in word.split(_HOST)) or "''"


def _cancel_step(step: Path) -> None:
    """Kill the step whose id is in a file. A missing file or an unreachable controller is not an error."""
    with suppress(OSError, CampaignError, IndexError):
        run_slurm_command(["scancel", "--signal=KILL", step.read_text(encoding="utf-8").split()[0]], END_TIMEOUT_S)
