"""Runs as processes of this machine: ranks are forked from a preloaded fork server if there is one, otherwise spawned."""

from __future__ import annotations

import json
import math
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from io import FileIO
from pathlib import Path
from typing import Any, Literal, cast

from campaign.common.accelerators import ACCELERATORS
from campaign.common.accelerators.nvidia import DEVICE_ORDER_ENVIRONMENT
from campaign.common.errors import LaunchError
from campaign.common.files import make_directory
from campaign.common.processes.child import start_process
from campaign.common.processes.disturbances import DISTURBANCE_POLL_INTERVAL_S, DisturbanceMonitor
from campaign.common.processes.marked import (
    MARK_VARIABLE,
    adopt_orphans,
    end_run_processes,
    find_marked_processes,
    list_children,
    measure_memory_mib,
)
from campaign.plan.used_devices import UsedDevices
from campaign.run.local_placement import ProcessPlace, open_placement
from campaign.run.local_sidecar import local_sidecar
from campaign.spec.hardware import Composition
from campaign.spec.launch_prefix import Given
from campaign.spec.system_file import SystemFile
from campaign.workloads.launcher import Limits
from campaign.workloads.protocol import Ended, Step
from campaign.workloads.trainer.rank_interface import result_path

_MEMORY_LOOK_S = 0.1
_PEER_PATIENCE_S = (
    10.0  # from the first failed rank until the remaining ranks, which wait for it in a collective, are ended
)
_EXIT_PATIENCE_S = 10.0  # from the last result file to the end of the ranks
_PARENT_PATIENCE_S = 300.0  # loading torch from a busy shared file system can take minutes

_StopReason = Literal["time limit", "memory limit", "failed rank", "exit hang", "disturbance"]


class LocalLauncher:
    """Launcher that runs all hosts of a composition on this machine, emulated or as mere names."""

    def __init__(self, system: SystemFile, composition: Composition) -> None:
        adopt_orphans()
        self._places = open_placement(system, composition)
        self._devices = UsedDevices(composition, system)
        self._parents: dict[str, _ForkServer] = {}
        self._memory_kills = MemoryKills()

    @property
    def links(self) -> Mapping[str, Any] | None:
        """Description of the emulated links for records, or None if links are not emulated."""
        return self._places.links

    def run(self, step: Step, marker: str, log: Path, directory: Path, limits: Limits) -> Ended:
        """Run a step on this machine to its end, and return how its processes ended.

        Raises LaunchError if the step could not be started or if the emulated hosts ended during the run.

        Args:
            step: step to run.
            marker: mark of its processes.
            log: file that output is appended to.
            directory: working directory.
            limits: time and memory limits.
        """
        places = [
            ProcessPlace(self._environment(step, marker, place, given), place.namespaces, given.prefix)
            for place, given in zip(self._places.of(step), self._given(step), strict=True)
        ]
        program = (*places[0].prefix, *step.argv)[0]
        kills = self._memory_kills.count()
        try:
            make_directory(log.parent)
            # A fork of the parent has no command that words could stand before.
            forked = step.preload and not any(place.prefix for place in places)
            parent = self._parent(step.preload) if step.preload and forked else None
            ended = _run(step, marker, places, log, directory, limits, parent)
        except (OSError, ValueError, subprocess.SubprocessError) as error:  # ValueError: a NUL in an argument
            raise LaunchError(f"{program}: could not be started: {error}") from error
        if not self._places.stand():
            raise LaunchError("the emulated hosts ended during a run; the run is repeated")
        return replace(ended, flags=self._places.flags(step), memory_kills=self._memory_kills.count() - kills)

    def sidecar(self, argv: Sequence[str], directory: Path) -> AbstractContextManager[tuple[str, ...]]:
        """Start an auxiliary process per distinct host, until the end of the context (see `Launcher.sidecar`)."""
        return local_sidecar(argv, tuple(self._devices.by_host), self._places, self._inherited, directory)

    def close(self) -> None:
        """End the fork servers and the emulated hosts."""
        for parent in self._parents.values():
            parent.close()
        self._parents.clear()
        self._places.close()

    @property
    def _inherited(self) -> dict[str, str]:
        # The driver's own submission must not leak into what it measures.
        """Environment of this process without submitit's variables."""
        return {
            **{name: value for name, value in os.environ.items() if not name.startswith("SUBMITIT_")},
            **DEVICE_ORDER_ENVIRONMENT,
        }

    def _given(self, step: Step) -> Sequence[Given]:
        """Return the device environment of each process.

        A mask hides this machine's other devices if their names are known.
        """
        given = self._devices.given(step)
        kind, named = self._devices.named(step)
        if kind is None:
            return given
        if not (kind.mask_per_rank and step.per_rank):  # hosts are only names, and ranks are numbered through
            every = [name for of_host in named.values() for name in of_host]
            named = dict.fromkeys(named, every)
        return self._devices.masked(step, kind, named, given)

    def _environment(self, step: Step, marker: str, place: ProcessPlace, given: Given) -> dict[str, str]:
        """Build the environment of one process from the inherited, step and device variables."""
        one_thread = {"OMP_NUM_THREADS": "1"} if step.per_rank else {}
        # A run uses the devices named in its record, whatever variables the workload sets.
        own = {**self._inherited, **one_thread, **place.environment, **step.environment}
        # A second mask would number what the first has left.
        hidden = {
            mask
            for kind in ACCELERATORS.values()
            if {*kind.mask_variables} & {*given.environment}
            for mask in kind.mask_variables
        }
        return {**{name: own[name] for name in own if name not in hidden}, **given.environment, MARK_VARIABLE: marker}

    def _parent(self, module: str) -> _ForkServer:
        """Return the running fork server of a module, started if necessary."""
        if module not in self._parents or not self._parents[module].alive:
            self._parents[module] = _ForkServer(module)
        return self._parents[module]


def _run(
    step: Step,
    marker: str,
    places: Sequence[ProcessPlace],
    log: Path,
    directory: Path,
    limits: Limits,
    parent: _ForkServer | None,
) -> Ended:
    """Start the processes of a step, wait for them, and end whatever is left.

    Args:
        step: step to run.
        marker: mark of its processes.
        places: placement of each process.
        log: file that output is appended to.
        directory: working directory.
        limits: time and memory limits.
        parent: fork server to fork the ranks from; None to spawn them.
    """
    out = step.environment.get("CAMPAIGN_OUT") if step.preload else None
    results = [result_path(Path(out), int(place.environment["RANK"])) for place in places] if out else []
    for path in results:
        path.unlink(missing_ok=True)
    before = list_children()
    processes: list[_Forked | subprocess.Popen[bytes]] = []
    with DisturbanceMonitor() as disturbances:
        try:
            if parent is not None:
                processes += parent.fork(step, places, log, directory)
            else:
                with log.open("ab") as output:
                    for place in places:
                        words = (*place.prefix, *step.argv)
                        processes.append(start_process(words, place.environment, output, place.namespaces, directory))
            stopped = _wait(processes, marker, disturbances, limits, results)
        finally:
            for process in processes:
                if process.poll() is None:  # a fork's environment shows no mark from outside
                    with suppress(ProcessLookupError):
                        os.killpg(os.getpgid(process.pid), signal.SIGKILL)
            # Also after success: a program may have left something running in the background.
            end_run_processes(processes, marker, before)
        disturbances.check_clocks()
    codes = tuple(process.returncode for process in processes)
    # Results of ranks that measured well and then hung at exit are valid. All other ranks ended by themselves.
    hang = tuple(rank for rank, code in enumerate(codes) if stopped == "exit hang" and code == -signal.SIGKILL)
    return Ended(
        tuple(0 if rank in hang else code for rank, code in enumerate(codes)),
        disturbances.started_s,
        disturbances.ended_s,
        timed_out=stopped == "time limit",
        memory_limit_hit=stopped == "memory limit",
        exit_hang=hang,
        disturbed=disturbances.first_disturbance,
    )


def _wait(
    processes: Sequence[_Forked | subprocess.Popen[bytes]],
    marker: str,
    disturbances: DisturbanceMonitor,
    limits: Limits,
    results: Sequence[Path],
) -> _StopReason | None:
    """Wait for all processes and return None, or return the reason why they have to be ended first.

    Args:
        processes: processes of the step.
        marker: their mark.
        disturbances: observation of disturbances from outside.
        limits: time and memory limits.
        results: files that the ranks write when they have measured.
    """
    poll = select.poll()
    waiting = {}
    looks = False
    failed_at = complete_at = math.inf
    try:
        for process in processes:
            descriptor = os.pidfd_open(process.pid)
            waiting[descriptor] = process
            poll.register(descriptor, select.POLLIN)
        while waiting:
            now = disturbances.elapsed_s
            if results and complete_at > now and all(path.exists() for path in results):
                complete_at = now
            # Not before the first wait: what has just been started has not been stopped yet.
            if looks:
                disturbances.check_processes([process.pid for process in waiting.values()])
            for when, why in (
                (now if disturbances.first_disturbance else math.inf, "disturbance"),
                (limits.time_limit_s, "time limit"),
                (failed_at + _PEER_PATIENCE_S, "failed rank"),
                (complete_at + _EXIT_PATIENCE_S, "exit hang"),
            ):
                if now >= when:
                    return cast(_StopReason, why)
            look_s = DISTURBANCE_POLL_INTERVAL_S
            if limits.memory_limit_mib is not None:
                if (
                    measure_memory_mib(list({*find_marked_processes(marker), *(one.pid for one in waiting.values())}))
                    > limits.memory_limit_mib
                ):
                    return "memory limit"
                look_s = _MEMORY_LOOK_S
            wait_s = min(limits.time_limit_s - now, failed_at + _PEER_PATIENCE_S - now, look_s)
            ended = disturbances.call_with_timeout(lambda s: poll.poll(max(1.0, s * 1e3)), wait_s)
            looks = not ended
            for descriptor, _ in ended:
                poll.unregister(descriptor)
                os.close(descriptor)
                if waiting.pop(descriptor).wait() != 0:
                    failed_at = min(failed_at, disturbances.elapsed_s)
        return None
    finally:
        for descriptor in waiting:
            os.close(descriptor)


class _Forked:
    """Process that this one has forked, or adopted from the fork server: a child like any other."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        return self._reaped(os.WNOHANG)

    def wait(self) -> int | None:
        return self._reaped(0)

    def _reaped(self, options: int) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, options)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode


class _ForkServer:
    """Process that has torch loaded and forks ranks (protocol: `campaign.workloads.trainer.forkserver`)."""

    def __init__(self, module: str) -> None:
        self._argv = [sys.executable, "-m", f"{module}.forkserver"]
        self._process = subprocess.Popen(
            self._argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            process_group=0,
            encoding="utf-8",
        )
        try:
            self.answer()
        except BaseException:
            self.close()
            raise

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def fork(self, step: Step, places: Sequence[ProcessPlace], log: Path, directory: Path) -> list[_Forked]:
        """Fork one process per placement, and return the processes."""
        ranks = [{"env": dict(place.environment), "log": str(log), "namespaces": place.namespaces} for place in places]
        # A step that names no module is the parent's own kind of rank.
        module = {"module": step.argv[2]} if step.argv[1:2] == ("-m",) else {}
        before = list_children() or set()
        try:
            return [_Forked(pid) for pid in self.answer({"ranks": ranks, "cwd": str(directory), **module})["pids"]]
        except BaseException:
            self.close()
            # Ranks that the server forked but could not report; a fork has its parent's command line.
            line = "".join(f"{word}\0" for word in self._argv).encode()
            for pid in (list_children() or set()) - before:
                with suppress(OSError):
                    if Path(f"/proc/{pid}/cmdline").read_bytes() == line:
                        os.kill(pid, signal.SIGKILL)
                        os.waitpid(pid, 0)
            raise

    def answer(self, order: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Send a request to the fork server and return its answer; with None, wait for its start message.

        Raises LaunchError if the fork server has ended or reports a problem.
        """
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        line = ""
        with suppress(BrokenPipeError):
            if order is not None:
                print(json.dumps(order), file=stdin, flush=True)
            if select.select([stdout], [], [], _PARENT_PATIENCE_S)[0]:
                line = stdout.readline()
        found: dict[str, Any] = json.loads(line or '{"problem": "it has ended, or does not answer"}')
        if "problem" in found:
            words = " ".join(self._argv[1:])
            raise LaunchError(f"the parent process of the ranks (python {words}): {found['problem']}")
        return found

    def close(self) -> None:
        """Close the pipes of the fork server, which ends it, and kill it if it does not end in time."""
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(BrokenPipeError):
                if pipe is not None:
                    pipe.close()
        deadline_s = time.monotonic() + _EXIT_PATIENCE_S
        while self._process.poll() is None and time.monotonic() < deadline_s:
            time.sleep(0.002)
        if self._process.poll() is None:
            os.kill(self._process.pid, signal.SIGKILL)
            self._process.wait()


_COUNT = re.compile(rb"^oom_kill (\d+)$", re.MULTILINE)


class MemoryKills:
    """Kernel's count of processes killed for lack of memory: the evidence that a SIGKILL had this cause.

    The count is that of this process's control group if there is one, otherwise of the whole host. A program that this process
    starts
    is in the same group or in one below, which counts here too (version 2). The file with the count is located once.

    Args:
        root: root directory, for tests.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        self._file = next(filter(None, map(_counting, [*_groups(root), root / "proc/vmstat"])), None)

    def count(self) -> int:
        """Return the number of such kills so far, or 0 if the kernel does not count them."""
        found = _COUNT.search(os.pread(self._file.fileno(), 1 << 16, 0)) if self._file else None
        return int(found[1]) if found else 0


def _counting(path: Path) -> FileIO | None:
    """Open a file and return it if it holds the count, otherwise None."""
    try:
        file = path.open("rb", buffering=0)
        return file if _COUNT.search(file.read()) else None
    except OSError:
        return None


def _groups(root: Path) -> list[Path]:
    """List the files of this process's control groups that may hold the count, the nearest first."""
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            found.append(root / "sys/fs/cgroup/memory" / path.strip("/") / "memory.oom_control")
        elif not controllers:
            # A group without the controller is counted by the nearest one above that has it.
            top = root / "sys/fs/cgroup"
            group = top / path.strip("/")
            found += [each / "memory.events" for each in (group, *group.parents) if each.is_relative_to(top)]
    return found
