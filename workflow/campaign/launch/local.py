"""Runs as processes of this machine: ranks forked from a preloaded parent process if there is one, otherwise spawned."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import IO, Any

from campaign.config.system_file import SystemFile
from campaign.errors import LaunchError
from campaign.fabrics.hardware import Composition
from campaign.launch.local_placement import LocalPlacement, RankPlace, open_placement
from campaign.launch.protocol import Limits
from campaign.launch.rank_devices import UsedDevices
from campaign.launch.sidecar import local_sidecar
from campaign.processes.marked import MARK, adopt_orphans, children, end_run, kill_marked, marked, memory_mib
from campaign.processes.namespaces import enter, opened
from campaign.workloads.protocol import Ended, Step

_MEMORY_LOOK_S = 0.1
_PEER_PATIENCE_S = 10.0  # from the first failed rank to the end of the others, which wait for it in a collective
_PARENT_START_S = 300.0  # loading torch from a busy shared file system can take minutes


class LocalLauncher:
    """All hosts of a composition are this machine, or emulated on it."""

    def __init__(self, places: LocalPlacement, devices: UsedDevices) -> None:
        adopt_orphans()
        self._places = places
        self._devices = devices
        self._parents: dict[str, _Parent] = {}

    @property
    def links(self) -> Mapping[str, Any] | None:
        return self._places.links

    def run(self, step: Step, marker: str, log: Path, directory: Path, limits: Limits) -> Ended:
        places = [
            RankPlace(_environment(step, marker, place.environment, given.environment), place.namespaces, given.prefix)
            for place, given in zip(self._places.of(step), self._devices.given(step), strict=True)
        ]
        program = (*places[0].prefix, *step.argv)[0]
        try:
            log.parent.mkdir(parents=True, exist_ok=True)
            # A fork of the parent has no command that words could stand before.
            if step.preload and not any(place.prefix for place in places):
                ended = self._parent(step.preload).run(_module(step), marker, places, log, directory, limits)
            else:
                ended = _spawn(step, marker, places, log, directory, limits)
        except (OSError, ValueError, subprocess.SubprocessError) as error:  # ValueError: a NUL in an argument
            raise LaunchError(f"{program}: could not be started: {error}") from error
        if not self._places.stand():
            raise LaunchError("the emulated hosts ended during a run; the run is repeated")
        return replace(ended, flags=self._places.flags(step))

    def sidecar(self, argv: Sequence[str], directory: Path) -> AbstractContextManager[tuple[str, ...]]:
        return local_sidecar(argv, tuple(self._devices.by_host), self._places, _inherited(), directory)

    def close(self) -> None:
        for parent in self._parents.values():
            parent.close()
        self._parents.clear()
        self._places.close()

    def _parent(self, module: str) -> _Parent:
        if module not in self._parents or not self._parents[module].alive:
            self._parents[module] = _Parent(module)
        return self._parents[module]


def _module(step: Step) -> dict[str, str]:
    """What a rank that is forked instead of started is to be; a step that names no module is the parent's own kind of rank."""
    return {"module": step.argv[2]} if step.argv[1:2] == ("-m",) else {}


def _environment(step: Step, marker: str, place: Mapping[str, str], devices: Mapping[str, str]) -> dict[str, str]:
    one_thread = {"OMP_NUM_THREADS": "1"} if step.per_rank else {}
    # A run uses the devices that its record says, whatever the workload says of them.
    return {**_inherited(), **one_thread, **place, **step.environment, **devices, MARK: marker}


def _inherited() -> dict[str, str]:
    # The driver's own submission must not leak into what it measures.
    return {name: value for name, value in os.environ.items() if not name.startswith("SUBMITIT_")}


def _spawn(step: Step, marker: str, places: Sequence[RankPlace], log: Path, directory: Path, limits: Limits) -> Ended:
    before = children()
    started = time.time()
    processes: list[subprocess.Popen[bytes]] = []
    try:
        with log.open("ab") as output:
            for place in places:
                processes.append(_start((*place.prefix, *step.argv), place, output, directory))
        timed_out, memory_hit = _wait(processes, marker, started, limits)
    finally:
        # Also after success: a program may have left something running in the background.
        end_run(processes, marker, before)
    codes = tuple(process.returncode for process in processes)
    return Ended(codes, started, time.time(), timed_out=timed_out, memory_limit_hit=memory_hit)


def _start(argv: Sequence[str], place: RankPlace, output: IO[bytes], directory: Path) -> subprocess.Popen[bytes]:
    with opened(place.namespaces) as (namespaces,):
        return subprocess.Popen(
            argv,
            env=place.environment,
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            # A group of its own: the terminal's Ctrl-C is the driver's business.
            process_group=0,
            # Not by nsenter: a program that cannot be started would then look like one that failed.
            preexec_fn=partial(enter, namespaces) if namespaces else None,
        )


def _wait(processes: list[subprocess.Popen[bytes]], marker: str, started: float, limits: Limits) -> tuple[bool, bool]:
    """Wait for all; gives (time limit hit, memory limit hit). Returns early when a rank failed and the others hang."""
    poll = select.poll()
    waiting = {}
    try:
        for process in processes:
            descriptor = os.pidfd_open(process.pid)
            waiting[descriptor] = process
            poll.register(descriptor, select.POLLIN)
        deadline = started + limits.time_limit_s
        failed_at: float | None = None
        while waiting:
            now = time.time()
            if now >= deadline:
                return True, False
            if failed_at is not None and now > failed_at + _PEER_PATIENCE_S:
                return False, False
            patience = min(deadline - now, _PEER_PATIENCE_S if failed_at is not None else 1e6)
            if limits.memory_limit_mib is not None:
                if memory_mib(list(marked(marker))) > limits.memory_limit_mib:
                    return False, True
                patience = min(patience, _MEMORY_LOOK_S)
            for descriptor, _ in poll.poll(max(1.0, patience * 1e3)):
                poll.unregister(descriptor)
                os.close(descriptor)
                if waiting.pop(descriptor).wait() != 0 and failed_at is None:
                    failed_at = time.time()
        return False, False
    finally:
        for descriptor in waiting:
            os.close(descriptor)


class _Parent:
    """The long-lived process that has torch loaded and forks ranks (protocol: `campaign.workloads.trainer.forkserver`)."""

    def __init__(self, module: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"{module}.forkserver"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            process_group=0,
        )
        self._buffer = b""
        ready = self._event(time.time() + _PARENT_START_S)
        if ready is None or ready["event"] != "ready":
            self.close()
            message = ready.get("message", ready) if ready else f"no answer within {_PARENT_START_S:g} s"
            raise LaunchError(f"python -m {module}.forkserver: {message}")

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def run(
        self,
        module: Mapping[str, str],
        marker: str,
        places: Sequence[RankPlace],
        log: Path,
        directory: Path,
        limits: Limits,
    ) -> Ended:
        started = time.time()
        ranks = [{"env": dict(place.environment), "log": str(log), "namespaces": place.namespaces} for place in places]
        pids: list[int] = []
        self._send({"id": marker, "ranks": ranks, "cwd": str(directory), **module})
        finished = False
        timed_out = memory_hit = False
        deadline = started + limits.time_limit_s
        try:
            while True:
                look = deadline if limits.memory_limit_mib is None else min(deadline, time.time() + _MEMORY_LOOK_S)
                event = self._event(look if not (timed_out or memory_hit) else time.time() + 30)
                if event is None and (timed_out or memory_hit):
                    raise LaunchError("the parent process of the ranks did not kill a run")
                if event is None:
                    timed_out = time.time() >= deadline
                    memory_hit = not timed_out and memory_mib(pids) > (limits.memory_limit_mib or 1e12)
                    if timed_out or memory_hit:
                        self._send({"kill": marker})
                elif event["event"] == "exited":
                    break
                elif event["event"] == "started":
                    pids = event["pids"]  # a fork's environment shows no mark from outside
                else:
                    raise LaunchError(f"the parent process of the ranks refused a run: {event.get('message', event)}")
            finished = True
        finally:
            if not finished:
                kill_marked(marker)
                self.close()
        hang = tuple(event["exit_hang"])
        # A rank that measured well and then hung in its exit was ended by the parent: its result stands.
        codes = tuple(0 if rank in hang else code for rank, code in enumerate(event["codes"]))
        return Ended(codes, started, time.time(), timed_out, memory_hit, hang)

    def close(self) -> None:
        """End of input ends the parent and every rank of it."""
        if self._process.stdin:
            try:
                self._process.stdin.close()
            except BrokenPipeError:
                self._process.kill()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
        if self._process.stdout:
            self._process.stdout.close()

    def _send(self, message: Mapping[str, Any]) -> None:
        stdin: IO[bytes] | None = self._process.stdin
        if stdin is None:
            raise LaunchError("the parent process of the ranks has ended")
        try:
            stdin.write(json.dumps(message).encode() + b"\n")
            stdin.flush()
        except BrokenPipeError as error:
            raise LaunchError("the parent process of the ranks has ended unexpectedly") from error

    def _event(self, until: float) -> dict[str, Any] | None:
        """Next line from the parent, or None at the time `until`; LaunchError when it has ended."""
        if self._process.stdout is None:
            raise LaunchError("the parent process of the ranks has ended")
        descriptor = self._process.stdout.fileno()
        while b"\n" not in self._buffer:
            if not select.select([descriptor], [], [], max(0.0, until - time.time()))[0]:
                return None
            more = os.read(descriptor, 65536)
            if not more:
                raise LaunchError(
                    f"the parent process of the ranks ended unexpectedly (exit code {self._process.poll()})"
                )
            self._buffer += more
        line, _, self._buffer = self._buffer.partition(b"\n")
        event: dict[str, Any] = json.loads(line)
        return event


def open_launcher(system: SystemFile, composition: Composition) -> LocalLauncher:
    return LocalLauncher(open_placement(system, composition), UsedDevices(composition))
