"""Asynchronous operations (DSP0266): 202, and a monitor that is asked until it answers as the operation would have.

The monitor's address is opaque. Services that give a Task resource in its place are followed by its TaskState. Pure.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from email.utils import parsedate_to_datetime
from typing import Any

from campaign.fabrics.dialects.redfish.error_messages import refusal, task_failure
from campaign.fabrics.dialects.redfish.session import header, local
from campaign.fabrics.errors import OutcomeUnknown
from campaign.fabrics.http.client import Answer

_FAILED = {"Exception", "Killed", "Cancelled"}
_PAUSE_MIN_S, _PAUSE_MAX_S = 0.05, 60.0


def task_of(accepted: Answer) -> str | None:
    """Where to ask how an accepted operation goes: the Location, else what the body says; None when neither does."""
    found = header(accepted, "Location")
    if not found and isinstance(accepted.body, Mapping):
        found = accepted.body.get("TaskMonitor") or accepted.body.get("@odata.id")
    return local(found) if isinstance(found, str) and found else None


def retry_after_s(answer: Answer, otherwise_s: float) -> float:
    """Seconds to wait before asking again; Retry-After is seconds or a date."""
    text = (header(answer, "Retry-After") or "").strip()
    pause_s = otherwise_s
    if text.isdigit():
        pause_s = float(text)
    elif text:
        try:
            pause_s = parsedate_to_datetime(text).timestamp() - time.time()
        except ValueError:
            pause_s = otherwise_s
    return min(max(pause_s, _PAUSE_MIN_S), _PAUSE_MAX_S)


def outcome(answer: Answer, what: str, monitor: str) -> Answer | None:
    """The operation's own answer, or None while it runs.

    Raises OutcomeUnknown when the monitor is gone (404, 410: it ended and was forgotten) or failing, else what refused it.
    """
    if answer.status == 202 or answer.status in (429, 503):
        return None
    if answer.status in (404, 410):
        raise OutcomeUnknown(
            f"{what}: its task {monitor} is gone (HTTP {answer.status}); reading back tells how it ended"
        )
    if not answer.ok:
        raise refusal(answer, what)
    state = task_state(answer.body)
    if state is None or state == "Completed":
        return answer if state is None else _completed(answer)
    if state in _FAILED:
        raise task_failure(answer.body, what)
    return None


def task_state(body: Any) -> str | None:
    """TaskState, when the body is a Task; None for anything else."""
    if not isinstance(body, Mapping) or not isinstance(body.get("TaskState"), str):
        return None
    kind = body.get("@odata.type", "#Task.")
    return str(body["TaskState"]) if isinstance(kind, str) and kind.startswith("#Task.") else None


def _completed(answer: Answer) -> Answer:
    """A Task that is done says where what it made is among its HTTP headers, if at all."""
    payload = answer.body.get("Payload")
    headers = payload.get("HttpHeaders") if isinstance(payload, Mapping) else None
    for line in headers if isinstance(headers, list) else ():
        name, _, value = str(line).partition(":")
        if name.strip().lower() == "location":
            return replace(answer, headers={**answer.headers, "Location": value.strip()})
    return answer
