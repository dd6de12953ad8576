"""Parsers of the output of Slurm's commands, tested on saved output of a real Slurm. Pure.

Every parser skips lines in another form (warnings, headers of other clusters). Formats: squeue(1), sacct(1), scontrol(1),
sinfo(1) of Slurm 20.11 to 25.05.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

JOB_FORMAT = "--format=%i|%T|%r|%N|%j|%k"
"""Output format of squeue. Name and comment come last, because they may contain the separator."""

ACCOUNTING_FORMAT = "--format=JobID,State,ExitCode,NodeList,Reason,JobName"
"""Output format of sacct with --parsable2. It has no comment, because accounting stores comments only on some sites."""

FINAL_STATES = frozenset(
    {
        *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "LAUNCH_FAILED", "NODE_FAIL", "OUT_OF_MEMORY"),
        *("PREEMPTED", "RECONFIG_FAIL", "REVOKED", "TIMEOUT"),
    }
)
"""States that a job does not leave by itself. A requeued job is PENDING, or REQUEUED in the accounting."""

EMPTY_WORDS = frozenset({"(null)", "None", "none", "N/A", "n/a"})
_STATE = re.compile(r"[A-Z][A-Z_]+")
_JOB_ID = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class SlurmJob:
    """One job as Slurm reports it.

    Args:
        job_id: number of the job.
        state: long form of Slurm's state (PENDING, NODE_FAIL ..).
        reason: Slurm's reason for the state; empty if there is none.
        hosts: hosts on which the job runs or ran.
        name: name of the job.
        comment: comment of the job.
        exit_code: exit code of the batch script; the negative signal number if a signal ended it; None if unknown.
        queued: True if the controller reported the job. Accounting may be late and show an ended job as RUNNING.
    """

    job_id: str
    state: str
    reason: str = ""
    hosts: tuple[str, ...] = ()
    name: str = ""
    comment: str = ""
    exit_code: int | None = None
    queued: bool = True

    @property
    def is_active(self) -> bool:
        """True if the job has not ended or will start again. A job in an unknown state counts as active."""
        return self.state not in FINAL_STATES


def parse_squeue(text: str) -> tuple[SlurmJob, ...]:
    """Parse the output of `squeue --noheader` with JOB_FORMAT. Array tasks are skipped, because leases do not use them."""
    return tuple(
        SlurmJob(job_id, state, reason, parse_hosts_or_empty(nodes), name, comment)
        for job_id, state, reason, nodes, name, comment in split_rows(text, 6)
        if _STATE.fullmatch(state) and _JOB_ID.fullmatch(job_id)
    )


def split_rows(text: str, columns: int) -> Iterator[list[str]]:
    """Yield the cells of each line with this number of `|`-separated columns. Slurm's words for no value become ''."""
    for line in text.splitlines():
        cells = line.strip().split("|", columns - 1)
        if len(cells) == columns:
            yield ["" if cell in EMPTY_WORDS else cell for cell in cells]


def parse_sacct(text: str) -> tuple[SlurmJob, ...]:
    """Parse the jobs in the output of `sacct --noheader --parsable2 --allocations` with ACCOUNTING_FORMAT.

    `CANCELLED by 1000` is read as CANCELLED. Lines of steps (`12.batch`) and of array tasks are skipped. The last line counts
    for a job that was requeued and is listed twice (--duplicates).
    """
    jobs: dict[str, SlurmJob] = {}
    for job_id, state_text, exit_code, nodes, reason, name in split_rows(text, 6):
        if (state := _STATE.match(state_text)) and _JOB_ID.fullmatch(job_id):
            code = _parse_exit_code(exit_code)
            jobs[job_id] = SlurmJob(
                job_id, state[0], reason, parse_hosts_or_empty(nodes), name, exit_code=code, queued=False
            )
    return tuple(jobs.values())


def _parse_exit_code(text: str) -> int | None:
    """Parse an exit code of sacct: `3:0` becomes 3, and `0:9` becomes -9 (a signal)."""
    match = re.fullmatch(r"(\d+):(\d+)", text)
    return None if match is None else -int(match[2]) or int(match[1])


def parse_duration_s(text: str) -> float | None:
    """Parse a duration in the form `[D-][[H:]M:]S` into seconds. Return None for `UNLIMITED`, `INVALID` and similar words."""
    match = re.fullmatch(r"(?:(\d+)-)?(?:(?:(\d+):)?(\d+):)?(\d+)", text.strip())
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def expand_hosts(text: str) -> tuple[str, ...]:
    """Expand a Slurm host list into host names, in its order; `host[1-3,07],x` becomes host1, host2, host3, host07, x.

    Ranges keep leading zeros, and a name may have several brackets, as in `r[1-2]c[01-02]`. `(null)`, `None assigned` and an
    empty string yield no hosts. Raises ValueError if the text is not a list of hosts.
    """
    text = text.strip()
    if text.lower() in ("", "(null)", "none", "n/a", "none assigned"):
        return ()
    return tuple(chain.from_iterable(_expand_brackets(part) for part in _split_host_list(text)))


def parse_hosts_or_empty(text: str) -> tuple[str, ...]:
    """Expand a Slurm host list into host names, or return no hosts if the list cannot be parsed.

    An unreadable host list must not hide a job.
    """
    try:
        return expand_hosts(text)
    except ValueError:
        return ()


def _split_host_list(text: str) -> list[str]:
    """Split a host list at the commas outside of brackets."""
    parts = re.findall(r"(?:[^,\[\]\s]|\[[^\[\]\s]*\])+", text)
    if ",".join(parts) != text:
        raise ValueError(f"'{text}' is not a list of hosts")
    return parts


def _expand_brackets(part: str) -> list[str]:
    """Expand the bracketed ranges of one element of a host list."""
    prefix, bracket, remainder = part.partition("[")
    if not bracket:
        return [part]
    ranges, _, suffix = remainder.partition("]")
    tails = _expand_brackets(suffix)
    return [f"{prefix}{number}{tail}" for number in _expand_ranges(ranges) for tail in tails]


def _expand_ranges(ranges: str) -> list[str]:
    """Expand ranges of numbers; `1-3,07` becomes 1, 2, 3, 07. A step, as in `0-6:2`, is supported."""
    numbers: list[str] = []
    for piece in ranges.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+)(?::(\d+))?)?", piece)
        if match is None:
            raise ValueError(f"'[{ranges}]' is not a range of numbers")
        first, last, step = match[1], match[2] or match[1], int(match[3] or 1)
        width = len(first)
        numbers += [f"{number:0{width}d}" for number in range(int(first), int(last) + 1, step)]
    return numbers
