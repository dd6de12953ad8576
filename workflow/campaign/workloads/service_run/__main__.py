"""Entry point that runs the service of one run, or keeps one process of its server running."""

from __future__ import annotations

import http.client
import sys
import time
from pathlib import Path

from campaign.common.files import read_bytes, write_atomic
from campaign.common.processes.marked import adopt_orphans
from campaign.workloads.service_run.processes import POLL_INTERVAL_S, end_processes, log_message
from campaign.workloads.service_run.server import (
    ServerProcesses,
    ServiceRunError,
    compute_server_metrics,
    describe_exit,
    determine_server_rank,
    fetch_page,
)
from campaign.workloads.service_run.specification import (
    CLIENT_OUTPUT_FILE,
    RESULT_FILE,
    ServiceRunResult,
    ServiceRunSpecification,
)

_PAGE_TIMEOUT_S = 10.0
_UNDER_LOAD = "while the client ran"


def main() -> int:
    """Run the service, or keep one part of its server running. Return the exit code: 0 if the result was written."""
    specification = ServiceRunSpecification.model_validate_json(read_bytes(Path(sys.argv[1])))
    adopt_orphans()
    server = ServerProcesses(specification, determine_server_rank(specification))
    if server.rank:
        return _keep_server_running(server)
    result = _run_service(specification, server)
    write_atomic(specification.directory / RESULT_FILE, result.model_dump_json())
    return 0


def _keep_server_running(server: ServerProcesses) -> int:
    """Keep this process's part of the server running until the run is over or the part ends.

    Returns the exit code: 0 unless the part ended before the run was over.
    """
    end_of_run_file = server.specification.run_end_file
    try:
        server.start_server()
        while not end_of_run_file.read_text(encoding="utf-8"):
            server.require_running("ended_under_load", "before the run was over")
            time.sleep(POLL_INTERVAL_S)
    except ServiceRunError as error:
        # At the end of the run, the part may fail because it loses its peers.
        if not end_of_run_file.read_text(encoding="utf-8"):
            log_message(f"process {server.rank} of the server: {error.message}")
            return error.exit_code if error.exit_code and error.exit_code > 0 else 1
    finally:
        server.stop_server()
    return 0


def _run_service(specification: ServiceRunSpecification, server: ServerProcesses) -> ServiceRunResult:
    """Run server and client. Return the result with the duration of each phase; failures are part of the result."""
    phases: dict[str, float] = {}
    try:
        phases["server_ready"] = server.start_until_ready()
        log_message(f"the server was ready after {phases['server_ready']:.1f} s")
        page_before = _read_metrics_page(specification, server)
        client_start_s = time.time()
        run_client(specification, server)
        client_end_s = time.time()
        phases["client"] = client_end_s - client_start_s
        metrics, flags = _compute_metrics(specification, page_before, _read_metrics_page(specification, server))
        result = ServiceRunResult(
            client_started=client_start_s, client_ended=client_end_s, metrics=metrics, flags=tuple(flags)
        )
    except ServiceRunError as error:
        log_message(error.message)
        result = ServiceRunResult(
            problem=error.problem, words=error.message, evidence=error.evidence, code=error.exit_code
        )
    stop_start_s = time.monotonic()
    was_killed = server.stop_server()
    phases["server_stop"] = time.monotonic() - stop_start_s
    log_message(f"the server {'was killed' if was_killed else 'ended'} after {phases['server_stop']:.1f} s")
    timeout_s = specification.server.stop_within_s
    timeout_flags = (
        (f"the server was killed, because it did not end within {timeout_s:g} s of SIGTERM (stop_within_s)",)
        if was_killed
        else ()
    )
    return result.model_copy(update={"phases_s": phases, "flags": (*result.flags, *timeout_flags)})


def run_client(specification: ServiceRunSpecification, server: ServerProcesses) -> None:
    """Run the client until it ends.

    Raises ServiceRunError if the server ends in the meantime or the client fails.
    """
    client = specification.client
    process = server.start_program(
        client.command, client.environment, copy_path=specification.directory / CLIENT_OUTPUT_FILE
    )
    try:
        while process.exit_code is None:
            server.require_running("ended_under_load", _UNDER_LOAD)
            time.sleep(POLL_INTERVAL_S)
        server.require_program_start(process)
        if process.exit_code:
            raise ServiceRunError(
                "client_failed",
                f"the client {describe_exit(process.exit_code)}",
                process.output.read_tail(),
                process.exit_code,
            )
        process.output.read_tail()  # wait until all output is in its file
    finally:
        if process.exit_code is None:
            end_processes([process], 0.0)
    server.require_running("ended_under_load", _UNDER_LOAD)


def _read_metrics_page(specification: ServiceRunSpecification, server: ServerProcesses) -> str | None:
    """Fetch the page with the server's own metrics. Returns None if none are configured or the page cannot be read."""
    if (settings := specification.server.metrics) is None:
        return None
    try:
        status, text = fetch_page(server.port, settings.path, _PAGE_TIMEOUT_S)
    except (OSError, http.client.HTTPException):
        return None
    return text if status == 200 else None


def _compute_metrics(
    specification: ServiceRunSpecification, page_before: str | None, page_after: str | None
) -> tuple[dict[str, float], list[str]]:
    """Compute the server's own metrics from its metrics pages before and after the client ran.

    Returns the metrics, and flags for pages that are missing or invalid.
    """
    if (settings := specification.server.metrics) is None:
        return {}, []
    if page_before is None or page_after is None:
        return {}, [f"the metrics page {settings.path} of the server could not be read"]
    try:
        return compute_server_metrics(settings, page_before, page_after)
    except ValueError as error:
        return {}, [f"the metrics page {settings.path} of the server is not in Prometheus text format: {error}"]


if __name__ == "__main__":
    sys.exit(main())
