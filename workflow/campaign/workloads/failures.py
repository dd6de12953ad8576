"""Classification of failed runs by their output and exit codes. This module only searches text.

The first signature in the log decides. The first failure is the cause, and messages of other ranks are its consequences.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from campaign.common.accelerators import ACCELERATORS
from campaign.common.errors import LaunchError
from campaign.spec.record import Failure, Status
from campaign.workloads.log_reader import Log

_EVIDENCE_CHARACTERS = 500
_DEVICE_SIGNS = (b"out of memory", b"OOM when allocating", b"pin_memory")
_LABEL = re.compile(r"^ *(\d{1,6}): ")
# The alternatives are the labels of srun --label, of mpirun --tag-output and horovodrun, and of torchrun.
_LINE_PREFIX = r"^(?: *\d+: |\[[^\]\s]{1,60}\]<std(?:out|err)>: ?|\[default\d+\]: ?)?"
_RANK_PREFIX = re.compile(
    r"\[rank ?(\d+)\]|Rank (\d+)\]|\btask (\d+):|\[(?:[^\]\s]*,)?(\d+)\]<std(?:out|err)>|\[default(\d+)\]:"
)
_OOM_KILLER = "the kernel's out-of-memory killer ended the run"
KILLED_FROM_OUTSIDE = "the run was killed by SIGKILL from outside, without a sign of a lack of memory"
PACE_NOT_HELD = "the cores of this machine could not keep the pace of the emulated devices"
DISTURBANCES = (KILLED_FROM_OUTSIDE, PACE_NOT_HELD)
"""Reasons for failures that were possibly not caused by the workload, so that the run is repeated."""
REPEATED = "repeated: an earlier launch was disturbed"
_KILL_EXIT_CODES = {-signal.SIGKILL, 128 + signal.SIGKILL}
_LAUNCHER_EXIT_CODES = _KILL_EXIT_CODES | {-signal.SIGTERM, 128 + signal.SIGTERM}


_Cause = tuple[Status, Failure]


class _Signature:
    """Patterns in a log that indicate one particular cause of failure, with its status and reason."""

    def __init__(self, status: Status, reason: str, *patterns: str) -> None:
        self.status, self.reason = status, reason
        self.pattern = re.compile("|".join(patterns), re.MULTILINE)


_MEMORY_LIMIT_PATTERNS = (
    r"Detected \d+ oom[-_]kill event",
    # Slurm enforces the limit itself; the word in the middle differs between releases.
    r"[Ee]xceeded (?:(?:job|step|task) )?memory limit",
)
MEMORY_LIMIT_REPORT = re.compile("|".join(_MEMORY_LIMIT_PATTERNS))
"""Messages that Slurm prints after it or the kernel has ended a step because of its memory use."""

_TENSORFLOW_OOM = r"OOM when allocating tensor[^\n]*device:GPU"
_OUT_OF_MEMORY = [accelerator.out_of_memory for accelerator in ACCELERATORS.values() if accelerator.out_of_memory]
_DEVICE_OUT_OF_MEMORY = re.compile("|".join((_TENSORFLOW_OOM, *(first for first, *_ in _OUT_OF_MEMORY))))
_KERNEL_OOM_KILL = r"(?:Out of memory|Memory cgroup out of memory): Kill(?:ed)? process \d+"  # from the kernel log
_OOM_DEVICE = _Signature(
    "oom_device",
    "the device ran out of memory",
    *(pattern for patterns in _OUT_OF_MEMORY for pattern in patterns),
    _TENSORFLOW_OOM,
    r"RESOURCE_EXHAUSTED: Out of memory",  # XLA
    r"Failed to CUDA [cm]alloc(?: async)? \d+ bytes",  # NCCL and RCCL, for their own memory
)
# cudaHostAlloc reports "out of memory", too, although the host's memory is meant. Programs that continue without pinned memory
# (TensorFlow, llama.cpp) print other messages, which no pattern here matches.
_PINNED_MEMORY = _Signature(
    "oom_host",
    "the host's memory could not be pinned",
    r"pin_memory(?:\.py\"|\()[^\n]*\n(?:[^\n]*\n){0,5}?[^\n]*(?:CUDA|HIP) error: out of memory",
    r"(?:Cuda failure (?:2 )?'out of memory'[^\n]*\n(?:[^\n]*\n){0,2}?[^\n]*)?Failed to CUDA host alloc \d+ bytes",
)
# These errors occur if the device's memory is full, but also if a library does not support the device.
_FULL_DEVICE = _Signature(
    "oom_device",
    "the device's memory was full, so that a library could not allocate its own memory",
    r"(?:FIND|GET) was unable to find an engine to execute this computation",
    r"CU(?:BLAS|DNN)_STATUS_NOT_INITIALIZED",
    r"CUDNN_STATUS_INTERNAL_ERROR\b",
)
_CAUSES = (
    _PINNED_MEMORY,
    _OOM_DEVICE,
    _Signature(
        "oom_host",
        "the host ran out of memory",
        *_MEMORY_LIMIT_PATTERNS,
        _KERNEL_OOM_KILL,
        r"srun: error: [^\n]*: Out Of Memory",
        r"DefaultCPUAllocator: (?:can't allocate memory|not enough memory)",
        r"std::bad_alloc",
        _LINE_PREFIX + r"(?:\[rank ?\d+\]: ?)?(?:(?:\w+\.)*_ArrayMemoryError|MemoryError)\b",
    ),
    _Signature(
        "comm_timeout",
        "a collective operation exceeded its time limit",
        # NCCL and TIMEOUT alone are no evidence, because dumps of the environment contain both words.
        r"Watchdog caught collective operation timeout: Work\w+\(SeqNum=\d+",
        r"Timed out waiting \d+ms for (?:send|recv) operation",
        r"Timed out after \d+ seconds waiting for clients",
        r"(?:wait|get|barrier) timeout after \d+ms, key",
        r"timed out in monitoredBarrier after \d+",
        # These are messages of gloo: an operation that waited together with one that timed out, and a socket that waited.
        r"Application timeout caused pair closure",
        r"\] (?:Read|Write|Connect) timeout \[",
        r"The client socket has timed out after \d+",
        r"Gloo connectFullMesh failed[^\n]*[Tt]imed? ?out",
    ),
    _Signature(
        "comm_error",
        "the communication library failed",
        *(pattern for accelerator in ACCELERATORS.values() for pattern in accelerator.communication_errors),
        r"gloo::EnforceNotMet",
        r"Received data size doesn't match expected size",
        r"enforce fail at [^\n]*gloo[^\n]*",
    ),
    _Signature("time_limit", "the run reached its time limit", r"CANCELLED AT \S+ DUE TO TIME LIMIT \*\*\*"),
)
# Messages of a rank about another rank that has ended. They count as the cause only if no other cause is found.
_LOST_PEER = _Signature(
    "comm_error",
    "the connection to another rank was lost",
    r"Connection closed by peer",
    r"Connection reset by peer",
    r"Connection refused",
    r"Gloo connectFullMesh failed",
    r"ncclRemoteError",
    r"Broken pipe",
)
# Slurm also cancels a step because one of its ranks failed, so a cancelled step alone is no evidence.
_SLURM_CANCELLATION = re.compile(
    r"\*\*\* (?:(?:JOB|STEP) \S+ ON \S+ CANCELLED AT \S+ DUE TO (PREEMPTION|NODE FAILURE)|JOB \S+ ON \S+ CANCELLED AT \S+) \*\*\*"
)
_STEP_CANCELLED = re.compile(r"\*\*\* STEP \S+ ON \S+ CANCELLED AT \S+ \*\*\*")
_SRUN_TASK = re.compile(r"srun: error: [^\s:]+: tasks? (\d+)[^:\n]*: (?!Terminated)([^\n]+)")
_KILLED_LINE = re.compile(
    _LINE_PREFIX + r"Killed *$|line \d+: +\d+ Killed\b|"
    # The next patterns are for mpirun, torchrun and torch's data loader.
    r"signal 9 \(Killed\)|Signal 9 \(SIGKILL\)|exitcode +: -9\b|killed by signal: Killed",
    re.MULTILINE,
)
_EXCEPTION = re.compile(
    _LINE_PREFIX + r"(?:\[rank ?\d+\]: ?)?((?:\w+\.)*\w*(?:Error|Exception|Interrupt|Exit)): ?[^\n]*$", re.MULTILINE
)
_LAST_ERROR = re.compile(r"Last error:[^\n]*\n[^\n]*")

FAILURE_SIGNS = (
    b"out of memory", b"OOM when", b"_ALLOC_FAILED", b"oom_kill", b"oom-kill", b"emory limit", b"Out Of Memory",
    b"DefaultCPUAllocator", b"bad_alloc", b"MemoryError", b"Watchdog caught", b"Timed out", b"timeout after", b"has timed out",
    b"connectFullMesh", b"ncclSystem", b"ncclUnhandled", b"ncclInternal", b"ncclInvalid", b"ncclRemote", b"EnforceNotMet",
    b"Received data size", b"enforce fail", b"CANCELLED AT", b"Connection closed", b"Connection reset", b"Connection refused",
    b"Broken pipe", b"srun: error", b"Killed", b"Out of memory", b"SIGKILL", b"exitcode",
    b"_OUT_OF_", b"memory_error", b"AllocFailed", b"ALLOCATION_FAILURE", b"CCL_ERROR", b"oneCCL: ",
    b"OutOfMemory", b"MemoryAllocation", b"Last error:", b"Error:", b"Exception:", b"Interrupt:", b"Exit:",
    b"pair closure", b"Read timeout", b"Write timeout", b"Connect timeout", b"monitoredBarrier",
    b"Failed to CUDA", b"pin_memory", b"unable to find an engine", b"CUBLAS_STATUS", b"CUDNN_STATUS",
)  # fmt: skip
"""Byte strings at least one of which occurs in every line that is relevant to `classify_failure`."""


def classify_failure(
    text: str | Log,
    exit_codes: Sequence[int | None],
    *,
    timed_out: bool,
    killed_by_launcher: bool,
    memory_limit_hit: bool = False,
    memory_kills: int = 0,
    device_full: bool = False,
) -> tuple[Status, Failure] | None:
    """Classify the failure of a run. Returns None if all ranks ended with exit code 0 and no limit was reached.

    If the log reports that a device ran out of memory, the run has failed, whatever its exit codes. A program that continued
    without the requested memory did not do all the work of its batch.

    Raises LaunchError if Slurm cancelled, preempted or lost the run. That is not a fault of the workload and is not recorded.

    Args:
        text: output of the run.
        exit_codes: exit codes by rank; negative after a signal, None if unknown.
        timed_out: true if the run reached its time limit.
        killed_by_launcher: true if the launcher itself ended ranks, so that their SIGKILL says nothing about the cause.
        memory_limit_hit: true if the run reached its memory limit.
        memory_kills: number of out-of-memory kills that the kernel counted during the run (`launch.local.MemoryKills`).
        device_full: true if nearly all memory of the device was in use.
    """
    source = Log.from_text(text) if isinstance(text, str) else text
    if not timed_out and not memory_limit_hit and exit_codes and all(code == 0 for code in exit_codes):
        log = "\n".join(source.read_lines(_DEVICE_SIGNS))
        cause = (
            _find_first_cause(log, len(exit_codes), (_PINNED_MEMORY, _OOM_DEVICE))
            if _DEVICE_OUT_OF_MEMORY.search(log)
            else None
        )
        return cause if cause and cause[0] == "oom_device" else None
    log = source.read_excerpt(FAILURE_SIGNS)
    if memory_limit_hit:
        rank = _find_first_rank(exit_codes, _KILL_EXIT_CODES)
        match = MEMORY_LIMIT_REPORT.search(log)
        evidence = _extract_line(log, match) if match else _format_exit_codes(exit_codes)
        return "oom_host", Failure(reason="the run reached its memory limit", evidence=evidence, rank=rank)
    if cause := _find_first_cause(log, len(exit_codes), (*_CAUSES, _FULL_DEVICE) if device_full else _CAUSES):
        return cause
    if timed_out:
        return "time_limit", Failure(reason="the run reached its time limit", evidence=_extract_last_line(log))
    if not killed_by_launcher and (cancellation := _SLURM_CANCELLATION.search(log)):
        raise _build_cancellation_error(log, cancellation)
    return _RunEnd(log, exit_codes, killed_by_launcher, memory_kills).find_cause()


def _build_cancellation_error(log: str, match: re.Match[str]) -> LaunchError:
    """Build the error for a run that Slurm cancelled, from the matched line in its log."""
    reason = (match[1] if match.re is _SLURM_CANCELLATION and match[1] else "cancelled from outside").lower()
    return LaunchError(
        f"Slurm ended the run ({reason}): {_extract_line(log, match)}; run the same command again to measure it"
    )


def _find_first_cause(log: str, ranks: int, causes: Sequence[_Signature]) -> tuple[Status, Failure] | None:
    """Return the status and failure of the cause whose signature occurs first in the log, or None if none occurs."""
    matches = [(match, cause) for cause in causes if (match := cause.pattern.search(log))]
    if not matches:
        return None
    match, cause = min(matches, key=lambda candidate: candidate[0].start())
    evidence = _extract_line(log, match)
    if cause.status == "comm_error" and (last_error := _LAST_ERROR.search(log, match.start())):
        evidence = f"{evidence[: _EVIDENCE_CHARACTERS // 2]}\n{last_error[0]}"
        if specific_cause := next(
            (signature for signature in (_PINNED_MEMORY, _OOM_DEVICE) if signature.pattern.search(last_error[0])), None
        ):
            cause = specific_cause
    return cause.status, Failure(
        reason=cause.reason, evidence=_trim_evidence(evidence), rank=_parse_rank(evidence, ranks)
    )


@dataclass(frozen=True)
class _RunEnd:
    """End of a failed run whose log contains no known signature.

    Attributes:
        killed_by_launcher: true if the launcher itself ended ranks, so that their signals say nothing about the cause.
        memory_kills: number of out-of-memory kills that the kernel counted during the run.
    """

    log: str
    exit_codes: Sequence[int | None]
    killed_by_launcher: bool
    memory_kills: int

    @cached_property
    def own_exit_codes(self) -> list[int | None]:
        """Exit codes by rank, with None for ranks that the launcher ended."""
        return [None if self.killed_by_launcher and code in _LAUNCHER_EXIT_CODES else code for code in self.exit_codes]

    @cached_property
    def lost_peer(self) -> re.Match[str] | None:
        """First line in which a rank reports that another rank has ended."""
        return _LOST_PEER.pattern.search(self.log)

    def find_kill(self) -> _Cause | None:
        """Return status and failure if a rank was killed from outside, else None."""
        line = None if self.killed_by_launcher else _KILLED_LINE.search(self.log)
        rank = _find_first_rank(self.own_exit_codes, _KILL_EXIT_CODES)
        if rank is None and not line:
            return None
        return _classify_kill(
            _extract_line(self.log, line) if line else _format_exit_codes(self.exit_codes), rank, self.memory_kills
        )

    def find_exception(self) -> _Cause | None:
        """Return status and failure if a rank ended with an uncaught exception not caused by a lost peer, else None."""
        for exception in _EXCEPTION.finditer(self.log):
            if not _LOST_PEER.pattern.search(exception[0]):
                evidence, rank = locate_evidence(self.log, exception, len(self.exit_codes))
                reason = f"the run ended with an uncaught {exception[1].rpartition('.')[2]}"
                return "crashed", Failure(reason=reason, evidence=evidence, rank=rank)
        return None

    def find_failed_task(self) -> _Cause | None:
        """Return status and failure if srun reports a failed task, else None."""
        task = _SRUN_TASK.search(self.log)
        if not task:
            return None
        evidence, rank, description = _extract_line(self.log, task), int(task[1]), task[2].strip()
        if description == "Killed" and not self.killed_by_launcher:
            return _classify_kill(evidence, rank, self.memory_kills)
        return "crashed", Failure(reason=f"rank {rank}: {description}", evidence=evidence, rank=rank)

    def find_exit_code(self) -> _Cause | None:
        """Return status and failure if a rank ended with an exit code that a lost peer does not explain, else None."""
        for rank, code in enumerate(self.own_exit_codes):
            # A rank that lost its peer ends with an exception and thus with exit code 1. Any other code is that of the lost rank.
            if code and (self.lost_peer is None or code != 1):
                evidence = _extract_last_line(self.log) or _format_exit_codes(self.exit_codes)
                return "crashed", Failure(
                    reason=f"rank {rank} {_describe_exit_code(code)}", evidence=evidence, rank=rank
                )
        return None

    def find_lost_peer(self) -> _Cause | None:
        """Return status and failure if a rank lost its connection to another rank, else None."""
        if not self.lost_peer:
            return None
        evidence, rank = locate_evidence(self.log, self.lost_peer, len(self.exit_codes))
        return _LOST_PEER.status, Failure(reason=_LOST_PEER.reason, evidence=evidence, rank=rank)

    def find_cause(self) -> _Cause:
        """Return the most specific cause of the failure. Raises LaunchError if the only known cause is a cancellation by Slurm."""
        finders = (
            self.find_kill,
            self.find_exception,
            self.find_failed_task,
            self.find_exit_code,
            self.find_lost_peer,
        )
        for find in finders:
            cause = find()
            if cause:
                return cause
        cancellation = None if self.killed_by_launcher else _STEP_CANCELLED.search(self.log)
        if cancellation:
            raise _build_cancellation_error(self.log, cancellation)
        ended_by_launcher = "the launcher ended the run before it had finished"
        reason = ended_by_launcher if self.killed_by_launcher else "the run did not end, or its end is unknown"
        return "crashed", Failure(reason=reason, evidence=_format_exit_codes(self.exit_codes))


def _describe_exit_code(code: int) -> str:
    """Describe how a rank ended from its exit code, such as 'was ended by SIGSEGV' or 'ended with exit code 3'."""
    number = -code if code < 0 else code - 128
    by_signal = number in {member.value for member in signal.Signals}
    return f"was ended by {signal.Signals(number).name}" if by_signal else f"ended with exit code {code}"


def _classify_kill(evidence: str, rank: int | None, memory_kills: int) -> tuple[Status, Failure]:
    """Classify the failure of a run that SIGKILL ended: as lack of memory only if the kernel counted such a kill.

    People, schedulers and monitoring tools send the same signal.
    """
    if not memory_kills:
        return "crashed", Failure(reason=KILLED_FROM_OUTSIDE, evidence=evidence, rank=rank)
    kill_count = f"number of out-of-memory kills by the kernel during the run: {memory_kills}"
    return "oom_host", Failure(reason=_OOM_KILLER, evidence=_trim_evidence(f"{kill_count}\n{evidence}"), rank=rank)


def _find_first_rank(exit_codes: Sequence[int | None], codes: set[int]) -> int | None:
    """Return the first rank whose exit code is one of the given codes, or None if there is no such rank."""
    return next((rank for rank, code in enumerate(exit_codes) if code in codes), None)


def _format_exit_codes(exit_codes: Sequence[int | None]) -> str:
    """Format the exit codes of all ranks as evidence of a failure."""
    return "exit codes by rank: " + ", ".join("unknown" if code is None else str(code) for code in exit_codes)


def locate_evidence(log: str, match: re.Match[str], ranks: int) -> tuple[str, int | None]:
    """Return the log line that contains a match, as evidence, and the rank named in it (None if there is none)."""
    evidence = _extract_line(log, match)
    return evidence, _parse_rank(evidence, ranks)


def _parse_rank(evidence: str, ranks: int) -> int | None:
    """Parse the number of a rank from a line of evidence. Returns None if the line names no rank.

    Numbers that are not ranks of the run are ignored, unless there is only one exit code. That may be srun's, for any number of
    ranks.
    """
    match = _RANK_PREFIX.search(evidence) or _LABEL.match(evidence)
    number = int(next(group for group in match.groups() if group)) if match else None
    return None if number is None or number >= ranks > 1 else number


def _extract_line(log: str, match: re.Match[str]) -> str:
    """Return the log line that contains a match. If the line is very long, the part before the match is left out."""
    start = log.rfind("\n", 0, match.start()) + 1
    end = log.find("\n", match.end())
    line = log[start : end if end >= 0 else len(log)]
    return _trim_evidence(line if len(line) <= _EVIDENCE_CHARACTERS else log[match.start() :].partition("\n")[0])


def _extract_last_line(log: str) -> str:
    """Return the last line of a log, as evidence of a failure."""
    return _trim_evidence(log.rstrip().rpartition("\n")[2])


def _trim_evidence(text: str) -> str:
    """Shorten a text to the maximum length that evidence may have."""
    return text.strip()[:_EVIDENCE_CHARACTERS]
