"""Mark files of the ranks of a wrapped program, used as evidence of their start and end besides the wrapper's exit code.

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
from campaign.workloads.protocol import Ended, Step

_DIRECTORY = ".ranks"
_UNMARKED = "campaign: this rank cannot write its mark"
# One line, because older releases of conda refuse line feeds. A directory that a container cannot see is not a failure.
_SCRIPT = (
    "m=$1/${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-${HOROVOD_RANK:-${RANK:-${SLURM_PROCID:-0}}}}}.$$; shift; "
    f'{{ echo started >"$m"; }} 2>/dev/null || {{ echo "{_UNMARKED}" >&2; exec "$@"; }}; '
    'command -v "$1" >/dev/null || { echo missing >>"$m"; echo "$1: not found" >&2; exit 127; }; '
    '"$@"; c=$?; echo "ended $c" >>"$m"; exit $c'
)
_ENDED = re.compile(r"^ended (\d+)$", re.MULTILINE)
# MPI_Abort, and an exit without MPI_Finalize under Open MPI. The ranks caused these, whatever their shells recorded.
_OWN_ABORT = re.compile(r"MPI_ABORT was invoked|MPI_Abort\(|exiting improperly|without calling \"?(?:MPI_)?[Ff]inalize")
_RENDEZVOUS = re.compile(r"Rendezvous(?:Timeout|Connection|Closed|State)Error[^\n]*")
_SIGNS = (_UNMARKED.encode(), b"MPI_A", b"improperly", b"inalize", b"Rendezvous", b"ChildFailed")
_KILLED = (128 + 9, 128 + 15)


def mark_ranks(step: Step, directory: Path) -> Step:
    """Return the step with a shell around each rank that marks the start and end of the rank.

    A step whose program is not started by a wrapper is returned unchanged.

    Args:
        step: the step.
        directory: directory of the run, for the mark files.
    """
    if step.program_at is None:
        return step
    words = marking_words(directory / _DIRECTORY)
    return replace(step, argv=(*step.argv[: step.program_at], *words, *step.argv[step.program_at :]))


def marking_words(marks: Path) -> tuple[str, ...]:
    """Return the words before a program that mark its start and end in a directory. The directory is created anew."""
    shutil.rmtree(marks, ignore_errors=True)
    make_directory(marks)
    return ("sh", "-c", _SCRIPT, "campaign-rank", str(marks))


def has_started(marks: Path, output: str) -> bool:
    """Return whether a marked program has started.

    It counts as started, too, if it printed that it cannot write its mark.

    Args:
        marks_directory: directory of the marks, as given to `marking_words`.
        output: output of the program.
    """
    return _UNMARKED in output or any(
        "missing" not in path.read_text(encoding="utf-8").split() for path in marks.glob("*")
    )


def judge_marks(step: Step, directory: Path, ended: Ended, log: Path) -> Ended:
    """Correct the end of a step by the marks of its ranks. The wrapper's exit code counts only if the marks agree with it.

    Raises LaunchError if a rank did not start, or if the step failed although no rank did. Such a run has no result.

    Args:
        step: the step.
        directory: directory of the run, which holds the mark files.
        step_end: end of the step as the launcher observed it.
        log: log of the step.
    """
    if ended.timed_out or ended.memory_limit_hit or ended.disturbed or not log.exists():
        return ended
    well = all(code == 0 for code in ended.codes)
    if step.program_at is None:
        if not well and "torchrun" in step.argv:
            _reject_failed_rendezvous(log, "torchrun")
        return ended
    wrapper, program, ranks = step.argv[0], step.argv[step.program_at], step.wrapped_ranks
    marks = [path.read_text(encoding="utf-8") for path in (directory / _DIRECTORY).glob("*")]
    codes = [int(found[1]) for mark in marks if (found := _ENDED.search(mark))]
    if well and codes == [0] * ranks and len(marks) == ranks:
        return ended
    text = Log(log).excerpt(_SIGNS)
    if _UNMARKED in text or (not well and _OWN_ABORT.search(text)):
        return ended
    if any("missing" in mark.split() for mark in marks):
        raise LaunchError(f"{program}: no such program where {wrapper} starts the ranks{_describe(ended, log)}")
    own = min((code for code in codes if code), key=lambda code: code in _KILLED, default=0)
    if own and (own not in _KILLED or len(marks) == ranks or ended.memory_kills):
        if not well and program == "torchrun":
            _reject_failed_rendezvous(log, wrapper)
        # A rank has failed, even if the wrapper ended with 0.
        return replace(ended, codes=(own,) * len(ended.codes)) if well else ended
    if len(marks) < ranks:
        raise LaunchError(f"{wrapper} started {len(marks)} of {ranks} ranks{_describe(ended, log)}")
    if well:
        raise LaunchError(f"{len(marks) - len(codes)} of {ranks} ranks of {wrapper} did not end{_describe(ended, log)}")
    if len(codes) == ranks:
        raise LaunchError(f"{wrapper} failed after all {ranks} ranks had ended with 0{_describe(ended, log)}")
    return ended  # some ranks were killed with their shells, so the log decides


def _reject_failed_rendezvous(log: Path, wrapper: str) -> None:
    """Raise LaunchError if torchrun failed before it started a rank."""
    text = Log(log).excerpt(_SIGNS)
    if "ChildFailedError" not in text and (met := _RENDEZVOUS.search(text)):
        raise LaunchError(f"{wrapper} started no rank: {met[0][:300]}; the run has no record and is repeated")


def _describe(ended: Ended, log: Path) -> str:
    """Describe exit codes and the last line of the log, to complete a message about a failed launch."""
    codes = ", ".join("no exit code" if code is None else f"exit code {code}" for code in dict.fromkeys(ended.codes))
    last = Log(log).tail(200).rpartition("\n")[2] if log.exists() else ""
    return f" and ended with {codes}{f' ({last})' if last else ''}; the run has no record and is repeated"
