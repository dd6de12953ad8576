"""How an srun step ended: by its ranks, or by Slurm, a host or a user. Pure but for reading the ranks' files."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from campaign.errors import HostFailed, LaunchError
from campaign.slurm.run_on_hosts import last_complaint, launch_failures
from campaign.workloads.failures import MEMORY_ENDED

_FAILED_TASKS = re.compile(r"srun: error: [^\s:]+: tasks? ([\d,-]+): (?!Terminated)([^\n]+)")
_LOST_HOST = re.compile(r"Node failure on (\S+)")
_STARTED, _ENDED, _MISSING = "started", "ended", "missing"
_KILLS = (-signal.SIGKILL, -signal.SIGTERM)
_SIGNALS = {member.value for member in signal.Signals}


@dataclass(frozen=True, slots=True)
class RankEnd:
    """The file of a rank. host: where it started, None if it did not; code: None if it did not end by itself."""

    host: str | None = None
    step: str | None = None
    code: int | None = None
    missing: bool = False


def read_ends(directory: Path, ranks: int) -> tuple[RankEnd, ...]:
    """From the files that `rank_script` leaves, by rank."""
    ends = []
    for rank in range(ranks):
        try:
            text = (directory / f"rank.{rank}").read_text(errors="replace")
        except FileNotFoundError:
            text = ""
        ends.append(parse_end(text))
    return tuple(ends)


def parse_end(text: str) -> RankEnd:
    """From the text of one such file; a torn last line counts as not written."""
    host = step = code = None
    missing = False
    for line in text.splitlines(keepends=True):
        if not line.endswith("\n"):
            break
        match line.split():
            case [word, step_id, name] if word == _STARTED:
                step, host = step_id, name
            case [word, number] if word == _ENDED and number.isdigit():
                code = _signed(int(number))
            case [word] if word == _MISSING:
                missing = True
    return RankEnd(host, step, code, missing)


def _signed(code: int) -> int:
    """A shell's code of a process that a signal ended, as everywhere else here: negative."""
    return 128 - code if code > 128 and code - 128 in _SIGNALS else code


def some_rank_failed(words: str) -> bool:
    """Whether srun has reported a failed rank."""
    return _FAILED_TASKS.search(words) is not None


def codes_of(ends: Sequence[RankEnd], code: int, *, ended_by_us: bool) -> tuple[int | None, ...]:
    """Codes by rank; one that we have killed never ended by itself."""
    if code == 0:
        return (0,) * len(ends)
    return tuple(None if ended_by_us and end.code == -signal.SIGKILL else end.code for end in ends)


def objection(
    code: int, words: str, tail: str, ends: Sequence[RankEnd], *, ended_by_us: bool, program: str
) -> LaunchError | None:
    """Why the step is no result of the workload, or None if it is one.

    code, words: srun's exit code and complaints; tail: the end of what the step printed; program: for the message. HostFailed
    where it is a host's fault.
    """
    if code == 0:
        return None
    if missing := sorted({end.host or "?" for end in ends if end.missing}):
        return LaunchError(f"{program}: no such program on {', '.join(missing)}")
    if failed := launch_failures(words):
        said = "; ".join(f"{host}: {why}" for host, why in failed.items())
        return HostFailed(f"Slurm could not start a run on {said}", failed)
    if lost := _LOST_HOST.search(words):
        return HostFailed(f"{lost[1]} failed under a run: {lost[0]}", {lost[1]: "failed under a run"})
    if absent := [str(rank) for rank, end in enumerate(ends) if end.host is None]:
        said = last_complaint(words) or f"srun ended with exit code {code}"
        return LaunchError(f"Slurm did not start rank {', '.join(absent)} of {len(ends)}: {said}")
    if MEMORY_ENDED.search(tail) or MEMORY_ENDED.search(words):
        return None
    return _ended_from_outside(words, tail, ends, ended_by_us)


def _ended_from_outside(words: str, tail: str, ends: Sequence[RankEnd], ended_by_us: bool) -> LaunchError | None:
    step = next(end.step for end in ends if end.step)
    job = step.partition(".")[0]
    whose = rf"(?:STEP {re.escape(step)}|JOB {re.escape(job)})"
    told = re.search(rf"\*\*\* {whose} ON (\S+) CANCELLED AT \S+( DUE TO [^*\n]+)?", f"{words}\n{tail}")
    if told:
        message = f"Slurm ended the run ({told[2].strip().lower() if told[2] else 'cancelled from outside'}): {told[0]}"
        return LaunchError(f"{message}; it will be repeated")
    if (
        ended_by_us
        or all(end.code is not None for end in ends)
        or any(end.code not in (None, 0, *_KILLS) for end in ends)
    ):
        return None  # a rank has failed by itself
    # The scripts around the ranks are small and do nothing: what ends them with the ranks is not the subject.
    return LaunchError(f"the step {step} was ended from outside: {last_complaint(words)}; it will be repeated")
