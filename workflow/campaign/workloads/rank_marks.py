"""Mark files of the ranks of a wrapped program, which show their start and end independently of the wrapper's exit code.

mpirun, horovodrun, `conda run`, apptainer and module scripts can end with 0 although no rank started, and fail although every
rank succeeded. torchrun starts Python files itself, so only the start and end of torchrun are marked.
"""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path

from campaign.common.errors import LaunchError
from campaign.common.files import make_directory
from campaign.workloads.log_reader import Log
from campaign.workloads.protocol import Step, StepEnd

_DIRECTORY = ".ranks"
_MARK_FAILED_MESSAGE = "campaign: this rank cannot write its mark"
# One line, because older releases of conda refuse line feeds. A directory that a container cannot see is not a failure.
_SCRIPT = (
    "m=$1/${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-${HOROVOD_RANK:-${RANK:-${SLURM_PROCID:-0}}}}}.$$; shift; "
    f'{{ echo started >"$m"; }} 2>/dev/null || {{ echo "{_MARK_FAILED_MESSAGE}" >&2; exec "$@"; }}; '
    'command -v "$1" >/dev/null || { echo missing >>"$m"; echo "$1: not found" >&2; exit 127; }; '
    '"$@"; c=$?; echo "ended $c" >>"$m"; exit $c'
)
_END_MARK = re.compile(r"^ended (\d+)$", re.MULTILINE)
# MPI_Abort, and an exit without MPI_Finalize under Open MPI. The ranks caused these, whatever their shells recorded.
_MPI_ABORT = re.compile(r"MPI_ABORT was invoked|MPI_Abort\(|exiting improperly|without calling \"?(?:MPI_)?[Ff]inalize")
_RENDEZVOUS = re.compile(r"Rendezvous(?:Timeout|Connection|Closed|State)Error[^\n]*")
_LINE_SIGNS = (_MARK_FAILED_MESSAGE.encode(), b"MPI_A", b"improperly", b"inalize", b"Rendezvous", b"ChildFailed")
_KILL_EXIT_CODES = (128 + 9, 128 + 15)


def mark_ranks(step: Step, directory: Path) -> Step:
    """Return a copy of a step in which a shell around each rank marks the rank's start and end in files.

    A step whose program is not started by a wrapper is returned unchanged.
    """
    if step.program_at is None:
        return step
    words = build_marking_words(directory / _DIRECTORY)
    return replace(step, argv=(*step.argv[: step.program_at], *words, *step.argv[step.program_at :]))


def build_marking_words(marks_directory: Path) -> tuple[str, ...]:
    """Build the words to put before a program so that it marks its start and end in a directory, and recreate the directory."""
    shutil.rmtree(marks_directory, ignore_errors=True)
    make_directory(marks_directory)
    return ("sh", "-c", _SCRIPT, "campaign-rank", str(marks_directory))


def has_program_started(marks_directory: Path, output: str) -> bool:
    """Return whether a program started with `build_marking_words` has really started.

    A program that only printed that its mark cannot be written also counts as started.

    Args:
        marks_directory: directory of the marks, as given to `build_marking_words`.
        output: output of the program.
    """
    return _MARK_FAILED_MESSAGE in output or any(
        "missing" not in path.read_text(encoding="utf-8").split() for path in marks_directory.glob("*")
    )


def correct_step_end(step: Step, directory: Path, step_end: StepEnd, log: Path) -> StepEnd:
    """Correct the end of a step by the marks of its ranks. The wrapper's exit code only counts if the marks confirm it.

    Raises LaunchError if a rank did not start, or if the step failed although no rank did. Such a run has no result.
    """
    if step_end.timed_out or step_end.memory_limit_hit or step_end.disturbance or not log.exists():
        return step_end
    has_succeeded = all(code == 0 for code in step_end.codes)
    if step.program_at is None:
        if not has_succeeded and "torchrun" in step.argv:
            _reject_failed_rendezvous(log, "torchrun")
        return step_end
    wrapper, program, ranks = step.argv[0], step.argv[step.program_at], step.wrapped_ranks
    marks = [path.read_text(encoding="utf-8") for path in (directory / _DIRECTORY).glob("*")]
    codes = [int(match[1]) for mark in marks if (match := _END_MARK.search(mark))]
    if has_succeeded and codes == [0] * ranks and len(marks) == ranks:
        return step_end
    text = Log(log).read_excerpt(_LINE_SIGNS)
    if _MARK_FAILED_MESSAGE in text or (not has_succeeded and _MPI_ABORT.search(text)):
        return step_end
    if any("missing" in mark.split() for mark in marks):
        raise LaunchError(
            f"{wrapper} did not find the program {program} in the environment of the ranks{_describe_step_end(step_end, log)}"
        )
    failed_code = min((code for code in codes if code), key=lambda code: code in _KILL_EXIT_CODES, default=0)
    if failed_code and (failed_code not in _KILL_EXIT_CODES or len(marks) == ranks or step_end.memory_kills):
        if not has_succeeded and program == "torchrun":
            _reject_failed_rendezvous(log, wrapper)
        # A rank has failed, even if the wrapper ended with 0.
        return replace(step_end, codes=(failed_code,) * len(step_end.codes)) if has_succeeded else step_end
    if len(marks) < ranks:
        raise LaunchError(f"{wrapper} started {len(marks)} of {ranks} ranks{_describe_step_end(step_end, log)}")
    if has_succeeded:
        raise LaunchError(
            f"{len(marks) - len(codes)} of {ranks} ranks of {wrapper} did not end{_describe_step_end(step_end, log)}"
        )
    if len(codes) == ranks:
        raise LaunchError(
            f"{wrapper} failed after all {ranks} ranks had ended with exit code 0{_describe_step_end(step_end, log)}"
        )
    return step_end  # some ranks were killed with their shells, so the log decides


def _reject_failed_rendezvous(log: Path, wrapper: str) -> None:
    """Raise LaunchError if the log shows that torchrun failed before it started any rank."""
    text = Log(log).read_excerpt(_LINE_SIGNS)
    if "ChildFailedError" not in text and (match := _RENDEZVOUS.search(text)):
        raise LaunchError(f"{wrapper} started no rank: {match[0][:300]}; the run has no record and is repeated")


def _describe_step_end(step_end: StepEnd, log: Path) -> str:
    """Describe the exit codes and the last line of the log, for the end of a message about a failed launch."""
    codes = ", ".join("no exit code" if code is None else f"exit code {code}" for code in dict.fromkeys(step_end.codes))
    last_line = Log(log).read_tail(200).rpartition("\n")[2] if log.exists() else ""
    return f" and ended with {codes}{f' ({last_line})' if last_line else ''}; the run has no record and is repeated"
