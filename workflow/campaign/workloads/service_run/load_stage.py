"""The load of a run: the built-in one, or a client of the workload's own; either ends early when the server does."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any

from campaign.documents.requests import Requests
from campaign.workloads.service_run.output import say
from campaign.workloads.service_run.processes import LOOK_S, end
from campaign.workloads.service_run.server import Failed, Server, how
from campaign.workloads.service_run.specification import CLIENT_OUTPUT, Client, Specification

_PROGRESS_S = 5.0
_UNDER_LOAD = "during the load"


@dataclass(frozen=True)
class Loaded:
    """What the load gave. started: Unix seconds; window_s: begin and end of what counts, from there."""

    started: float
    window_s: tuple[float, float] | None = None
    requests: Requests | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    flags: tuple[str, ...] = ()


def apply_load(specification: Specification, server: Server) -> Loaded:
    """Apply the load to its end. Failed: the server has ended meanwhile, or the client did not do its work."""
    if specification.client is not None:
        return _by_client(specification, specification.client, server)
    return asyncio.run(_built_in(specification, specification.load or {}, server))


def _by_client(specification: Specification, client: Client, server: Server) -> Loaded:
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
    return Loaded(started, (0.0, time.time() - started))


async def _built_in(specification: Specification, keys: dict[str, Any], server: Server) -> Loaded:
    # Not by every process of the server: only the first one needs it.
    from campaign.workloads.load import Load, Request, columns, flags, summary, window
    from campaign.workloads.load.generator import apply

    load = Load.model_validate(keys)
    ended: list[Request] = []
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
    return Loaded(
        started,
        within,
        Requests.of(columns(requests), within),
        summary(requests, within),
        flags(requests, within),
    )


def _counted(requests: list[Any]) -> str:
    return f"{len(requests)} requests ended, {sum(row.error is not None for row in requests)} with an error"
