"""Check whether a host sees a directory of this machine: a file is written here and read by a short job on the host."""

from __future__ import annotations

import os
import secrets
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from campaign.common.processes.command import TIMEOUT_EXIT_CODE, run_command
from campaign.slurm.commands import SHOW_HIDDEN, SlurmCommands
from campaign.slurm.listed_hosts import ListedHost, parse_partitions
from campaign.spec.system_file import SlurmOptions

Visibility = Literal["seen", "unseen", "read_only", "no_python", "unknown"]

_ALLOCATION_TIMEOUT_S = 10  # longest wait for the allocation, because the check must not wait in the queue
_STEP_TIMEOUT_S = 30.0
_MAX_DELAY_S = 15
_SITE_VARIABLES = ("SLURM_CONF", "SLURM_CLUSTERS")
_VIEWS: dict[str, Visibility] = {view: view for view in ("seen", "unseen", "read_only", "no_python")}
# The answer contains the token, an argument of the script, to distinguish it from a site's banners.
_SCRIPT = """waited=0
until test "$(cat "$1/$2" 2>/dev/null)" = "$2"; do
  if test "$waited" -ge "$4"; then echo "$2:unseen"; exit; fi
  sleep 1; waited=$((waited + 1))
done
if ! test -w "$1"; then echo "$2:read_only"
elif ! test -x "$3"; then echo "$2:no_python"
else echo "$2:seen"; fi
"""


@dataclass(frozen=True, slots=True)
class DirectoryView:
    """A host's view of a directory.

    Args:
        view: result of the check.
        problem: message of Slurm if the view is unknown.
    """

    view: Visibility
    problem: str = ""


def choose_free_host(
    names: Iterable[str], hosts_by_name: dict[str, ListedHost], options: SlurmOptions
) -> tuple[str, str | None] | None:
    """Return a host on which a job can start now, and the partition to request.

    The result is None if all hosts are busy, down or powered down. Hosts are not powered up for a check.
    """
    partitions = parse_partitions(options.partition or "")
    for state in ("idle", "mixed"):
        for host in (
            hosts_by_name[name] for name in names if name in hosts_by_name and hosts_by_name[name].state == state
        ):
            # If several partitions were requested, Slurm might choose one without the host.
            common = [name for name in partitions if name in host.partitions]
            if common or not partitions:
                return host.name, common[0] if common else None
    return None


def check_from_host(
    directory: Path, host: str, options: SlurmOptions, latency_s: float, slurm: SlurmCommands | None = None
) -> DirectoryView:
    """Check with a short job whether a host sees a new file in a directory and can run this Python.

    Args:
        directory: absolute path of a directory that this machine can write to.
        host: name of the host.
        options: partition, account, quality of service and reservation of the job.
        latency_s: delay in seconds with which files may appear on the host.
        slurm: runner of Slurm commands whose log gets a line about the call; None for no log.
    """
    job_name = f"check-results-{secrets.token_hex(6)}"
    token = f".{job_name}"
    srun_options = {
        **options.model_dump(include={"partition", "account", "qos"}, exclude_none=True),
        **{name: value for name, value in options.additional.items() if name == "reservation"},
    }
    wait_s = min(int(latency_s), _MAX_DELAY_S)
    argv = ["srun", *(f"--{name}={value}" for name, value in srun_options.items())]
    argv += [
        f"--nodelist={host}",
        "--nodes=1",
        "--ntasks=1",
        "--mem=64M",
        "--time=1",
        f"--immediate={_ALLOCATION_TIMEOUT_S}",
    ]
    argv += [f"--job-name={job_name}", "--chdir=/", "--input=none", "/bin/sh", "-c", _SCRIPT, "sh"]
    argv += [str(directory), token, sys.executable, str(wait_s)]
    # Without these variables, srun starts a new job even inside a job, and personal defaults do not change the request.
    plain = {
        name: value for name, value in os.environ.items() if not name.startswith("SLURM_") or name in _SITE_VARIABLES
    }
    path, started_s, ticks_s = directory / token, time.time(), time.monotonic()
    try:
        path.write_text(token, encoding="utf-8")
        answer = run_command(argv, _ALLOCATION_TIMEOUT_S + wait_s + _STEP_TIMEOUT_S, {**plain, **SHOW_HIDDEN})
        if answer.code == TIMEOUT_EXIT_CODE:
            run_command(["scancel", "--me", f"--name={job_name}"], _STEP_TIMEOUT_S)
    except OSError as error:
        return DirectoryView("unknown", f"{error.filename or 'srun'}: {error.strerror or error}")
    finally:
        with suppress(OSError):
            path.unlink()
    if slurm is not None:
        slurm.log_call(argv[:2], started_s, time.monotonic() - ticks_s, answer.code)
    replies = [line.rpartition(":")[2] for line in answer.out.splitlines() if line.startswith(f"{token}:")]
    view = _VIEWS.get(replies[-1]) if replies else None
    return DirectoryView(view) if view else DirectoryView("unknown", answer.last_error_line)
