"""Allocation of this process: its hosts, the options common to all job steps, and a step that runs a script on every host.

At its time limit, a step is ended by a sweep that kills all processes with the mark of the run on its hosts. Other ways do not
work: with Slurm 22.05 and proctrack/linuxproc, SIGTERM to srun took 6 s and missed processes that had left their parent, and
`srun --wait` also counts from the first rank that ends successfully.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from campaign.common.errors import ConfigError, LaunchError
from campaign.common.processes.command import CompletedCommand, run_command
from campaign.common.wording import pluralize
from campaign.slurm.commands import SHOW_HIDDEN
from campaign.slurm.parse import expand_hosts
from campaign.spec.hardware import ComposedHost, Composition, Device

_RETRY_INTERVAL_S = 2.0

# Options of sbatch and personal defaults must not change the shape of a step, but srun reads these variables as options.
_STEP_SHAPE_VARIABLES = re.compile(
    r"(?:SLURM|SRUN)_(?:NTASKS|NPROCS|NNODES|NUM_NODES|TASKS_PER_NODE|NTASKS_PER_\w+|CPUS_PER_\w+|TRES_\w+|GPUS|GPUS_PER_\w+|"
    r"GPU_BIND|GPU_FREQ|GRES|GRES_FLAGS|MEM_PER_\w+|DISTRIBUTION|EXCLUSIVE|EXACT|WHOLE|OVERLAP|OVERCOMMIT|HINT|THREADS|CPU_BIND\w*|"
    r"MEM_BIND\w*|KILL_BAD_EXIT|WAIT|LABELIO|UNBUFFEREDIO|STD(?:IN|OUT|ERR)MODE|OPEN_MODE|TIMELIMIT|EXPORT_ENV|JOB_NAME|"
    r"RESERVED_PORTS|IMMEDIATE|WORKING_DIR|REQ_SWITCH|NO_KILL|DEBUG|CONSTRAINT|SPREAD_JOB|USE_MIN_NODES|MULTI_PROG|SPLIT|"
    r"STEP_\w+|RELATIVE|EXCLUDES|THREAD_SPEC|CORE_SPEC|NETWORK|HET_SIZE)"
)
# The controller is unreachable or busy; nothing has been started.
_TRANSIENT_ERROR = re.compile(
    r"Unable to contact slurm controller|Socket timed out|Zero Bytes were transmitted|temporarily unable|connect failure|"
    r"Connection refused|Communication connection failure|Transport endpoint"
)
# A controller that has just restarted refuses steps for some seconds, until hosts report their memory and devices again.
_STEP_REFUSED = re.compile(r"Unable to create step")
# A step that ended while the controller was away still holds its resources, because slurmstepd reports its end once a minute.
_RESOURCES_BUSY = re.compile(
    r"Unable to create step[^\n]*(?:Memory required by task is not available|Requested nodes are busy)"
)
_JOB_ENDED = re.compile(
    r"already completing or completed|Invalid job id|Job has been (?:revoked|cancelled)|job allocation .* expired"
)
_JOB_UNKNOWN = re.compile(r"Unable to confirm allocation for job \d+: Invalid job id|is lost: Slurm does not know it")
_MAX_TRANSIENT_RETRY_S, _MAX_BUSY_RETRY_S, _MAX_REFUSED_RETRY_S = 600.0, 90.0, 10.0
_IMMEDIATE_S = 10
_LAUNCH_FAILED = re.compile(r"Task launch for \S+ failed on node (\S+): ([^\n]+)")
# Every line of the script is labelled, to distinguish it from a site's banners and from messages of Slurm.
_LABELLING_SCRIPT = """{ eval "$1" 2>&1 </dev/null; } | while IFS= read -r line || test -n "$line"; do
  printf 'campaign:%s:%s\\n' "$SLURMD_NODENAME" "$line"
done
printf 'campaign:%s.\\n' "$SLURMD_NODENAME"
"""


@dataclass(frozen=True, slots=True)
class HostAnswers:
    """Output of a job step on every host.

    Args:
        lines: output lines by host, for the hosts that answered completely.
        problem: reason why hosts did not answer; empty if all did.
        failed: reason by host, for the hosts at fault, where they are known.
        words: messages of srun itself.
    """

    lines: Mapping[str, tuple[str, ...]]
    problem: str = ""
    failed: Mapping[str, str] = field(default_factory=dict)
    messages: str = ""


def step_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of the job without variables of submitit and variables that change the layout of a step."""
    return {
        name: value
        for name, value in environment.items()
        if not _STEP_SHAPE_VARIABLES.fullmatch(name) and not name.startswith("SUBMITIT_")
    }


def build_srun_prefix(tasks_by_host: Mapping[str, int]) -> list[str]:
    """Build the beginning of an srun command that starts the tasks on each host without waiting for other steps."""
    if len(set(tasks_by_host.values())) == 1:
        placement = [f"--nodelist={','.join(tasks_by_host)}", f"--ntasks-per-node={next(iter(tasks_by_host.values()))}"]
    else:  # Each host is named once per task.
        names = ",".join(host for host, count in tasks_by_host.items() for _ in range(count))
        placement = [f"--nodelist={names}", "--distribution=arbitrary"]
    return [
        "srun",
        f"--nodes={len(tasks_by_host)}",
        placement[0],
        f"--ntasks={sum(tasks_by_host.values())}",
        placement[1],
        "--overlap",
        # Newer versions of Slurm let a step wait for resources that its job does not have. This program retries instead.
        f"--immediate={_IMMEDIATE_S}",
        # A failed rank must not end the others, because their ends distinguish the cause from its consequences.
        "--kill-on-bad-exit=0",
        "--wait=0",
        "--export=ALL",
        "--input=none",
    ]


def run_script_on_hosts(
    hosts: Sequence[str],
    script: str,
    *,
    device_options: Sequence[str] = ("--gres=none",),
    timeout_s: float = 60.0,
    max_retry_s: float = 120.0,
) -> HostAnswers:
    """Run a POSIX shell script once on every host of the allocation and return the output by host.

    Args:
        hosts: names of the hosts.
        script: text of the shell script.
        device_options: srun options that request devices; if empty, the step gets the devices that the job requested.
        timeout_s: time limit of the step in seconds.
        max_retry_s: longest time in seconds for retries while the controller does not respond.
    """
    argv = [
        *build_srun_prefix(dict.fromkeys(hosts, 1)),
        *device_options,
        "--mem=0",
        "--job-name=hosts",
        "/bin/sh",
        "-c",
        _LABELLING_SCRIPT,
        "sh",
        script,
    ]
    retries = RetryBudget(max_retry_s)
    while True:
        code, out, messages = run_slurm_command(argv, timeout_s)
        answers = parse_answers(hosts, code, out, messages)
        if not answers.problem or answers.lines or not retries.allows_retry(messages, _RETRY_INTERVAL_S):
            return answers
        time.sleep(_RETRY_INTERVAL_S)


def build_device_options(gres: str, count: int) -> list[str]:
    """Build the srun options that request this number of devices per task.

    Each task sees all devices of its step on the host. Only GPUs can be requested in this way. For other kinds, the options
    request no devices.

    Args:
        gres: generic resource as in the system file, `gpu` or `gpu:a100`.
        count: number of devices per task.
    """
    kind, _, model = gres.partition(":")
    if kind != "gpu" or not count:
        return ["--gres=none"]
    return [f"--gpus-per-task={f'{model}:' if model else ''}{count}", "--gpu-bind=none"]


def merge_answers(answers: Iterable[HostAnswers]) -> HostAnswers:
    """Merge the answers of several job steps into one."""
    steps = list(answers)
    return HostAnswers(
        {host: lines for step in steps for host, lines in step.lines.items()},
        "; ".join(step.problem for step in steps if step.problem),
        {host: reason for step in steps for host, reason in step.failed.items()},
        "".join(step.messages for step in steps),
    )


class RetryBudget:
    """Time budget for retries of a job step that could not be started.

    The time for which a controller may refuse a step counts from the last time when it was unreachable.

    Args:
        max_total_s: longest total time of the retries in seconds.
        clock: source of the time in seconds.
    """

    def __init__(
        self, max_total_s: float = _MAX_TRANSIENT_RETRY_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._until_s = clock() + max_total_s
        self._since_s = clock()

    def allows_retry(self, messages: str, pause_s: float) -> bool:
        """Return whether another try after a pause is worthwhile, judged by the messages of srun.

        Args:
            messages: messages of srun.
            pause_s: pause before the next try in seconds.
        """
        retry_at_s = self._clock() + pause_s
        wait_s = limit_retry_s(messages)
        if wait_s >= _MAX_TRANSIENT_RETRY_S:
            self._since_s = self._clock()
        return retry_at_s <= min(self._until_s, self._since_s + wait_s)


def limit_retry_s(messages: str) -> float:
    """Return how many seconds to keep retrying a step that did not start, or 0 if srun's messages rule out success."""
    if _LAUNCH_FAILED.search(messages) or _JOB_ENDED.search(messages):
        return 0.0
    if _TRANSIENT_ERROR.search(messages):
        return _MAX_TRANSIENT_RETRY_S
    if _RESOURCES_BUSY.search(messages):
        return _MAX_BUSY_RETRY_S
    return _MAX_REFUSED_RETRY_S if _STEP_REFUSED.search(messages) else 0.0


def is_unknown_job(messages: str) -> bool:
    """Return whether srun or `job_state` reports that the job is unknown to Slurm.

    This happens if a controller is restarted before it has saved the job.
    """
    return bool(_JOB_UNKNOWN.search(messages))


def run_slurm_command(argv: Sequence[str], timeout_s: float) -> CompletedCommand:
    """Run a Slurm command in this allocation, with an environment that does not change its output.

    Raises ConfigError if the command is not installed, and LaunchError if it cannot be started.
    """
    try:
        return run_command(argv, timeout_s, {**step_environment(os.environ), **SHOW_HIDDEN})
    except FileNotFoundError as error:
        raise ConfigError(
            f"{argv[0]}: Slurm is not installed on this machine; `launcher: slurm` works only inside Slurm jobs"
        ) from error
    except OSError as error:
        raise LaunchError(f"{argv[0]}: could not be started: {error}") from error


def parse_answers(hosts: Sequence[str], code: int, out: str, messages: str) -> HostAnswers:
    """Parse the exit code, output and messages of srun into the answers by host. Pure."""
    lines: dict[str, list[str]] = {host: [] for host in hosts}
    complete_hosts = set()
    for line in out.splitlines():
        label, host, text = (*line.split(":", 2), "", "")[:3]
        if label == "campaign" and host in lines and line.startswith(f"campaign:{host}:"):
            lines[host].append(text)
        elif label == "campaign" and host.endswith(".") and host[:-1] in lines:
            complete_hosts.add(host[:-1])
    complete_lines = {host: tuple(lines[host]) for host in hosts if host in complete_hosts}
    if len(complete_lines) == len(hosts):
        return HostAnswers(complete_lines, messages=messages)
    problem = find_last_error(messages) or f"srun ended with exit code {code} and no message"
    # If no host answered and none is named, Slurm refused the step, and no host is at fault.
    silent_hosts = (
        {host: f"did not answer ({problem})" for host in hosts if host not in complete_hosts} if complete_lines else {}
    )
    return HostAnswers(complete_lines, problem, parse_launch_failures(messages) or silent_hosts, messages)


def parse_launch_failures(messages: str) -> dict[str, str]:
    """Return the reason by host for every host on which srun could not start its tasks."""
    return {match[1]: match[2].strip() for match in _LAUNCH_FAILED.finditer(messages)}


def find_last_error(messages: str) -> str:
    """Return the last error line in the messages of srun, or the last line if none is an error."""
    lines = [line.strip() for line in messages.splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"(?:srun|slurmstepd\S*): error: ", line)]
    return (errors or lines or [""])[-1]


def read_allocation_hosts() -> tuple[str, ...]:
    """Return the hosts of the job that this process runs in, in Slurm's order.

    Raises LaunchError if the process is not in a job.
    """
    text = os.environ.get("SLURM_JOB_NODELIST") or os.environ.get("SLURM_NODELIST") or ""
    try:
        hosts = expand_hosts(text)
    except ValueError as error:
        raise LaunchError(f"SLURM_JOB_NODELIST: {error}") from error
    if not hosts:
        raise LaunchError("this process does not run in a Slurm job: SLURM_JOB_NODELIST is not set")
    return hosts


def place_on_hosts(composition: Composition, hosts: tuple[str, ...]) -> Composition:
    """Return the composition moved to the hosts that Slurm chose (`placement: scheduler`).

    A host that is also in the allocation is kept. Every other host of the composition is renamed to an unused host of the
    allocation, in order. Raises LaunchError if the numbers of hosts differ.
    """
    hosts_by_name = {host.name: host for host in composition.hosts}
    if len(hosts) != len(hosts_by_name):
        raise LaunchError(
            f"the allocation has {pluralize(len(hosts), 'host')} ({', '.join(hosts)}), but {len(hosts_by_name)} were requested"
        )
    unmatched_hosts = iter([host for host in composition.hosts if host.name not in hosts])
    return Composition(
        tuple(
            hosts_by_name[name] if name in hosts_by_name else _rename_host(next(unmatched_hosts), name)
            for name in hosts
        )
    )


def _rename_host(host: ComposedHost, name: str) -> ComposedHost:
    """Return the composed host under another name, with its devices and storage renamed accordingly."""

    def rename_device(device: Device) -> Device:
        # The built-in devices of a host are named after it. The names on the new host are unknown.
        fabric_id, location = (
            f"{name}{text.removeprefix(host.name)}" if text.startswith(f"{host.name}/") else text
            for text in (device.fabric_id, device.location)
        )
        attached_to = name if device.attached_to == host.name else device.attached_to
        return replace(device, fabric_id=fabric_id, location=location, attached_to=attached_to, host_id=None)

    devices, storage = (tuple(rename_device(device) for device in group) for group in (host.devices, host.storage))
    return replace(host, name=name, devices=devices, storage=storage)
