"""What a Redfish service answers, whatever its version: references, collections, refusals and tasks (DSP0266). Pure.

Refusals are known by message ids of any registry (Base 1.x, Composition 1.1), of which only the last dotted word counts, and by
other shapes that peers send. A task's monitor is opaque; services that give a Task in its place are followed by its TaskState.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit

from campaign.common.errors import FabricError
from campaign.fabrics.errors import Busy, Conflict, Incompatible, NoMatch, OutcomeUnknown, ProtocolViolation, Refused
from campaign.fabrics.http.client import Answer
from campaign.fabrics.http.response import Json, at, listing, mapping, mappings

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
_PAUSE_MIN_S, _PAUSE_MAX_S = 0.05, 60.0


class Missing(FabricError):
    """The service has no such resource (404, 410)."""


def local(uri: str) -> str:
    """An address without its scheme and host: services name themselves as they please, and the token goes to nobody else."""
    split = urlsplit(uri)
    return split.path + (f"?{split.query}" if split.query else "")


def uri(reference: Any) -> str | None:
    """The path of {"@odata.id": ..}, with `href` for what old services have; None for anything else."""
    found = at(reference, "@odata.id") or at(reference, "href")
    return local(found) if isinstance(found, str) and found else None


def uris(references: Any) -> tuple[str, ...]:
    """The paths of a list of references; of one, where a service gives that in place of a list."""
    found = references if isinstance(references, list) else [references]
    return tuple(path for path in map(uri, found) if path is not None)


def listed(collection: Json) -> list[Json]:
    """Members of a collection's page, at the top or under `Links`. Raises ProtocolViolation when there is no such list."""
    for place in (collection, mapping(collection, "Links")):
        if isinstance(place.get("Members"), list):
            return mappings(place, "Members")
    where = collection.get("@odata.id", "a collection")
    raise ProtocolViolation(f"{where}: no Members, neither at the top nor in Links")


def next_page(collection: Json) -> str | None:
    for place in (collection, mapping(collection, "Links")):
        for name in ("Members@odata.nextLink", "@odata.nextLink"):
            found = place.get(name)
            if path := uri(found) or (local(found) if isinstance(found, str) else None):
                return path
    return None


@dataclass(frozen=True, slots=True)
class Said:
    """One message. token: the last word of its id, such as `ResourceBlockInUse`; "" where the peer sends only text."""

    token: str
    text: str
    arguments: tuple[str, ...] = ()


def said(body: Any, text: str = "") -> tuple[Said, ...]:
    """Every message of an answer, or of a task: extended information first, then the code of the error, then plain words."""
    words = " ".join(text.split())
    return tuple(_said(body)) or ((Said("", words[:300]),) if words else ())


def _said(body: Any) -> Iterator[Said]:
    error = at(body, "error")
    if isinstance(error, str):
        yield Said("", error)
    yield from _messages(at(error, "@Message.ExtendedInfo"))
    code, message = at(error, "code"), at(error, "message")
    if isinstance(code, str) or isinstance(message, str):
        yield Said(_last_word(code), str(message or ""))
    yield from _messages(at(body, "@Message.ExtendedInfo"))
    yield from _messages(at(body, "Messages"))
    if isinstance(at(body, "message"), str):
        yield Said("", body["message"])


def _messages(found: Any) -> Iterator[Said]:
    for one in found if isinstance(found, list) else [found]:
        if isinstance(one, Mapping):
            arguments = tuple(map(str, listing(one, "MessageArgs")))
            yield Said(_last_word(one.get("MessageId")), str(one.get("Message") or ""), arguments)


def _last_word(message_id: Any) -> str:
    """`Composition.1.1.ResourceBlockInUse` -> `ResourceBlockInUse`: prefix and version differ between services."""
    return message_id.rpartition(".")[2] if isinstance(message_id, str) else ""


def meant(answer: Answer) -> Answer:
    """The answer with the status that it means: some services answer 200 with a bare status, or with a list that ends with one."""
    told = answer.body[-1] if isinstance(answer.body, list) and answer.body else answer.body
    return replace(answer, status=told) if answer.ok and type(told) is int and 400 <= told <= 599 else answer


def needs_login(answer: Answer) -> bool:
    """True when to log in again may help: the service does not know the session (some answer 403 to that)."""
    tokens = {message.token for message in said(answer.body)}
    return answer.status == 401 or (answer.status == 403 and "InsufficientPrivilege" not in tokens)


def refusal(answer: Answer, what: str) -> FabricError:
    """The error that an answer other than 2xx to a change is. `what`: the request, for the message."""
    messages, status = said(answer.body, answer.text), answer.status
    tokens = {message.token for message in messages}
    text = f"{what}: HTTP {status}: {_words(messages)}"
    if tokens & _BUSY and status != 500:
        return Busy(text)
    if tokens & _CONFLICT and status < 500:
        return Conflict(text, _holders(messages))
    if status >= 500:
        return OutcomeUnknown(f"{text} (reading back will show whether it was done)")
    if tokens & _LOGIN or status in (401, 403, 407):
        return Refused(f"{text} (the account lacks the right; check its role and the fabric's `credentials`)")
    if tokens & _NO_MATCH:
        return NoMatch(text)
    if tokens & _MISSING or status in (404, 410):
        return Missing(text)
    if status in (409, 412, 423, 425, 429):
        return Busy(text)
    if 400 <= status < 500:
        return Incompatible(text, "the fabric refuses it: " + text)
    return FabricError(f"{text} (neither done nor refused; check the fabric's `url`)")


def not_changed(answer: Answer, what: str) -> FabricError:
    """The refusal of a request whose outcome nobody waits for: it read, or logged in."""
    error = refusal(answer, what)
    if isinstance(error, Incompatible):
        return Refused(str(error))
    return FabricError(str(error)) if isinstance(error, OutcomeUnknown) else error


def _holders(messages: tuple[Said, ...]) -> dict[str, None]:
    return dict.fromkeys(argument for message in messages for argument in message.arguments[1:])


def _words(messages: tuple[Said, ...]) -> str:
    words = [": ".join(part for part in (message.token, message.text) if part) for message in messages]
    return "; ".join(dict.fromkeys(word for word in words if word)) or "(empty)"


def task_of(accepted: Answer) -> str | None:
    """Where to ask how an accepted operation (202) goes: the Location, else what the body says; None when neither does."""
    found = accepted.header("Location") or at(accepted.body, "TaskMonitor") or at(accepted.body, "@odata.id")
    return local(found) if isinstance(found, str) and found else None


def retry_after_s(answer: Answer, otherwise_s: float) -> float:
    """Seconds to wait before asking again."""
    told_s = answer.retry_after_s
    return min(max(otherwise_s if told_s is None else told_s, _PAUSE_MIN_S), _PAUSE_MAX_S)


def outcome(answer: Answer, what: str, monitor: str) -> Answer | None:
    """The operation's own answer, or None while it runs.

    Raises OutcomeUnknown when the monitor is gone (404, 410: it ended and was forgotten) or failing, else what refused it.
    """
    if answer.status in (202, 429, 503):
        return None
    if answer.status in (404, 410):
        raise OutcomeUnknown(
            f"{what}: its task {monitor} is gone (HTTP {answer.status}); reading back tells how it ended"
        )
    if not answer.ok:
        raise refusal(answer, what)
    match _task_state(answer.body):
        case None:
            return answer
        case "Completed":
            return _completed(answer)
        case "Exception" | "Killed" | "Cancelled":
            raise _task_failure(answer.body, what)
    return None


def _task_state(body: Any) -> str | None:
    """TaskState, when the body is a Task; None for anything else."""
    state, kind = at(body, "TaskState"), mapping(body).get("@odata.type", "#Task.")
    return state if isinstance(state, str) and isinstance(kind, str) and kind.startswith("#Task.") else None


def _completed(answer: Answer) -> Answer:
    """A Task that is done says where what it made is among its HTTP headers, if at all."""
    for line in listing(answer.body, "Payload", "HttpHeaders"):
        name, _, value = str(line).partition(":")
        if name.strip().lower() == "location":
            return replace(answer, headers={**answer.headers, "Location": value.strip()})
    return answer


def _task_failure(task: Json, what: str) -> FabricError:
    """The error that a task in TaskState Exception, Killed or Cancelled is; by its Messages."""
    messages = said(task) or (Said("", "no message"),)
    tokens = {message.token for message in messages}
    text = f"{what}: its task ended as {task.get('TaskState')}: {_words(messages)}"
    if tokens & _CONFLICT:
        return Conflict(text, _holders(messages))
    if tokens & _BUSY:
        return Busy(text)
    if tokens & _NO_MATCH:
        return NoMatch(text)
    if "IncompatibleZone" in tokens:
        return Incompatible(text, "zones: blocks must share a zone")
    # A task that failed midway may have changed some of what it was to change.
    return OutcomeUnknown(text)
