"""What a Redfish service says when it refuses: message ids of any registry and version, and other shapes that peers send. Pure.

Sources: DSP0266 (error responses), the registries Base 1.x and Composition 1.1, of which only the last dotted word of an id counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from campaign.errors import FabricError
from campaign.fabrics.errors import Busy, Conflict, Incompatible, NoMatch, OutcomeUnknown
from campaign.fabrics.http.client import Answer

_CONFLICT = {
    "ResourceInUse",
    "ResourceBlockInUse",
    "SpecifiedResourceAlreadyReserved",
    "ConstrainedResourceAlreadyReserved",
    "ResourceExhaustion",
    "CreateLimitReachedForResource",
    "ResourceAlreadyExists",
}
_BUSY = {
    "ServiceTemporarilyUnavailable",
    "ServiceShuttingDown",
    "ResourceInStandby",
    "SessionLimitExceeded",
    "OperationTimeout",
    "EventSubscriptionLimitExceeded",
}
_NO_MATCH = {"NoResourceMatch", "ResourceBlockNotFound"}
_MISSING = {"ResourceNotFound", "ResourceMissingAtURI", "ResourceAtUriNotFound"}
_LOGIN = {"NoValidSession", "ResourceAtUriUnauthorized", "AccessDenied"}


class Missing(FabricError):
    """The service has no such resource (404, 410)."""


class Stale(Busy):
    """The resource was changed by somebody since it was read (412); nothing was changed. Reading again helps."""


@dataclass(frozen=True, slots=True)
class Said:
    """One message. token: the last word of its id, such as `ResourceBlockInUse`; "" where the peer sends only text."""

    token: str
    text: str
    arguments: tuple[str, ...] = ()


def said(body: Any, text: str = "") -> tuple[Said, ...]:
    """Every message of an answer, or of a task: extended information first, then the code of the error, then plain words."""
    found = tuple(_said(body))
    if found:
        return found
    words = " ".join(text.split())
    return (Said("", words[:300]),) if words else ()


def _said(body: Any) -> Iterator[Said]:
    if not isinstance(body, Mapping):
        return
    error = body.get("error")
    if isinstance(error, Mapping):
        yield from _listed(error.get("@Message.ExtendedInfo"))
        code, message = error.get("code"), error.get("message")
        if isinstance(code, str) or isinstance(message, str):
            yield Said(last_word(code), str(message or ""))
    elif isinstance(error, str):
        yield Said("", error)
    yield from _listed(body.get("@Message.ExtendedInfo"))
    yield from _listed(body.get("Messages"))
    if isinstance(body.get("message"), str):
        yield Said("", str(body["message"]))


def _listed(messages: Any) -> Iterator[Said]:
    for message in messages if isinstance(messages, list) else [messages]:
        if not isinstance(message, Mapping):
            continue
        arguments = message.get("MessageArgs")
        yield Said(
            last_word(message.get("MessageId")),
            str(message.get("Message") or ""),
            tuple(str(argument) for argument in arguments) if isinstance(arguments, list) else (),
        )


def last_word(message_id: Any) -> str:
    """`Composition.1.1.ResourceBlockInUse` -> `ResourceBlockInUse`: prefix and version differ between services."""
    return message_id.rpartition(".")[2] if isinstance(message_id, str) else ""


def needs_login(answer: Answer) -> bool:
    """True when to log in again may help: the service does not know the session (some answer 403 to that)."""
    if answer.status == 401:
        return True
    tokens = {message.token for message in said(answer.body)}
    return answer.status == 403 and "InsufficientPrivilege" not in tokens


def refusal(answer: Answer, what: str) -> FabricError:
    """The error that an answer other than 2xx to a change is. `what`: the request, for the message."""
    messages = said(answer.body, answer.text)
    tokens = {message.token for message in messages}
    text = f"{what}: HTTP {answer.status}: {_words(messages)}"
    if tokens & _BUSY and answer.status != 500:
        return Busy(text)
    if tokens & _CONFLICT and answer.status < 500:
        holders = dict.fromkeys(argument for message in messages for argument in message.arguments[1:])
        return Conflict(text, holders)
    if answer.status >= 500:
        return OutcomeUnknown(f"{text} (reading back will show whether it was done)")
    return _refused(answer.status, tokens, text)


def _refused(status: int, tokens: set[str], text: str) -> FabricError:
    if tokens & _LOGIN or status in (401, 403, 407):
        return FabricError(f"{text} (the account lacks the right; check its role and the fabric's `credentials`)")
    if tokens & _NO_MATCH:
        return NoMatch(text)
    if tokens & _MISSING or status in (404, 410):
        return Missing(text)
    if status == 412:
        return Stale(f"{text} (another client changed it since it was read)")
    if status in (409, 423, 425, 429):
        return Busy(text)
    if 400 <= status < 500:
        return Incompatible(text, "the fabric refuses it: " + text)
    return FabricError(f"{text} (neither done nor refused; check the fabric's `url`)")


def task_failure(task: Mapping[str, Any], what: str) -> FabricError:
    """The error that a task in TaskState Exception, Killed or Cancelled is; by its Messages."""
    messages = said(task) or (Said("", "no message"),)
    tokens = {message.token for message in messages}
    text = f"{what}: its task ended as {task.get('TaskState')}: {_words(messages)}"
    if tokens & _CONFLICT:
        return Conflict(text, dict.fromkeys(argument for message in messages for argument in message.arguments[1:]))
    if tokens & _BUSY:
        return Busy(text)
    if tokens & _NO_MATCH:
        return NoMatch(text)
    if "IncompatibleZone" in tokens:
        return Incompatible(text, "zones: blocks must share a zone")
    # A task that failed midway may have changed some of what it was to change.
    return OutcomeUnknown(text)


def _words(messages: tuple[Said, ...]) -> str:
    words = [": ".join(part for part in (message.token, message.text) if part) for message in messages]
    return "; ".join(dict.fromkeys(word for word in words if word)) or "(empty)"
