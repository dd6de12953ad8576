"""Runs the service of one run, or keeps one process of its server running."""

from __future__ import annotations

import asyncio
import http.client
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from campaign.documents.requests import Requests
from campaign.files import read_bytes, write_atomic
from campaign.processes.marked import adopt_orphans
from campaign.workloads.service_run.processes import LOOK_S, end, say
from campaign.workloads.service_run.server import Failed, ServerProcesses, get, how, metrics_of, rank_here
from campaign.workloads.service_run.specification import CLIENT_OUTPUT, RESULT, LoadClient, Result, Specification

_PAGE_S = 10.0


def main() -> int:
    """The exit code: 0 for a run that has said how it went."""
    specification = Specification.model_validate_json(read_bytes(Path(sys.argv[1])))
    adopt_orphans()
    server = ServerProcesses(specification, rank_here(specification))
    if server.rank:
        return _beside(server)
    result = _run(specification, server)
    write_atomic(specification.directory / RESULT, result.model_dump_json())
    return 0


def _beside(server: ServerProcesses) -> int:
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


def _run(specification: Specification, server: ServerProcesses) -> Result:
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


def _whole(loaded: AppliedLoad, metrics: dict[str, float], flags: list[str]) -> Result:
    return Result(
        load_started=loaded.started,
        window_s=loaded.window_s,
        requests=loaded.requests,
        metrics={**loaded.metrics, **metrics},
        flags=(*loaded.flags, *flags),
    )


def _page(specification: Specification, server: ServerProcesses) -> str | None:
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


_PROGRESS_S = 5.0
_UNDER_LOAD = "during the load"


@dataclass(frozen=True)
class AppliedLoad:
    """What the load gave. started: Unix seconds; window_s: begin and end of what counts, from there."""

    started: float
    window_s: tuple[float, float] | None = None
    requests: Requests | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    flags: tuple[str, ...] = ()


def apply_load(specification: Specification, server: ServerProcesses) -> AppliedLoad:
    """Apply the load to its end. Failed: the server has ended meanwhile, or the client did not do its work."""
    if specification.client is not None:
        return _by_client(specification, specification.client, server)
    return asyncio.run(_built_in(specification, specification.load or {}, server))


def _by_client(specification: Specification, client: LoadClient, server: ServerProcesses) -> AppliedLoad:
    started = time.time()
    process = server.process(client.command, client.environment, copy=specification.directory / CLIENT_OUTPUT)
    try:
        while process.code is None:
            server.require("ended_under_load", _UNDER_LOAD)
            time.sleep(LOOK_S)
        if process.code:
            raise Failed("client_failed", f"the client {how(process.code)}", process.output.tail(), process.code)
        process.output.tail()  # all of it is in its file
    finally:
        if process.code is None:
            end([process], 0.0)
    server.require("ended_under_load", _UNDER_LOAD)
    return AppliedLoad(started, (0.0, time.time() - started))


async def _built_in(specification: Specification, keys: dict[str, Any], server: ServerProcesses) -> AppliedLoad:
    # Not by every process of the server: only the first one needs it.
    from campaign.workloads.load import Load, SentRequest, columns, flags, summary, window
    from campaign.workloads.load.generator import apply

    load = Load.model_validate(keys)
    ended: list[SentRequest] = []
    started = time.time()
    applied = asyncio.create_task(apply(load, server.url, specification.model, on_request=ended.append))
    said = time.monotonic()
    try:
        while not (await asyncio.wait({applied}, timeout=LOOK_S))[0]:
            server.require("ended_under_load", _UNDER_LOAD)
            if time.monotonic() > said + _PROGRESS_S:
                said = time.monotonic()
                say(f"{_counted(ended)} after {time.time() - started:.0f} s")
        requests = applied.result()
    except (OSError, ValueError) as error:
        raise Failed("load_failed", f"the load could not be applied: {error}") from error
    finally:
        applied.cancel()
    say(_counted(requests))
    server.require("ended_under_load", _UNDER_LOAD)
    within = window(load, requests)
    return AppliedLoad(
        started,
        within,
        Requests.of(columns(requests), within),
        summary(requests, within),
        flags(requests, within),
    )


def _counted(requests: list[Any]) -> str:
    return f"{len(requests)} requests ended, {sum(row.error is not None for row in requests)} with an error"


if __name__ == "__main__":
    sys.exit(main())
