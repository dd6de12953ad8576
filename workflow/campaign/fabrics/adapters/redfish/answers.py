"""Interpretation of Redfish answers of any version: references, collections, refusals and tasks (DSP0266). Pure.

Refusals are identified by message ids of any registry (Base 1.x, Composition 1.1), of which only the last dotted word counts,
and by other forms that services send. The monitor of a task is opaque. If a service sends a Task in its place, its TaskState is
followed.
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
    """Answer that the service does not have a resource (404, 410)."""


def local(uri: str) -> str:
    """Remove scheme and host from the address of a Redfish resource.

    Services use any name for themselves, and the session token must not be sent to another host.
    """
    split = urlsplit(uri)
    return split.path + (f"?{split.query}" if split.query else "")


def uri(reference: Any) -> str | None:
    """Return the path in a Redfish reference {"@odata.id": ..}, or None for anything else.

    `href`, which old services use, is accepted.
    """
    found = at(reference, "@odata.id") or at(reference, "href")
    return local(found) if isinstance(found, str) and found else None


def uris(references: Any) -> tuple[str, ...]:
    """Return the paths in a list of Redfish references.

    A single reference, which some services send in place of a list, is accepted.
    """
    found = references if isinstance(references, list) else [references]
    return tuple(path for path in map(uri, found) if path is not None)


def listed(collection: Json) -> list[Json]:
    """Return the members on a page of a Redfish collection, at its top or under `Links`.

    Raises ProtocolViolation if the page has no list of members.
    """
    for place in (collection, mapping(collection, "Links")):
        if isinstance(place.get("Members"), list):
            return mappings(place, "Members")
    where = collection.get("@odata.id", "a collection")
    raise ProtocolViolation(f"{where}: no Members, neither at the top nor in Links")


def next_page(collection: Json) -> str | None:
    """Return the path of the next page of a Redfish collection, or None for the last page."""
    for place in (collection, mapping(collection, "Links")):
        for name in ("Members@odata.nextLink", "@odata.nextLink"):
            found = place.get(name)
            if path := uri(found) or (local(found) if isinstance(found, str) else None):
                return path
    return None


@dataclass(frozen=True, slots=True)
class Said:
    """One message in an answer of a Redfish service.

    token: last word of its id, such as `ResourceBlockInUse`, or "" if the service sent only text.
    """

    token: str
    text: str
    arguments: tuple[str, ...] = ()


def said(body: Any, text: str = "") -> tuple[Said, ...]:
    """Parse all messages of a Redfish answer or task.

    Extended information comes first, then the code of the error, then plain text.

    Args:
        body: parsed JSON.
        text: body as text, used if the JSON has no message.
    """
    words = " ".join(text.split())
    return tuple(_said(body)) or ((Said("", words[:300]),) if words else ())


def _said(body: Any) -> Iterator[Said]:
    """Yield the messages in the JSON of a Redfish answer or task."""
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
    """Yield the messages in a member with extended information, which is one object or a list of them."""
    for one in found if isinstance(found, list) else [found]:
        if isinstance(one, Mapping):
            arguments = tuple(map(str, listing(one, "MessageArgs")))
            yield Said(_last_word(one.get("MessageId")), str(one.get("Message") or ""), arguments)


def _last_word(message_id: Any) -> str:
    """Return the last word of a Redfish message id, because prefix and version differ between services."""
    return message_id.rpartition(".")[2] if isinstance(message_id, str) else ""


def meant(answer: Answer) -> Answer:
    """Return the answer with the HTTP status that its body contains, if any.

    Some services answer 200 with a bare status code, or with a list that ends with one.
    """
    told = answer.body[-1] if isinstance(answer.body, list) and answer.body else answer.body
    return replace(answer, status=told) if answer.ok and type(told) is int and 400 <= told <= 599 else answer


def needs_login(answer: Answer) -> bool:
    """Return True if an answer shows that the session is not valid, so that a new login may help.

    Some services answer 403 in this case.
    """
    tokens = {message.token for message in said(answer.body)}
    return answer.status == 401 or (answer.status == 403 and "InsufficientPrivilege" not in tokens)


def refusal(answer: Answer, what: str) -> FabricError:
    """Convert an unsuccessful answer to a changing request into the matching FabricError.

    Args:
        answer: answer with a status other than 2xx.
        operation: method and address of the request, for the message.
    """
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
    """Convert an unsuccessful answer to a read or a login into the matching FabricError, never OutcomeUnknown.

    Args:
        answer: answer with a status other than 2xx.
        operation: method and address of the request, for the message.
    """
    error = refusal(answer, what)
    if isinstance(error, Incompatible):
        return Refused(str(error))
    return FabricError(str(error)) if isinstance(error, OutcomeUnknown) else error


def _holders(messages: tuple[Said, ...]) -> dict[str, None]:
    """Return the holders that messages name, which are their second and further arguments, in order and without repetition."""
    return dict.fromkeys(argument for message in messages for argument in message.arguments[1:])


def _words(messages: tuple[Said, ...]) -> str:
    """Join the messages of an answer to one line, without repetition."""
    words = [": ".join(part for part in (message.token, message.text) if part) for message in messages]
    return "; ".join(dict.fromkeys(word for word in words if word)) or "(empty)"


def task_of(accepted: Answer) -> str | None:
    """Return the path of the task monitor of an accepted Redfish operation (202), or None if the answer has none.

    It is the Location header, or else a reference in the body.
    """
    found = accepted.header("Location") or at(accepted.body, "TaskMonitor") or at(accepted.body, "@odata.id")
    return local(found) if isinstance(found, str) and found else None


def retry_after_s(answer: Answer, otherwise_s: float) -> float:
    """Return the seconds to wait before the next poll of a Redfish task, between 0.05 and 60 s.

    Args:
        answer: answer that may have a Retry-After header.
        default_s: seconds to wait without the header.
    """
    told_s = answer.retry_after_s
    return min(max(otherwise_s if told_s is None else told_s, _PAUSE_MIN_S), _PAUSE_MAX_S)


def outcome(answer: Answer, what: str, monitor: str) -> Answer | None:
    """Return the final answer of an operation from its Redfish task monitor, or None while the task runs.

    Raises OutcomeUnknown if the monitor is gone (404, 410: the task ended and was forgotten) or fails, otherwise the error of
    the refusal.

    Args:
        answer: answer of the task monitor.
        operation: method and address of the request, for messages.
        monitor: path of the task monitor.
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
    """Return the TaskState of a Redfish Task, or None for a body that is not a Task."""
    state, kind = at(body, "TaskState"), mapping(body).get("@odata.type", "#Task.")
    return state if isinstance(state, str) and isinstance(kind, str) and kind.startswith("#Task.") else None


def _completed(answer: Answer) -> Answer:
    """Return the answer of a completed task with the Location header of its payload, if there is one."""
    for line in listing(answer.body, "Payload", "HttpHeaders"):
        name, _, value = str(line).partition(":")
        if name.strip().lower() == "location":
            return replace(answer, headers={**answer.headers, "Location": value.strip()})
    return answer


def _task_failure(task: Json, what: str) -> FabricError:
    """Convert a failed Redfish task (Exception, Killed or Cancelled) into the matching FabricError, using its Messages."""
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
    # A task that failed midway may have done a part of its changes.
    return OutcomeUnknown(text)
