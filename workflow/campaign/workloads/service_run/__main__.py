"""Runs the service of one run, or keeps one process of its server running."""

from __future__ import annotations

import http.client
import sys
import time
from pathlib import Path

from campaign.files import write_atomic
from campaign.processes.marked import adopt_orphans
from campaign.workloads.service_run.load_stage import Loaded, apply_load
from campaign.workloads.service_run.output import say
from campaign.workloads.service_run.processes import LOOK_S
from campaign.workloads.service_run.server import Failed, Server, get, rank_here
from campaign.workloads.service_run.server_metrics import metrics_of
from campaign.workloads.service_run.specification import RESULT, Result, Specification

_PAGE_S = 10.0


def main() -> int:
    """The exit code: 0 for a run that has said how it went."""
    specification = Specification.model_validate_json(Path(sys.argv[1]).read_bytes())
    adopt_orphans()
    server = Server(specification, rank_here(specification))
    if server.rank:
        return _beside(server)
    result = _run(specification, server)
    write_atomic(specification.directory / RESULT, result.model_dump_json())
    return 0


def _beside(server: Server) -> int:
    """Keep this process's part of the server running until the run is over, or it ends."""
    over = server.specification.over
    try:
        server.start()
        while not over.read_text():
            server.require("ended_under_load", "before the run was over")
            time.sleep(LOOK_S)
    except Failed as failed:
        # It loses its peers at the end of the run, too.
        if not over.read_text():
            say(f"process {server.rank} of the server: {failed.words}")
            return failed.code if failed.code and failed.code > 0 else 1
    finally:
        server.stop()
    return 0


def _run(specification: Specification, server: Server) -> Result:
    phases: dict[str, float] = {}
    try:
        phases["server_ready"] = server.start_until_ready()
        say(f"the server was ready after {phases['server_ready']:.1f} s")
        before = _page(specification, server)
        began = time.monotonic()
        loaded = apply_load(specification, server)
        phases["load"] = time.monotonic() - began
        metrics, flags = _own_numbers(specification, before, _page(specification, server))
        result = _whole(loaded, metrics, flags)
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


def _whole(loaded: Loaded, metrics: dict[str, float], flags: list[str]) -> Result:
    return Result(
        load_started=loaded.started,
        window_s=loaded.window_s,
        requests=loaded.requests,
        metrics={**loaded.metrics, **metrics},
        flags=(*loaded.flags, *flags),
    )


def _page(specification: Specification, server: Server) -> str | None:
    """The page with the server's own numbers; None where none is asked for, or it cannot be had."""
    if (wanted := specification.server.metrics) is None:
        return None
    try:
        status, text = get(server.port, wanted.path, _PAGE_S)
    except (OSError, http.client.HTTPException):
        return None
    return text if status == 200 else None


def _own_numbers(
    specification: Specification, before: str | None, after: str | None
) -> tuple[dict[str, float], list[str]]:
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
