"""Launcher that starts runs as processes of this machine.

Ranks are forked from a preloaded fork server if there is one, otherwise spawned.
"""

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
from functools import cached_property
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
from campaign.run.local_placement import ProcessPlacement, open_placement
from campaign.run.local_sidecar import run_local_sidecar
from campaign.spec.hardware import Composition
from campaign.spec.launch_prefix import DeviceEnvironment
from campaign.spec.system_file import SystemFile
from campaign.workloads.launcher import StepLimits
from campaign.workloads.protocol import Step, StepEnd
from campaign.workloads.trainer.rank_interface import result_path

_MEMORY_POLL_INTERVAL_S = 0.1
_PEER_TIMEOUT_S = 10.0  # from the first failed rank to the end of the others, which wait for it in a collective
_EXIT_TIMEOUT_S = 10.0  # from the last result file to the end of the ranks
_FORK_SERVER_TIMEOUT_S = 300.0  # loading torch from a busy shared file system can take minutes

_StopReason = Literal["time limit", "memory limit", "failed rank", "exit hang", "disturbance"]


class LocalLauncher:
    """Launcher that runs all hosts of a composition on this machine, as emulated hosts or merely as names."""

    def __init__(self, system: SystemFile, composition: Composition) -> None:
        adopt_orphans()
        self._places = open_placement(system, composition)
        self._devices = UsedDevices(composition, system)
        self._fork_servers: dict[str, _ForkServer] = {}
        self._memory_kills = OomKillCounter()

    @property
    def links(self) -> Mapping[str, Any] | None:
        """Description of the emulated links for records, or None if links are not emulated."""
        return self._places.links

    def run(self, step: Step, marker: str, log: Path, directory: Path, limits: StepLimits) -> StepEnd:
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
            ProcessPlacement(
                self._build_environment(step, marker, place, device_environment),
                place.namespaces,
                device_environment.prefix,
            )
            for place, device_environment in zip(
                self._places.place_processes(step), self._device_environments(step), strict=True
            )
        ]
        program = (*places[0].prefix, *step.argv)[0]
        kills = self._memory_kills.count()
        try:
            make_directory(log.parent)
            # A forked rank has no command, so a prefix cannot be put before it.
            is_forked = step.preload and not any(place.prefix for place in places)
            fork_server = self._fork_server(step.preload, marker) if step.preload and is_forked else None
            result = _run_processes(step, marker, places, log, directory, limits, fork_server)
        except (OSError, ValueError, subprocess.SubprocessError) as error:  # ValueError: a NUL in an argument
            raise LaunchError(f"{program}: could not be started: {error}") from error
        if not self._places.is_running():
            raise LaunchError("the emulated hosts ended during a run; the run is repeated")
        return replace(result, flags=self._places.list_flags(step), memory_kills=self._memory_kills.count() - kills)

    def sidecar(self, argv: Sequence[str], directory: Path) -> AbstractContextManager[tuple[str, ...]]:
        """Run an auxiliary process on each distinct host until the end of the context (see `Launcher.sidecar`)."""
        return run_local_sidecar(argv, tuple(self._devices.by_host), self._places, self._base_environment, directory)

    def close(self) -> None:
        """End the fork servers and the emulated hosts."""
        for parent in self._fork_servers.values():
            parent.close()
        self._fork_servers.clear()
        self._places.close()

    @cached_property
    def _base_environment(self) -> dict[str, str]:
        """Environment of this process without the variables of submitit, which describe the driver and not the run."""
        return {
            **{name: value for name, value in os.environ.items() if not name.startswith("SUBMITIT_")},
            **DEVICE_ORDER_ENVIRONMENT,
        }

    def _device_environments(self, step: Step) -> Sequence[DeviceEnvironment]:
        """Return the device environment of each process.

        A mask hides this machine's other devices if their names are known.
        """
        environments = self._devices.build_environments(step)
        kind, names_by_host = self._devices.named_devices(step)
        if kind is None:
            return environments
        if not (
            kind.mask_per_rank and step.per_rank
        ):  # Hosts are only names here, so local ranks are numbered across hosts.
            all_names = [name for host_names in names_by_host.values() for name in host_names]
            names_by_host = dict.fromkeys(names_by_host, all_names)
        return self._devices.mask_environments(step, kind, names_by_host, environments)

    def _build_environment(
        self, step: Step, marker: str, place: ProcessPlacement, device_environment: DeviceEnvironment
    ) -> dict[str, str]:
        """Build the environment of one process from the inherited, step and device variables."""
        one_thread = {"OMP_NUM_THREADS": "1"} if step.per_rank else {}
        # A run uses the devices named in its record, whatever variables the workload sets.
        environment = {**self._base_environment, **one_thread, **place.environment, **step.environment}
        # A second mask would number the devices that the first one leaves visible.
        dropped_masks = {
            mask
            for kind in ACCELERATORS.values()
            if {*kind.mask_variables} & {*device_environment.environment}
            for mask in kind.mask_variables
        }
        return {
            **{name: environment[name] for name in environment if name not in dropped_masks},
            **device_environment.environment,
            MARK_VARIABLE: marker,
        }

    def _fork_server(self, module: str, marker: str) -> _ForkServer:
        """Return the running fork server of a module. It is started with the mark of the lease if necessary."""
        if module not in self._fork_servers or not self._fork_servers[module].is_alive:
            self._fork_servers[module] = _ForkServer(module, f"{marker.rpartition('/')[0]}/forkserver")
        return self._fork_servers[module]


def _run_processes(
    step: Step,
    marker: str,
    places: Sequence[ProcessPlacement],
    log: Path,
    directory: Path,
    limits: StepLimits,
    fork_server: _ForkServer | None,
) -> StepEnd:
    """Start the processes of a step, wait for them, and end whatever is left.

    Args:
        step: step to run.
        marker: mark of its processes.
        places: placement of each process.
        log: file that output is appended to.
        directory: working directory.
        limits: time and memory limits.
        fork_server: fork server from which the ranks are forked; None to spawn them.
    """
    results_directory = step.environment.get("CAMPAIGN_OUT") if step.preload else None
    result_files = (
        [result_path(Path(results_directory), int(place.environment["RANK"])) for place in places]
        if results_directory
        else []
    )
    for path in result_files:
        path.unlink(missing_ok=True)
    prior_children = list_children()
    processes: list[_ForkedProcess | subprocess.Popen[bytes]] = []
    with DisturbanceMonitor() as disturbances:
        try:
            if fork_server is not None:
                processes += fork_server.fork_ranks(step, places, log, directory)
            else:
                with log.open("ab") as output:
                    for place in places:
                        command = (*place.prefix, *step.argv)
                        processes.append(start_process(command, place.environment, output, place.namespaces, directory))
            stop_reason = _wait_for_processes(processes, marker, disturbances, limits, result_files)
        finally:
            for process in processes:
                if process.poll() is None:  # The mark of a forked process is not visible from outside.
                    with suppress(ProcessLookupError):
                        os.killpg(os.getpgid(process.pid), signal.SIGKILL)
            # This is also done after success, because a program may leave processes in the background.
            end_run_processes(processes, marker, prior_children)
        disturbances.check_clocks()
    codes = tuple(process.returncode for process in processes)
    # Results of ranks that finished measuring and then hung at exit are valid. All other ranks ended by themselves.
    hung_ranks = tuple(
        rank for rank, code in enumerate(codes) if stop_reason == "exit hang" and code == -signal.SIGKILL
    )
    return StepEnd(
        tuple(0 if rank in hung_ranks else code for rank, code in enumerate(codes)),
        disturbances.started_s,
        disturbances.ended_s,
        timed_out=stop_reason == "time limit",
        memory_limit_hit=stop_reason == "memory limit",
        exit_hang=hung_ranks,
        disturbance=disturbances.first_disturbance,
    )


def _wait_for_processes(
    processes: Sequence[_ForkedProcess | subprocess.Popen[bytes]],
    marker: str,
    disturbances: DisturbanceMonitor,
    limits: StepLimits,
    result_files: Sequence[Path],
) -> _StopReason | None:
    """Wait for all processes and return None, or return the reason why they have to be ended first.

    Args:
        processes: processes of the step.
        marker: their mark.
        disturbances: monitor of disturbances from outside.
        limits: time and memory limits.
        result_files: files that the ranks write after measuring.
    """
    poll = select.poll()
    running_processes = {}
    checks_disturbances = False
    failed_at = complete_at = math.inf
    try:
        for process in processes:
            descriptor = os.pidfd_open(process.pid)
            running_processes[descriptor] = process
            poll.register(descriptor, select.POLLIN)
        while running_processes:
            now_s = disturbances.elapsed_s
            if result_files and complete_at > now_s and all(path.exists() for path in result_files):
                complete_at = now_s
            # The first check follows the first wait, because processes that have just started cannot have been stopped.
            if checks_disturbances:
                disturbances.check_processes([process.pid for process in running_processes.values()])
            for deadline_s, reason in (
                (now_s if disturbances.first_disturbance else math.inf, "disturbance"),
                (limits.time_limit_s, "time limit"),
                (failed_at + _PEER_TIMEOUT_S, "failed rank"),
                (complete_at + _EXIT_TIMEOUT_S, "exit hang"),
            ):
                if now_s >= deadline_s:
                    return cast(_StopReason, reason)
            poll_interval_s = DISTURBANCE_POLL_INTERVAL_S
            if limits.memory_limit_mib is not None:
                if (
                    measure_memory_mib(
                        list(
                            {
                                *find_marked_processes(marker),
                                *(running_process.pid for running_process in running_processes.values()),
                            }
                        )
                    )
                    > limits.memory_limit_mib
                ):
                    return "memory limit"
                poll_interval_s = _MEMORY_POLL_INTERVAL_S
            wait_s = min(limits.time_limit_s - now_s, failed_at + _PEER_TIMEOUT_S - now_s, poll_interval_s)
            events = disturbances.call_with_timeout(lambda s: poll.poll(max(1.0, s * 1e3)), wait_s)
            checks_disturbances = not events
            for descriptor, _ in events:
                poll.unregister(descriptor)
                os.close(descriptor)
                if running_processes.pop(descriptor).wait() != 0:
                    failed_at = min(failed_at, disturbances.elapsed_s)
        return None
    finally:
        for descriptor in running_processes:
            os.close(descriptor)


class _ForkedProcess:
    """Process that was forked by this process or adopted from the fork server."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        return self._reap(os.WNOHANG)

    def wait(self) -> int | None:
        return self._reap(0)

    def _reap(self, options: int) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, options)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode


class _ForkServer:
    """Process that has torch loaded and forks ranks (protocol: `campaign.workloads.trainer.forkserver`)."""

    def __init__(self, module: str, marker: str) -> None:
        self._argv = [sys.executable, "-m", f"{module}.forkserver"]
        self._process = subprocess.Popen(
            self._argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", MARK_VARIABLE: marker},
            process_group=0,
            encoding="utf-8",
        )
        try:
            self.send_request()
        except BaseException:
            self.close()
            raise

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def fork_ranks(
        self, step: Step, places: Sequence[ProcessPlacement], log: Path, directory: Path
    ) -> list[_ForkedProcess]:
        """Fork one process per placement, and return the processes."""
        ranks = [{"env": dict(place.environment), "log": str(log), "namespaces": place.namespaces} for place in places]
        # A step that names no module uses the default module of the fork server.
        module = {"module": step.argv[2]} if step.argv[1:2] == ("-m",) else {}
        prior_children = list_children() or set()
        try:
            return [
                _ForkedProcess(pid)
                for pid in self.send_request({"ranks": ranks, "cwd": str(directory), **module})["pids"]
            ]
        except BaseException:
            self.close()
            # The server may have forked ranks that it could not report. They have the command line of the server.
            command_line = "".join(f"{word}\0" for word in self._argv).encode()
            for pid in (list_children() or set()) - prior_children:
                with suppress(OSError):
                    if Path(f"/proc/{pid}/cmdline").read_bytes() == command_line:
                        os.kill(pid, signal.SIGKILL)
                        os.waitpid(pid, 0)
            raise

    def send_request(self, request: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Send a request to the fork server and return its answer; with None, wait for its start message.

        Raises LaunchError if the fork server has ended or reports a problem.
        """
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        line = ""
        with suppress(BrokenPipeError):
            if request is not None:
                print(json.dumps(request), file=stdin, flush=True)
            if select.select([stdout], [], [], _FORK_SERVER_TIMEOUT_S)[0]:
                line = stdout.readline()
        answer: dict[str, Any] = json.loads(line or '{"problem": "it has ended or does not answer"}')
        if "problem" in answer:
            command = " ".join(self._argv[1:])
            raise LaunchError(f"the process that forks the ranks (python {command}) failed: {answer['problem']}")
        return answer

    def close(self) -> None:
        """Close the pipes of the fork server, which ends it, and kill it if it does not end in time."""
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(BrokenPipeError):
                if pipe is not None:
                    pipe.close()
        deadline_s = time.monotonic() + _EXIT_TIMEOUT_S
        while self._process.poll() is None and time.monotonic() < deadline_s:
            time.sleep(0.002)
        if self._process.poll() is None:
            os.kill(self._process.pid, signal.SIGKILL)
            self._process.wait()


_OOM_KILL_COUNT = re.compile(rb"^oom_kill (\d+)$", re.MULTILINE)


class OomKillCounter:
    """Counter of the processes that the kernel killed for lack of memory. It shows whether a SIGKILL had this cause.

    The count covers the control group of this process if there is one, otherwise the whole host. Programs that this process
    starts are in the same group or in a group below, which is included (version 2). The file with the count is located once.

    Args:
        root: root directory, for tests.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        self._file = next(
            filter(None, map(_open_if_counting, [*_list_counter_files(root), root / "proc/vmstat"])), None
        )

    def count(self) -> int:
        """Return the number of such kills so far, or 0 if the kernel does not count them."""
        match = _OOM_KILL_COUNT.search(os.pread(self._file.fileno(), 1 << 16, 0)) if self._file else None
        return int(match[1]) if match else 0


def _open_if_counting(path: Path) -> FileIO | None:
    """Open a file and return it if it holds the count, otherwise None."""
    try:
        file = path.open("rb", buffering=0)
        return file if _OOM_KILL_COUNT.search(file.read()) else None
    except OSError:
        return None


def _list_counter_files(root: Path) -> list[Path]:
    """List the files of this process's control groups that may hold the count, the nearest first."""
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    paths = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            paths.append(root / "sys/fs/cgroup/memory" / path.strip("/") / "memory.oom_control")
        elif not controllers:
            # If a group lacks the memory controller, the nearest group above that has it counts its kills.
            top = root / "sys/fs/cgroup"
            group = top / path.strip("/")
            paths += [
                directory / "memory.events" for directory in (group, *group.parents) if directory.is_relative_to(top)
            ]
    return paths
