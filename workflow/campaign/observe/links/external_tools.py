"""External programs that measure links, such as nccl-tests. They are run if they are installed, and their output is parsed.

This module follows the programs' documentation and logs. It is not verified on a machine with several GPUs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from campaign.spec.campaign_file import LinkMeasurement
from campaign.spec.hardware import Composition
from campaign.workloads.launcher import Launcher, StepLimits
from campaign.workloads.log_reader import Log
from campaign.workloads.parsers import RunContext, read_log
from campaign.workloads.protocol import Step

_PARSERS: Mapping[str, str] = {
    "p2pBandwidthLatencyTest": "p2p_bandwidth_latency",
    "nvbandwidth": "nvbandwidth",
    "nccl-tests": "nccl_tests",
    "osu": "osu",
}
_NOT_INSTALLED_CODE = 127
# A shell searches for the program on the host, because the launcher may search on another machine.
_EXEC_IF_INSTALLED = (
    'command -v "$1" >/dev/null 2>&1 || exit 127; command -v "$2" >/dev/null 2>&1 || exit 127; shift 2; exec "$@"'
)


@dataclass(frozen=True)
class _ToolInvocation:
    """One invocation of an external tool: what it measures, its command, and the number of its ranks by host."""

    program: str
    subject: str
    argv: tuple[str, ...]
    ranks_by_host: Mapping[str, int]


def list_invocations(tool: str, ranks_by_host: Mapping[str, int], largest_bytes: int) -> Iterator[_ToolInvocation]:
    """Yield the invocations of a tool on the given hosts. A tool that measures a single host is invoked once per host."""
    hosts, total = list(ranks_by_host), sum(ranks_by_host.values())
    if tool in ("p2pBandwidthLatencyTest", "nvbandwidth"):
        for host, count in ranks_by_host.items():
            yield _ToolInvocation(tool, host, (tool,), {host: count})
    elif tool == "nccl-tests":
        is_single_host = len(hosts) == 1
        argv = (
            "all_reduce_perf",
            "-b",
            "8",
            "-e",
            str(largest_bytes),
            "-f",
            "2",
            "-g",
            str(total) if is_single_host else "1",
        )
        command = argv if is_single_host else ("mpirun", *_format_mpirun_slots(ranks_by_host), *argv)
        yield _ToolInvocation("all_reduce_perf", "all devices", command, ranks_by_host)
    elif tool == "osu":
        ends = {hosts[0]: 1, hosts[-1]: 1} if len(hosts) > 1 else {hosts[0]: 2}
        for program in ("osu_bw", "osu_bibw", "osu_latency"):
            subject = " to ".join(ends) if len(hosts) > 1 else hosts[0]
            yield _ToolInvocation(
                program, f"{program}, {subject}", ("mpirun", *_format_mpirun_slots(ends), program), ranks_by_host
            )


def _format_mpirun_slots(ranks_by_host: Mapping[str, int]) -> tuple[str, ...]:
    places = ",".join(f"{host}:{count}" for host, count in ranks_by_host.items())
    return ("-np", str(sum(ranks_by_host.values())), "--host", places)


@dataclass(frozen=True)
class LinkTestSetup:
    """Everything that a link measurement needs to start its processes.

    Attributes:
        launcher: launcher that starts the steps.
        composition: hosts and devices whose links are measured.
        directory: working directory used only by the measurement.
        marker: value that identifies the processes of the measurement.
        log: file for the output of the processes.
    """

    launcher: Launcher
    composition: Composition
    directory: Path
    marker: str
    log: Path


def run_external_tools(
    setup: LinkTestSetup, settings: LinkMeasurement, largest_bytes: int
) -> tuple[dict[str, Any], list[str]]:
    """Run the configured external tools. Return their readings by tool and invocation, and one message per failure."""
    ranks_by_host = {host.name: len(host.devices) for host in setup.composition.hosts if host.devices}
    log, limits = setup.log, StepLimits(2 * settings.budget_s)
    readings: dict[str, Any] = {}
    problems: list[str] = []
    for tool in settings.tools:
        if tool == "torch" or not ranks_by_host:
            continue
        for number, invocation in enumerate(list_invocations(tool, ranks_by_host, largest_bytes)):
            tool_log = log.with_name(f"{log.stem}.{tool}.{number}{log.suffix}")
            tool_log.unlink(missing_ok=True)
            argv = ("sh", "-c", _EXEC_IF_INSTALLED, "sh", invocation.argv[0], invocation.program, *invocation.argv)
            step = Step(argv, {}, invocation.ranks_by_host, per_rank=False)
            result = setup.launcher.run(step, f"{setup.marker}.{tool}.{number}", tool_log, setup.directory, limits)
            if result.codes[:1] == (_NOT_INSTALLED_CODE,):
                problems.append(
                    f"{tool}: {invocation.program} is not installed on {next(iter(invocation.ranks_by_host))}"
                )
                tool_log.unlink(missing_ok=True)
                break
            if result.timed_out:
                problems.append(f"{tool} ({invocation.subject}) was stopped after {limits.time_limit_s:g} s")
                continue
            reading, problem = _read_tool_log(
                tool, tool_log, invocation.ranks_by_host, is_complete=set(result.codes) == {0}
            )
            readings.setdefault(tool, {})[invocation.subject] = reading
            problems += [f"{tool} ({invocation.subject}): {problem}"] if problem else []
    return readings, problems


def _read_tool_log(
    tool: str, log: Path, ranks_by_host: Mapping[str, int], *, is_complete: bool
) -> tuple[dict[str, Any], str]:
    """Parse the log of a tool. Return the reading as a dict, and the reason if it is incomplete."""
    context = RunContext(ranks=sum(ranks_by_host.values()), hosts=len(ranks_by_host), ended_normally=is_complete)
    reading = read_log(_PARSERS[tool], Log(log), context)
    if is_complete:
        reading = reading.without_cut_off_flag()
    document = {
        "status": reading.status,
        "matrices": {name: vars(part) for name, part in reading.matrices.items()},
        "curves": {name: vars(part) for name, part in reading.curves.items()},
        "metrics": dict(reading.metrics),
        "flags": reading.flags,
    }
    return document, "" if reading.status == "ok" else reading.problem or reading.status
