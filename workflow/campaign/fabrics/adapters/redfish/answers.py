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
from campaign.fabrics.http.response import Json, get_list, get_mapping, get_mappings, get_nested

_CONFLICT_MESSAGES = {
    "ResourceInUse",
    "ResourceBlockInUse",
    "SpecifiedResourceAlreadyReserved",
    "ConstrainedResourceAlreadyReserved",
    "ResourceExhaustion",
    "CreateLimitReachedForResource",
    "ResourceAlreadyExists",
}
_BUSY_MESSAGES = {
    "ServiceTemporarilyUnavailable",
    "ServiceShuttingDown",
    "ResourceInStandby",
    "SessionLimitExceeded",
    "OperationTimeout",
    "EventSubscriptionLimitExceeded",
}
_NO_MATCH_MESSAGES = {"NoResourceMatch", "ResourceBlockNotFound"}
_MISSING_MESSAGES = {"ResourceNotFound", "ResourceMissingAtURI", "ResourceAtUriNotFound"}
_LOGIN_MESSAGES = {"NoValidSession", "ResourceAtUriUnauthorized", "AccessDenied"}
_MIN_POLL_INTERVAL_S, _MAX_POLL_INTERVAL_S = 0.05, 60.0


class ResourceMissingError(FabricError):
    """Error for a resource that the service does not have (404, 410)."""


def strip_origin(uri: str) -> str:
    """Remove scheme and host from the address of a Redfish resource.

    Services may call themselves by any name, and the session token must not be sent to another host.
    """
    split = urlsplit(uri)
    return split.path + (f"?{split.query}" if split.query else "")


def get_reference_path(reference: Any) -> str | None:
    """Return the path in a Redfish reference {"@odata.id": ..}, or None for anything else.

    `href`, which old services use, is also accepted.
    """
    address = get_nested(reference, "@odata.id") or get_nested(reference, "href")
    return strip_origin(address) if isinstance(address, str) and address else None


def get_reference_paths(references: Any) -> tuple[str, ...]:
    """Return the paths in a list of Redfish references.

    A single reference, which some services send in place of a list, is accepted.
    """
    reference_list = references if isinstance(references, list) else [references]
    return tuple(path for path in map(get_reference_path, reference_list) if path is not None)


def get_collection_members(collection: Json) -> list[Json]:
    """Return the members on a page of a Redfish collection, at its top or under `Links`.

    Raises ProtocolViolation if the page has no list of members.
    """
    for container in (collection, get_mapping(collection, "Links")):
        if isinstance(container.get("Members"), list):
            return get_mappings(container, "Members")
    address = collection.get("@odata.id", "a collection")
    raise ProtocolViolation(f"{address}: the collection has no Members, neither at the top level nor in Links")


def find_next_page(collection: Json) -> str | None:
    """Return the path of the next page of a Redfish collection, or None for the last page."""
    for container in (collection, get_mapping(collection, "Links")):
        for name in ("Members@odata.nextLink", "@odata.nextLink"):
            value = container.get(name)
            if path := get_reference_path(value) or (strip_origin(value) if isinstance(value, str) else None):
                return path
    return None


@dataclass(frozen=True, slots=True)
class ServiceMessage:
    """One message in an answer of a Redfish service.

    token: last word of its message id, such as `ResourceBlockInUse`, or "" if the service sent only text.
    """

    token: str
    text: str
    arguments: tuple[str, ...] = ()


def parse_messages(body: Any, text: str = "") -> tuple[ServiceMessage, ...]:
    """Parse all messages of a Redfish answer or task.

    Extended information comes first, then the code of the error, then plain text.

    Args:
        body: parsed JSON.
        text: body as text, used if the JSON has no message.
    """
    plain_text = " ".join(text.split())
    return tuple(_find_messages(body)) or ((ServiceMessage("", plain_text[:300]),) if plain_text else ())


def _find_messages(body: Any) -> Iterator[ServiceMessage]:
    """Yield the messages in the JSON of a Redfish answer or task."""
    error = get_nested(body, "error")
    if isinstance(error, str):
        yield ServiceMessage("", error)
    yield from _parse_extended_info(get_nested(error, "@Message.ExtendedInfo"))
    code, message = get_nested(error, "code"), get_nested(error, "message")
    if isinstance(code, str) or isinstance(message, str):
        yield ServiceMessage(_strip_registry(code), str(message or ""))
    yield from _parse_extended_info(get_nested(body, "@Message.ExtendedInfo"))
    yield from _parse_extended_info(get_nested(body, "Messages"))
    if isinstance(get_nested(body, "message"), str):
        yield ServiceMessage("", body["message"])


def _parse_extended_info(value: Any) -> Iterator[ServiceMessage]:
    """Yield the messages in a member with extended information, which is one object or a list of them."""
    for record in value if isinstance(value, list) else [value]:
        if isinstance(record, Mapping):
            arguments = tuple(map(str, get_list(record, "MessageArgs")))
            yield ServiceMessage(_strip_registry(record.get("MessageId")), str(record.get("Message") or ""), arguments)


def _strip_registry(message_id: Any) -> str:
    """Return the last word of a Redfish message id, because prefix and version differ between services."""
    return message_id.rpartition(".")[2] if isinstance(message_id, str) else ""


def apply_status_in_body(answer: Answer) -> Answer:
    """Return the answer with the HTTP status that its body contains, if any.

    Some services answer 200 with a bare status code, or with a list that ends with one.
    """
    status = answer.body[-1] if isinstance(answer.body, list) and answer.body else answer.body
    return (
        replace(answer, status=status) if answer.is_success and type(status) is int and 400 <= status <= 599 else answer
    )


def needs_login(answer: Answer) -> bool:
    """Return True if an answer shows that the session is not valid, so that a new login may help.

    Some services answer 403 in this case.
    """
    tokens = {message.token for message in parse_messages(answer.body)}
    return answer.status == 401 or (answer.status == 403 and "InsufficientPrivilege" not in tokens)


def build_error(answer: Answer, operation: str) -> FabricError:
    """Convert an unsuccessful answer to a request that changes something into the matching FabricError.

    Args:
        answer: answer with a status other than 2xx.
        operation: method and address of the request, for the message.
    """
    messages, status = parse_messages(answer.body, answer.text), answer.status
    tokens = {message.token for message in messages}
    text = f"{operation}: HTTP {status}: {_format_messages(messages)}"
    if tokens & _BUSY_MESSAGES and status != 500:
        return Busy(text)
    if tokens & _CONFLICT_MESSAGES and status < 500:
        return Conflict(text, _find_holders(messages))
    if status >= 500:
        return OutcomeUnknown(f"{text} (read the state back to see if the change was made)")
    if tokens & _LOGIN_MESSAGES or status in (401, 403, 407):
        return Refused(f"{text} (the account lacks the privilege; check its role and the fabric's `credentials`)")
    if tokens & _NO_MATCH_MESSAGES:
        return NoMatch(text)
    if tokens & _MISSING_MESSAGES or status in (404, 410):
        return ResourceMissingError(text)
    if status in (409, 412, 423, 425, 429):
        return Busy(text)
    if 400 <= status < 500:
        return Incompatible(text, "the fabric refuses the change: " + text)
    return FabricError(f"{text} (unexpected HTTP status; check the fabric's `url`)")


def build_read_error(answer: Answer, operation: str) -> FabricError:
    """Convert an unsuccessful answer to a read or a login into the matching FabricError, never OutcomeUnknown.

    Args:
        answer: answer with a status other than 2xx.
        operation: method and address of the request, for the message.
    """
    error = build_error(answer, operation)
    if isinstance(error, Incompatible):
        return Refused(str(error))
    return FabricError(str(error)) if isinstance(error, OutcomeUnknown) else error


def _find_holders(messages: tuple[ServiceMessage, ...]) -> dict[str, None]:
    """Return the holders that messages name, which are their second and later arguments, in order without duplicates."""
    return dict.fromkeys(argument for message in messages for argument in message.arguments[1:])


def _format_messages(messages: tuple[ServiceMessage, ...]) -> str:
    """Join the messages of an answer into one line, without duplicates."""
    lines = [": ".join(part for part in (message.token, message.text) if part) for message in messages]
    return "; ".join(dict.fromkeys(line for line in lines if line)) or "(empty)"


def find_task_monitor(answer: Answer) -> str | None:
    """Return the path of the task monitor of an accepted Redfish operation (202), or None if the answer has none.

    It is the Location header, or else a reference in the body.
    """
    address = (
        answer.get_header("Location") or get_nested(answer.body, "TaskMonitor") or get_nested(answer.body, "@odata.id")
    )
    return strip_origin(address) if isinstance(address, str) and address else None


def choose_poll_interval(answer: Answer, default_s: float) -> float:
    """Return the seconds to wait before the next poll of a Redfish task, between 0.05 and 60 s.

    Args:
        answer: answer that may have a Retry-After header.
        default_s: seconds to wait without the header.
    """
    requested_s = answer.retry_after_s
    return min(max(default_s if requested_s is None else requested_s, _MIN_POLL_INTERVAL_S), _MAX_POLL_INTERVAL_S)


def check_task(answer: Answer, operation: str, monitor: str) -> Answer | None:
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
            f"{operation}: task {monitor} no longer exists (HTTP {answer.status}); read the state back to see its result"
        )
    if not answer.is_success:
        raise build_error(answer, operation)
    match _read_task_state(answer.body):
        case None:
            return answer
        case "Completed":
            return _add_task_location(answer)
        case "Exception" | "Killed" | "Cancelled":
            raise _build_task_error(answer.body, operation)
    return None


def _read_task_state(body: Any) -> str | None:
    """Return the TaskState of a Redfish Task, or None for a body that is not a Task."""
    state, kind = get_nested(body, "TaskState"), get_mapping(body).get("@odata.type", "#Task.")
    return state if isinstance(state, str) and isinstance(kind, str) and kind.startswith("#Task.") else None


def _add_task_location(answer: Answer) -> Answer:
    """Return the answer of a completed task with the Location header of its payload, if there is one."""
    for line in get_list(answer.body, "Payload", "HttpHeaders"):
        name, _, value = str(line).partition(":")
        if name.strip().lower() == "location":
            return replace(answer, headers={**answer.headers, "Location": value.strip()})
    return answer


def _build_task_error(task: Json, operation: str) -> FabricError:
    """Convert a failed Redfish task (Exception, Killed or Cancelled) into the matching FabricError, using its Messages."""
    messages = parse_messages(task) or (ServiceMessage("", "the task has no message"),)
    tokens = {message.token for message in messages}
    text = f"{operation}: the task ended with state {task.get('TaskState')}: {_format_messages(messages)}"
    if tokens & _CONFLICT_MESSAGES:
        return Conflict(text, _find_holders(messages))
    if tokens & _BUSY_MESSAGES:
        return Busy(text)
    if tokens & _NO_MATCH_MESSAGES:
        return NoMatch(text)
    if "IncompatibleZone" in tokens:
        return Incompatible(text, "zones: all blocks of a system must share a zone")
    # A task that failed midway may have done a part of its changes.
    return OutcomeUnknown(text)
