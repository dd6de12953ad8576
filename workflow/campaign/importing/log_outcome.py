"""From one log to the record of its run: read as runs are read that were just measured, but for what only their launcher knows."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

from campaign.config.resolve import Campaign
from campaign.documents.cell import Cell
from campaign.errors import LaunchError
from campaign.fabrics.hardware import ComposedHost, Composition
from campaign.importing.log_facts import Found
from campaign.importing.log_identity import Unread
from campaign.workloads.failures import classify
from campaign.workloads.log_reader import Log
from campaign.workloads.protocol import Ended, Outcome, Run


def digest(path: Path) -> str:
    """SHA-256 of a log; Unread for what is empty, is no text or cannot be read."""
    try:
        with path.open("rb") as file:
            head = file.read(1 << 16)
            if not head.strip():
                raise Unread("is empty")
            if b"\0" in head or head.startswith(b"\x1f\x8b"):
                raise Unread("is not a text file; decompress it first")
            file.seek(0)
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise Unread(f"cannot be read ({error.strerror or error})") from error


def outcome_of(campaign: Campaign, cell: Cell, path: Path, found: Found) -> Outcome:
    """What the log of a run of this cell says; Unread where it was the apparatus that failed, which is no result."""
    composition = Composition(tuple(ComposedHost(f"host{n + 1}", 1, 1.0, ()) for n in range(cell.configuration.hosts)))
    run = Run(cell, 1, composition, path.parent, campaign.device(cell.configuration.device).runs_on)
    workload, log = campaign.workloads[cell.workload], Log(path)
    try:
        if found.timed_out or found.exit_code is not None:
            return workload.outcome(run, Ended((found.exit_code,), 0.0, 0.0, timed_out=found.timed_out), log)
        outcome = workload.outcome(run, Ended((0,), 0.0, 0.0), log)
        if outcome.status != "incomplete":
            return outcome
        # How it ended was not kept: only what the log itself says of a failure counts.
        cause = classify(log, (None,), timed_out=False, killed_by_us=False)
    except LaunchError as error:
        told = str(error).partition("; run the same command")[0]
        raise Unread(f"host, network or scheduler failed, so the log has no result: {told}") from error
    if cause is None or cause[1].evidence.startswith("exit codes by rank"):
        return outcome
    return replace(outcome, status=cause[0], failure=cause[1])
