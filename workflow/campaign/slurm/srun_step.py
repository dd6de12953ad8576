"""Srun step of a run: its command line, the script that turns each task into a rank, and the end of the step.

The functions are pure, except that they read the files which the script writes.
"""

from __future__ import annotations

import math
import re
import shlex
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from campaign.common.errors import HostFailed, LaunchError
from campaign.common.processes.marked import MARK_VARIABLE
from campaign.slurm.run_on_hosts import build_device_options, build_srun_prefix, find_last_error, parse_launch_failures
from campaign.spec.launch_prefix import DeviceEnvironment
from campaign.workloads.failures import MEMORY_LIMIT_REPORT
from campaign.workloads.launcher import StepLimits
from campaign.workloads.protocol import Step

RANK_MARK = f"{MARK_VARIABLE}_RANK"
"""Variable in the environment of a rank's processes: `MARKER#RANK#`. It identifies the processes that one rank leaves behind."""

# Wall clock, clock since boot, and out-of-memory kills of the task's control group (else of the host), as in
# `launch.local.MemoryKills`. Slurm itself reports those of a group of version 1.
_READ_CLOCKS_SCRIPT = """look() {
  read -r boot idle </proc/uptime
  group=$(sed -n 's/^0:://p' /proc/self/cgroup)
  kills=$(sed -n 's/^oom_kill //p' "/sys/fs/cgroup$group/memory.events" /proc/vmstat 2>/dev/null | head -n 1)
  echo "$1 $(date +%s.%N) $boot ${kills:-0}" >>"$here"
}
"""
# All these lines are in the file after the end of srun. Before, they may be late on a shared file system.
_START_SCRIPT = """here={directory}/rank.$rank
echo "started $SLURM_JOB_ID.$SLURM_STEP_ID $SLURMD_NODENAME" >"$here"
if ! command -v {program} >/dev/null; then
  echo missing >>"$here"
  exit 127
fi
look before
"""
_END_SCRIPT = """look after
echo "ended $code" >>"$here"
exit $code
"""
_SWEEP_SCRIPT = """for round in 1 2 3 4 5 6 7 8 9; do
  left=$(grep -lsF -- {needle} /proc/[0-9]*/environ)
  test -n "$left" || break
  for file in $left; do
    pid=${file#/proc/}
    kill -9 "${pid%/environ}" 2>/dev/null
  done
done
"""
_FAILED_TASKS = re.compile(r"srun: error: [^\s:]+: tasks? ([\d,-]+): (?!Terminated)([^\n]+)")
_LAUNCH_TIMEOUT = re.compile(r"srun: error: timeout waiting for task launch[^\n]*")
_LOST_HOST = re.compile(r"Node failure on (\S+)")
_STARTED, _ENDED, _MISSING, _STOPPED = "started", "ended", "missing", "stopped"
_CLOCK_MARKS = ("before", "after")
_MIN_CLOCK_CHANGE_S = 1.0  # the script reads one clock after the other
_KILL_CODES = (-signal.SIGKILL, -signal.SIGTERM)
_SIGNALS = {member.value for member in signal.Signals}


@dataclass(frozen=True, slots=True)
class StepPlacement:
    """Placement of the ranks of a run.

    Args:
        address: address of rank 0, for the rendezvous.
        port: port of rank 0.
        prefixes: argv that precedes the command of a rank, by rank (0 stands for one program for all ranks).
        devices: names of the devices of the run by host, where they are known.
        environment: additional variables.
        device_environments: command prefix and variables by rank, for ranks whose device needs them.
        masks: variables that hide devices. The first one gets `devices`. The others, which Slurm may have set, are removed.
    """

    address: str
    port: int
    prefixes: Mapping[int, Sequence[str]] = field(default_factory=dict)
    devices: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    device_environments: Mapping[int, DeviceEnvironment] = field(default_factory=dict)
    masks: tuple[str, ...] = ()

    def list_programs(self, step: Step) -> tuple[str, ...]:
        """Return the names of the programs that start the ranks."""
        prefixes = [
            self.device_environments.get(rank, DeviceEnvironment()).prefix for rank in range(step.process_count)
        ]
        return tuple(dict.fromkeys((*prefix, *step.argv)[0] for prefix in prefixes))


def build_sweep_script(marker: str, rank: str = "") -> str:
    """Build shell lines that kill every process of a run, or of one rank (`$rank#`), on their host."""
    return _SWEEP_SCRIPT.replace("{needle}", f"{shlex.quote(f'{RANK_MARK}={marker}#')}{rank}")


def build_rank_script(
    step: Step, placement: StepPlacement, marker: str, directory: Path, *, reaper: Sequence[str] = ()
) -> str:
    """Build the POSIX shell script that srun starts for each task, with the program's argv as arguments.

    The script writes rank.N in `directory`: lines `started STEP HOST`, then `ended CODE` (or `missing` if there is no such
    program).

    Args:
        step: step to run.
        placement: placement of its ranks.
        marker: mark of the run's processes.
        directory: directory for the rank files.
        reaper: command that runs another one, records in the rank file when it is stopped, and ends the processes that it leaves
            behind. Slurm without control groups needs it, because it loses processes that leave their parent, and then waits for
            them as long as they keep the output open.
    """
    task_text = "one rank per task" if step.per_rank else "one program for all ranks"
    text = f"#!/bin/sh\n# Generated for one run: {task_text}.\n" + "".join(
        f"{line}\n" for line in _placement_lines(step, placement)
    )
    quoted_directory, program = shlex.quote(str(directory)), shlex.quote(step.argv[0])
    if prefixes := {
        rank: device_environment.prefix
        for rank, device_environment in placement.device_environments.items()
        if device_environment.prefix
    }:
        text += "".join(f"{line}\n" for line in _case_lines(_prepend_commands(prefixes)))
        program = '"$1"'
    text += _READ_CLOCKS_SCRIPT + _START_SCRIPT.replace("{directory}", quoted_directory).replace("{program}", program)
    # A subshell keeps these variables out of the environment of the later commands.
    text += "(\n" + "".join(f"{line}\n" for line in _program_lines(step, placement, marker, reaper)) + ")\ncode=$?\n"
    if reaper:
        text += build_sweep_script(marker, '"$rank#"')
    return text + _END_SCRIPT


def _placement_lines(step: Step, placement: StepPlacement) -> Iterator[str]:
    """Yield the shell lines that set the variables rank, ranks (of this host) and devices."""
    if not step.per_rank:
        host = next(iter(step.ranks_by_host))
        yield "rank=0" + (f" devices={shlex.quote(placement.devices[host])}" if placement.devices else "")
        return
    first = 0
    yield "case $SLURMD_NODENAME in"
    for host, count in step.ranks_by_host.items():
        devices = f" devices={shlex.quote(placement.devices[host])}" if placement.devices else ""
        yield f"{shlex.quote(host)}) first={first} ranks={count}{devices} ;;"
        first += count
    yield '*) echo "$SLURMD_NODENAME is not a host of this run" >&2; exit 125 ;;'
    yield "esac"
    yield "rank=$((first + SLURM_LOCALID))"


def _program_lines(step: Step, placement: StepPlacement, marker: str, reaper: Sequence[str]) -> Iterator[str]:
    world = str(len(step.rank_locations))
    if step.per_rank:
        rank_variables = {"RANK": "$rank", "LOCAL_RANK": "$SLURM_LOCALID", "LOCAL_WORLD_SIZE": "$ranks"}
        rank_variables |= {"CAMPAIGN_HOST": "$SLURMD_NODENAME", "CAMPAIGN_HOST_RANK": "$SLURM_LOCALID"}
        step_variables = {
            "WORLD_SIZE": world,
            "MASTER_ADDR": placement.address,
            "MASTER_PORT": str(placement.port),
            **placement.environment,
        }
    else:
        rank_variables, step_variables = (
            {},
            {
                "CAMPAIGN_RANKS": world,
                "CAMPAIGN_HOSTS": ",".join(step.ranks_by_host),
                **_single_program_variables(step),
            },
        )
        # mpirun and srun must see the hosts and ranks of the run, and not the single task that starts them.
        yield "unset SLURM_PROCID SLURM_LOCALID SLURM_NODEID SLURM_STEPID SLURM_MEM_PER_CPU SLURM_MEM_PER_NODE SLURM_CPU_BIND"
        yield "unset SLURM_STEP_NODELIST SLURM_STEP_NUM_NODES SLURM_STEP_NUM_TASKS SLURM_STEP_TASKS_PER_NODE SLURM_DISTRIBUTION"
    if placement.devices:
        rank_variables[placement.masks[0]] = "$devices"
        if other_masks := placement.masks[1:]:
            yield f"unset {' '.join(other_masks)}"
    words = {**rank_variables, **{name: shlex.quote(value) for name, value in step_variables.items()}}
    # Variables that the workload sets are already in the environment of srun.
    yield from (f"export {name}={word}" for name, word in words.items() if name not in step.environment)
    # These variables override all other settings of devices, because records state them.
    yield from _case_lines(
        {
            rank: _format_exports(step_variables.environment)
            for rank, step_variables in placement.device_environments.items()
            if step_variables.environment
        }
    )
    yield f"export {MARK_VARIABLE}={shlex.quote(marker)} {RANK_MARK}={shlex.quote(f'{marker}#')}$rank#"
    yield from _case_lines(_prepend_commands(placement.prefixes))
    if reaper:
        yield f'! command -v {shlex.quote(reaper[0])} >/dev/null || set -- {shlex.join(reaper)} "$here" "$@"'
    yield 'exec "$@"'


def _prepend_commands(words: Mapping[int, Sequence[str]]) -> dict[int, str]:
    return {rank: f'set -- {shlex.join(argv)} "$@"' for rank, argv in words.items()}


def _format_exports(environment: Mapping[str, str]) -> str:
    return "export " + " ".join(f"{name}={shlex.quote(value)}" for name, value in environment.items())


def _case_lines(commands: Mapping[int, str]) -> Iterator[str]:
    if commands:
        yield "case $rank in"
        yield from (f"{rank}) {command} ;;" for rank, command in sorted(commands.items()))
        yield "esac"


def _single_program_variables(step: Step) -> dict[str, str]:
    hosts, world = ",".join(step.ranks_by_host), str(len(step.rank_locations))
    count, max_ranks = str(len(step.ranks_by_host)), max(step.ranks_by_host.values())
    return {
        "SLURM_NNODES": count,
        "SLURM_JOB_NUM_NODES": count,
        "SLURM_NODELIST": hosts,
        "SLURM_JOB_NODELIST": hosts,
        "SLURM_NTASKS": world,
        "SLURM_NPROCS": world,
        "SLURM_NTASKS_PER_NODE": str(max_ranks),
        "SLURM_TASKS_PER_NODE": f"{max_ranks}(x{count})" if count != "1" else str(max_ranks),
    }


def build_step_argv(
    step: Step, limits: StepLimits, script: Path, log: Path, *, name: str, gres: str | None, cpus_per_task: int | None
) -> list[str]:
    """Build the srun command of a run.

    Args:
        step: step to run.
        limits: limits of the run.
        script: path of the rank script.
        log: path of the log.
        name: name of the step.
        gres: generic resource of which each rank gets one; with None, the step gets all devices of the job.
        cpus_per_task: processors per task; None to leave this to Slurm.
    """
    counts = step.ranks_by_host if step.per_rank else {next(iter(step.ranks_by_host)): 1}
    argv = build_srun_prefix(counts)
    if gres is not None:
        first = next(iter(step.ranks_by_host.values()))
        argv += _device_options(gres, 1 if step.per_rank else first, list(step.ranks_by_host.values()))
    if step.per_rank and cpus_per_task:
        argv.append(f"--cpus-per-task={cpus_per_task}")
    # 0 requests all memory of the job.
    argv.append(f"--mem={limits.memory_limit_mib or 0}M")
    # The program's output goes to the log. srun's own messages, which describe the ends of ranks, stay separate.
    argv += [f"--job-name={name}", f"--output={str(log).replace('%', '%%')}", "--open-mode=append"]
    return [*argv, *step.srun, "/bin/sh", str(script), *step.argv]


def _device_options(gres: str, count_per_task: int, counts_by_host: Sequence[int]) -> list[str]:
    """Build the srun options that request the devices of a step.

    --gres sets the same number on all hosts. If the numbers differ, each task requests its devices.
    """
    if len(set(counts_by_host)) == 1:
        return [f"--gres={gres}:{counts_by_host[0]}"]
    return build_device_options(gres, count_per_task)


def parse_host_memory_mib(job: str) -> float:
    """Parse the memory in MiB of a job on each of its hosts from `scontrol show job --oneliner`.

    Return infinity if the output does not contain it.
    """
    match = re.search(r"\b(?:AllocTRES|TRES)=\S*?mem=([\d.]+)([MGT])\S*?node=(\d+)", job)
    return float(match[1]) * {"M": 1, "G": 1024, "T": 1024**2}[match[2]] / int(match[3]) if match else math.inf


@dataclass(frozen=True, slots=True)
class RankEnd:
    """Content of a rank file.

    Args:
        host: host on which the rank started; None if it did not start.
        step: id of the job step.
        code: exit code; None if the rank did not end by itself.
        missing: True if there was no such program.
        memory_kills: out-of-memory kills that the kernel counted meanwhile.
        clock_set_s: change of the host's clock in seconds.
        stopped: True if the rank was stopped, for a while or for good.
    """

    host: str | None = None
    step: str | None = None
    code: int | None = None
    missing: bool = False
    memory_kills: int = 0
    clock_set_s: float = 0.0
    stopped: bool = False


def read_rank_ends(directory: Path, ranks: int) -> tuple[RankEnd, ...]:
    """Read the files that `build_rank_script` writes and return the end of each rank, by rank."""
    ends = []
    for rank in range(ranks):
        try:
            text = (directory / f"rank.{rank}").read_text(errors="replace", encoding="utf-8")
        except FileNotFoundError:
            text = ""
        ends.append(parse_rank_end(text))
    return tuple(ends)


def parse_rank_end(text: str) -> RankEnd:
    """Parse the text of a rank file into the end of the rank; a torn last line is ignored."""
    host = step = code = None
    is_missing = was_stopped = False
    clock_readings: list[tuple[float, float, int]] = []
    for line in text.splitlines(keepends=True):
        if not line.endswith("\n"):
            break
        match line.split():
            case [word, step_id, name] if word == _STARTED:
                step, host = step_id, name
            case [word, number] if word == _ENDED and number.isdigit():
                code = _convert_shell_code(int(number))
            case [word] if word == _MISSING:
                is_missing = True
            case [word] if word == _STOPPED:
                was_stopped = True
            case [word, wall, boot, kills] if word in _CLOCK_MARKS:
                with suppress(ValueError):  # some versions of `date` print no fractions of a second
                    clock_readings.append((float(wall), float(boot), int(kills)))
    if len(clock_readings) < len(_CLOCK_MARKS):
        return RankEnd(host, step, code, is_missing, stopped=was_stopped)
    before, after = clock_readings
    set_s = after[0] - before[0] - (after[1] - before[1])
    clock_set_s = set_s if abs(set_s) > _MIN_CLOCK_CHANGE_S else 0.0
    return RankEnd(host, step, code, is_missing, after[2] - before[2], clock_set_s, was_stopped)


def _convert_shell_code(code: int) -> int:
    """Convert the exit code of a shell into a negative signal number if a signal ended the process."""
    return 128 - code if code > 128 and code - 128 in _SIGNALS else code


def has_failed_rank(messages: str) -> bool:
    """Return whether srun has reported a failed rank."""
    return _FAILED_TASKS.search(messages) is not None


def list_exit_codes(ends: Sequence[RankEnd], *, ended_by_us: bool) -> tuple[int | None, ...]:
    """Return the exit codes by rank, with None for ranks that this program killed."""
    return tuple(None if ended_by_us and end.code == -signal.SIGKILL else end.code for end in ends)


def find_launch_error(
    code: int, messages: str, tail: str, ends: Sequence[RankEnd], *, ended_by_us: bool, program: str
) -> LaunchError | None:
    """Return the error of Slurm or of a host that makes a step invalid, or None if its end is a result of the workload.

    HostFailed is returned if a host is at fault. An exit code of 0 is no proof of success: srun of Slurm 22.05 exits with 0 if
    a host was set down and resumed during a step, and if a launch timed out.

    Args:
        code: exit code of srun.
        messages: messages of srun.
        tail: end of the output of the step.
        ends: end of each rank.
        ended_by_us: True if this program ended the step.
        program: name of the program, for the message.
    """
    if code == 0 and all(end.code is not None and not end.missing for end in ends):
        return _find_inner_failure(tail)
    if hosts_without_program := sorted({end.host or "?" for end in ends if end.missing}):
        return LaunchError(f"{program}: no such program on {', '.join(hosts_without_program)}")
    if failures := parse_launch_failures(messages):
        failure_text = "; ".join(f"{host}: {reason}" for host, reason in failures.items())
        return HostFailed(f"Slurm could not start a run on {failure_text}", failures)
    if lost_host := _LOST_HOST.search(messages):
        return HostFailed(f"{lost_host[1]} failed during a run: {lost_host[0]}", {lost_host[1]: "failed during a run"})
    if absent_ranks := [str(rank) for rank, end in enumerate(ends) if end.host is None]:
        failure_text = find_last_error(messages) or f"srun ended with exit code {code}"
        return LaunchError(f"Slurm did not start rank {', '.join(absent_ranks)} of {len(ends)}: {failure_text}")
    if MEMORY_LIMIT_REPORT.search(tail) or MEMORY_LIMIT_REPORT.search(messages):
        return None
    return _find_outside_end(messages, tail, ends, ended_by_us)


def _find_inner_failure(tail: str) -> LaunchError | None:
    """Return the failure of Slurm that an srun inside the program reported. The program may still have exited with 0."""
    if lost_host := re.search(rf"srun: error: {_LOST_HOST.pattern}", tail):
        return HostFailed(f"{lost_host[1]} failed during a run: {lost_host[0]}", {lost_host[1]: "failed during a run"})
    if launch_timeout := _LAUNCH_TIMEOUT.search(tail):
        return LaunchError(f"Slurm did not start all ranks: {launch_timeout[0]}; the run will be repeated")
    return None


def _find_outside_end(messages: str, tail: str, ends: Sequence[RankEnd], ended_by_us: bool) -> LaunchError | None:
    step = next(end.step for end in ends if end.step)
    job = step.partition(".")[0]
    step_pattern = rf"(?:STEP {re.escape(step)}|JOB {re.escape(job)})"
    cancellation = re.search(
        rf"\*\*\* {step_pattern} ON (\S+) CANCELLED AT \S+( DUE TO [^*\n]+)?", f"{messages}\n{tail}"
    )
    if cancellation:
        message = (
            "Slurm ended the run "
            f"({cancellation[2].strip().lower() if cancellation[2] else 'cancelled from outside'}): {cancellation[0]}"
        )
        return LaunchError(f"{message}; the run will be repeated")
    if (
        ended_by_us
        or all(end.code is not None for end in ends)
        or any(end.code not in (None, 0, *_KILL_CODES) for end in ends)
    ):
        return None  # a rank has failed by itself
    # The scripts that start the ranks were killed as well, and the workload cannot have done that.
    message = find_last_error(messages) or "srun printed no message"
    return LaunchError(f"step {step} was ended from outside: {message}; the run will be repeated")
