"""Auxiliary processes beside the runs, one on every host, until the end of a context (see `Launcher.sidecar`)."""

from __future__ import annotations

import ctypes
import os
import shlex
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from campaign.common.errors import CampaignError
from campaign.common.processes.namespaces import enter, opened
from campaign.run.rank_placement import LocalPlacement, ProcessPlace
from campaign.slurm.run_on_hosts import call, over
from campaign.workloads.protocol import Step

_HOST = "{host}"
_END_PATIENCE_S = 5.0
_SET_PARENT_DEATH_SIGNAL = 1  # <linux/prctl.h>
_LIBC = ctypes.CDLL(None)


@contextmanager
def local_sidecar(
    argv: Sequence[str], hosts: Sequence[str], places: LocalPlacement, environment: Mapping[str, str], directory: Path
) -> Iterator[tuple[str, ...]]:
    """On this machine: one process for all hosts that share it, and one on each emulated host."""
    running: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for host, place in _apart(argv, hosts, places).items():
            words = [*place.prefix, *(word.replace(_HOST, host) for word in argv)]
            log = directory / f"{host}.log"
            with suppress(OSError, subprocess.SubprocessError), log.open("wb") as output:
                running[host] = start_process(words, environment, output, place.namespaces, follows=True)
        yield tuple(running)
    finally:
        _end(list(running.values()))


def _apart(argv: Sequence[str], hosts: Sequence[str], places: LocalPlacement) -> dict[str, ProcessPlace]:
    """A place for each host that is not the same as another's."""
    found: dict[tuple[str, ...], tuple[str, ProcessPlace]] = {}
    try:
        each = places.of(Step(tuple(argv), {}, dict.fromkeys(hosts, 1), takes_devices=False))
    except CampaignError:
        return {}
    for host, place in zip(hosts, each, strict=True):
        found.setdefault(place.namespaces, (host, place))
    return dict(found.values())


def start_process(
    argv: Sequence[str],
    environment: Mapping[str, str],
    output: IO[bytes] | int,
    namespaces: Sequence[str] = (),
    directory: Path | None = None,
    *,
    follows: bool = False,
) -> subprocess.Popen[bytes]:
    """A process in these namespaces; follows: it gets SIGTERM when the process that starts it ends."""
    with opened(namespaces) as (descriptors,):

        def prepare() -> None:
            enter(descriptors)
            if follows:
                _LIBC.prctl(_SET_PARENT_DEATH_SIGNAL, ctypes.c_ulong(signal.SIGTERM), 0, 0, 0)

        return subprocess.Popen(
            argv,
            env=environment,
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            # A group of its own: the terminal's Ctrl-C is the driver's business.
            process_group=0,
            # Not by nsenter: a program that cannot be started would then look like one that failed.
            preexec_fn=prepare if descriptors or follows else None,
        )


@contextmanager
def slurm_sidecar(
    argv: Sequence[str],
    hosts: Sequence[str],
    environment: Mapping[str, str],
    directory: Path,
    *,
    looks_at_devices: bool,
) -> Iterator[tuple[str, ...]]:
    """On every host of the allocation, as a step that shares its resources with the steps of runs.

    looks_at_devices: whether the processes see all devices of the job; runs can use them at the same time.
    """
    step = directory / "step"
    try:
        words = step_argv(argv, hosts, directory, step, looks_at_devices=looks_at_devices)
        srun = start_process(words, environment, subprocess.DEVNULL, follows=True)
    except (OSError, subprocess.SubprocessError):
        yield ()
        return
    try:
        yield tuple(hosts)
    finally:
        _end([srun], step)


def step_argv(
    argv: Sequence[str], hosts: Sequence[str], directory: Path, step: Path, *, looks_at_devices: bool
) -> list[str]:
    """The srun command. step: the file to which the step's id is written."""
    words = " ".join(_with_host(word) for word in argv)
    script = f'echo "$SLURM_JOB_ID.$SLURM_STEP_ID" >{shlex.quote(str(step))}; exec {words}'
    output = f"{str(directory).replace('%', '%%')}/%N.log"
    # A rank's core is its own: where there is time for this process, the host's kernel decides.
    options = ["--mem=0", "--cpu-bind=none", "--job-name=sidecar", f"--output={output}"]
    if not looks_at_devices:
        options.append("--gres=none")
    return [*over(dict.fromkeys(hosts, 1)), *options, "/bin/sh", "-c", script]


def _with_host(word: str) -> str:
    return '"$SLURMD_NODENAME"'.join(shlex.quote(part) if part else "" for part in word.split(_HOST)) or "''"


def _end(processes: Sequence[subprocess.Popen[bytes]], step: Path | None = None) -> None:
    """SIGTERM, and SIGKILL where that is not enough. step: file with the id of a step of Slurm."""
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGTERM) if process.poll() is None else None
    for process in processes:
        try:
            process.wait(_END_PATIENCE_S)
        except subprocess.TimeoutExpired:
            with suppress(OSError, CampaignError, IndexError):
                if step is not None:
                    call(["scancel", "--signal=KILL", step.read_text(encoding="utf-8").split()[0]], _END_PATIENCE_S)
            process.kill()
            process.wait()
