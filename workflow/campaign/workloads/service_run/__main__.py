"""Entry point that runs the service of one run, or keeps one process of its server running."""

from __future__ import annotations

import http.client
import sys
import time
from pathlib import Path

from campaign.common.files import read_bytes, write_atomic
from campaign.common.processes.marked import adopt_orphans
from campaign.workloads.service_run.processes import LOOK_S, end, say
from campaign.workloads.service_run.server import Failed, ServerProcesses, get, how, metrics_of, rank_here
from campaign.workloads.service_run.specification import CLIENT_OUTPUT, RESULT, Result, Specification

_PAGE_TIMEOUT_S = 10.0
_UNDER_LOAD = "while the client ran"


def main() -> int:
    """Run the service, or keep a part of its server running. Return the exit code: 0 for a run that has left its result."""
    specification = Specification.model_validate_json(read_bytes(Path(sys.argv[1])))
    adopt_orphans()
    server = ServerProcesses(specification, rank_here(specification))
    if server.rank:
        return _keep_running(server)
    result = _run(specification, server)
    write_atomic(specification.directory / RESULT, result.model_dump_json())
    return 0


def _keep_running(server: ServerProcesses) -> int:
    """Keep this process's part of the server running until the run is over or the part ends.

    Returns the exit code: 0 unless the part ended before the run was over.
    """
    over = server.specification.over
    try:
        server.start()
        while not over.read_text(encoding="utf-8"):
            server.require("ended_under_load", "before the run was over")
            time.sleep(LOOK_S)
    except Failed as failed:
        # At the end of the run, the part may fail because it loses its peers.
        if not over.read_text(encoding="utf-8"):
            say(f"process {server.rank} of the server: {failed.words}")
            return failed.code if failed.code and failed.code > 0 else 1
    finally:
        server.stop()
    return 0


def _run(specification: Specification, server: ServerProcesses) -> Result:
    """Run server and client, and return the result with the durations of the phases. A failure is part of the result."""
    phases: dict[str, float] = {}
    try:
        phases["server_ready"] = server.start_until_ready()
        say(f"the server was ready after {phases['server_ready']:.1f} s")
        before = _read_page(specification, server)
        started = time.time()
        run_client(specification, server)
        ended = time.time()
        phases["client"] = ended - started
        metrics, flags = _server_metrics(specification, before, _read_page(specification, server))
        result = Result(client_started=started, client_ended=ended, metrics=metrics, flags=tuple(flags))
    except Failed as failed:
        say(failed.words)
        result = Result(problem=failed.problem, words=failed.words, evidence=failed.evidence, code=failed.code)
    began = time.monotonic()
    killed = server.stop()
    phases["server_stop"] = time.monotonic() - began
    say(f"the server {'was killed' if killed else 'ended'} after {phases['server_stop']:.1f} s")
    limit_s = specification.server.stop_within_s
    slow = (
        (f"the server did not end within {limit_s:g} s of SIGTERM (stop_within_s), and was killed",) if killed else ()
    )
    return result.model_copy(update={"phases_s": phases, "flags": (*result.flags, *slow)})


def run_client(specification: Specification, server: ServerProcesses) -> None:
    """Run the client to its end.

    Raises ServiceRunError if the server ends meanwhile or the client fails.
    """
    client = specification.client
    process = server.process(client.command, client.environment, copy_path=specification.directory / CLIENT_OUTPUT)
    try:
        while process.code is None:
            server.require("ended_under_load", _UNDER_LOAD)
            time.sleep(LOOK_S)
        server.require_start(process)
        if process.code:
            raise Failed("client_failed", f"the client {how(process.code)}", process.output.tail(), process.code)
        process.output.tail()  # wait until all output is in its file
    finally:
        if process.code is None:
            end([process], 0.0)
    server.require("ended_under_load", _UNDER_LOAD)


def _read_page(specification: Specification, server: ServerProcesses) -> str | None:
    """Return the page with the server's own metrics, or None if no metrics are configured or it cannot be read."""
    if (wanted := specification.server.metrics) is None:
        return None
    try:
        status, text = get(server.port, wanted.path, _PAGE_TIMEOUT_S)
    except (OSError, http.client.HTTPException):
        return None
    return text if status == 200 else None


def _server_metrics(
    specification: Specification, before: str | None, after: str | None
) -> tuple[dict[str, float], list[str]]:
    """Compute the metrics of the server from its pages before and after the client ran.

    Returns the metrics, and flags for pages that are missing or invalid.
    """
    if (wanted := specification.server.metrics) is None:
        return {}, []
    if before is None or after is None:
        return {}, [f"the server's {wanted.path} could not be read"]
    try:
        return metrics_of(wanted, before, after)
    except ValueError as error:
        return {}, [f"the server's {wanted.path} is not in the text format of Prometheus: {error}"]


if __name__ == "__main__":
    sys.exit(main())
