"""What the program of a run has left: its result, what a client printed, and the outcome of a run that gave no measurement."""

from __future__ import annotations

from collections.abc import Mapping

from campaign.documents.record import Failure, Status
from campaign.errors import LaunchError
from campaign.workloads.failures import classify
from campaign.workloads.log_reader import Log
from campaign.workloads.protocol import Ended, Outcome, Run
from campaign.workloads.service_run.specification import CLIENT_OUTPUT, RESULT, Problem, Result

_STATUS_OF: Mapping[Problem, Status] = {"not_ready": "time_limit", "load_failed": "invalid"}


def failed_outcome(result: Result, problem: Problem, ended: Ended, log: Log) -> Outcome:
    """A run without a measurement: of the apparatus where nothing of the workload file could be started (LaunchError)."""
    if problem in ("no_program", "port_taken"):
        raise LaunchError(result.words)
    status: Status = _STATUS_OF.get(problem, "crashed")
    failure = Failure(reason=result.words, evidence=result.evidence[-400:] or result.words)
    if status == "crashed":
        # An exit with 0 is none that a server may take by itself.
        codes = (result.code or 1,)
        found = classify(log, codes, timed_out=False, killed_by_us=False, memory_kills=ended.memory_kills)
        if found and found[0] != "crashed":
            status, why = found
            failure = Failure(reason=f"{result.words}: {why.reason}", evidence=why.evidence)
    return Outcome(status, failure, phases_s=result.phases_s, flags=result.flags)


def result_of(run: Run) -> Result | None:
    """What the program of the run left; None where it was ended before."""
    try:
        return Result.model_validate_json((run.directory / RESULT).read_bytes())
    except (OSError, ValueError):
        return None


def printed(run: Run) -> Log:
    """What a client printed."""
    output = run.directory / CLIENT_OUTPUT
    return Log(output) if output.exists() else Log(b"")
