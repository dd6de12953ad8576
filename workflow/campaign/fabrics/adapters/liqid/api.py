"""Requests to one Matrix: session by digest key, envelopes, edits, and commits that finish later.

An edit that fails is cancelled, which reverts it. Only one machine of a Matrix can be edited at a time, and a group by one
client at a time.
"""

from __future__ import annotations

import base64
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from campaign.common.errors import FabricError
from campaign.fabrics.adapters.liqid import snapshot
from campaign.fabrics.adapters.liqid.snapshot import LiqidDevice, Raw
from campaign.fabrics.control_plane.protocol import ControlPlaneOptions
from campaign.fabrics.errors import OutcomeUnknown, ProtocolViolation, Refused
from campaign.fabrics.http.client import Answer, Client
from campaign.fabrics.http.options import Login, login, needed_login
from campaign.fabrics.http.response import at
from campaign.fabrics.protocol import AttachMode

RESERVED_LABELS = ("slurm",)
BASE = "/liqid/api/v2"
_LOGINS = 6
"""Maximum number of logins per request. Processes with the same label end each other's sessions and must then log in again."""
_LOGIN_AGAIN_S = 0.05
_SILENT_POLLS = 5
_TAKEN = re.compile(r"exist|in use|duplicate", re.IGNORECASE)


class LiqidOptions(ControlPlaneOptions):
    """Options of a Liqid Matrix. `hosts` names the compute device of a host if its name differs from the host's."""

    group: str = Field(
        default="campaign", min_length=1, description="the group that machines are made in; nobody else should use it"
    )
    create_group: bool = Field(default=False, description="make the group where the Matrix has none of that name")
    label: str = Field(
        default="composable-campaign",
        pattern=r"^[A-Za-z0-9_.-]+$",
        description="label of the session (digest); logging in ends an older session of the same label",
    )
    poll_s: Annotated[float, Field(gt=0)] = Field(
        default=1.0, description="seconds between two polls of an operation that the Matrix has not finished"
    )
    attach_mode: AttachMode = Field(
        default="hot",
        description="`hot`: hosts keep running; `reboot`: a host is rebooted when its devices are attached; `powered_off`: it is "
        "started when they are, and shut down before they are taken away",
    )

    @field_validator("label")
    @classmethod
    def _not_reserved(cls, label: str) -> str:
        """Reject a session label that Liqid's own software uses."""
        if label.lower() in RESERVED_LABELS:
            raise ValueError(
                f"the label {label!r} is reserved for Liqid's own Slurm plugin, whose session would be ended; choose another"
            )
        return label


class MatrixRefused(FabricError):
    """Refusal of a request by the Liqid Matrix. The request changed nothing."""

    @property
    def busy(self) -> bool:
        """True if another edit on the Matrix is the reason of the refusal."""
        return snapshot.is_busy(str(self))

    def names(self, number: object) -> bool:
        """Return True if the refusal mentions the machine or group with this number."""
        return snapshot.number(number) in snapshot.numbers(str(self).partition(": ")[2])


class ReadRefused(MatrixRefused, Refused):
    """The Matrix refuses a read as it is."""


@dataclass(frozen=True, slots=True)
class MatrixPlace:
    """Coordinates and fabric id of a Liqid Matrix. They never change and many requests need them."""

    coordinates: Any
    fabr_id: int


class Api:
    """Client of one Liqid Matrix that logs in when necessary.

    Every method raises FabricError. `send_change` raises MatrixRefusal or OutcomeUnknown.
    """

    def __init__(self, options: LiqidOptions) -> None:
        """Create the client without sending a request."""
        self.client = Client(options)
        self._options = options
        self._place: MatrixPlace | None = None
        self._base = "" if self.client.base.endswith(BASE) else BASE

    def get(self, path: str, **params: Any) -> tuple[Any, ...]:
        """Send a GET request to the Liqid Matrix and return the data of the answer.

        Raises MatrixRefusal if the Matrix refuses the request, ProtocolViolation if the answer is not a list.

        Args:
            path: path below the base path of the interface.
            **params: query parameters.
        """
        answer = self._sent(lambda: self.client.get(f"{self._base}/{path}", params or None))
        found = snapshot.envelope(answer.body)
        if found is not None and not found.ok:
            raise (ReadRefused if answer.is_refusal else MatrixRefused)(f"GET {path}: {found.words}")
        if answer.is_refusal:
            raise ReadRefused(f"GET {path}: {answer.words()}")
        if answer.status >= 500:
            raise FabricError(f"GET {path}: {answer.words()}")
        if not answer.ok or found is None:
            raise ProtocolViolation(f"GET {path}: {answer.words()}")
        return found.data

    def place(self) -> MatrixPlace:
        """Return the coordinates and fabric id of the Liqid Matrix, which are read once."""
        if self._place is None:
            coordinates = next(iter(self.get("coordinates")), {"rack": 0, "shelf": 0, "node": 0})
            self._place = MatrixPlace(coordinates, snapshot.first_number(self.get("fabric/id")) or 1)
        return self._place

    def change(self, method: str, path: str, body: Any = None) -> tuple[Any, ...]:
        """Send a change to the Liqid Matrix, wait until it is done, and return the data of the answer.

        A rehearsal does not wait. Raises MatrixRefusal or OutcomeUnknown.
        """
        answer = self._sent(lambda: self.client.change(method, f"{self._base}/{path}", body))
        what = f"{method} {path}"
        if answer.status >= 500:
            raise OutcomeUnknown(f"{what}: {answer.words()}")
        found = snapshot.envelope(answer.body)
        if found is not None and not found.ok:
            raise MatrixRefused(f"{what}: {found.words}")
        if not answer.ok:
            raise MatrixRefused(f"{what}: {answer.words()}")
        data = () if found is None else found.data
        if answer.status == 202 and (href := snapshot.link_of(data)) is not None:
            # Only the path of the link is used, so that the session key is sent to this Matrix only.
            _, base, below = (path := urlsplit(href).path).partition(BASE)
            self._wait(what, self._base + (below if base else f"/{path.lstrip('/')}"))
        return data

    def quietly(self, method: str, path: str, body: Any = None) -> None:
        """Send a change that only cleans up, and ignore a failure."""
        with suppress(FabricError):
            self.change(method, path, body)

    def describe(self, device: LiqidDevice, text: str) -> None:
        """Set the user description of a device on the Liqid Matrix, or delete it if the text is empty."""
        path = f"device/udesc/{snapshot.DESCRIBED[device.path]}/{device.device_id}"
        self.change("PUT", path, {"udesc": text}) if text else self.change("DELETE", path)

    def statuses(self, devices: Iterable[LiqidDevice]) -> dict[str, Raw]:
        """Return the complete status objects of devices, by name. Requests that change devices must contain them.

        Raises FabricError if a device has none.
        """
        wanted = list(devices)
        found: dict[str, Raw] = {}
        for path in dict.fromkeys(device.path for device in wanted):
            listed = self.get(f"status/{path}", filter="false")
            found |= {str(at(each, "name")): each for each in listed if isinstance(each, Mapping)}
        if lost := [device.name for device in wanted if device.name not in found]:
            raise FabricError(f"the Matrix has no status of {', '.join(lost)}")
        return found

    def pool_body(self, group: Raw) -> dict[str, Any]:
        """Build the body of the requests that begin, finish and cancel an edit of a group's pool."""
        where = self.place()
        return {
            "coordinates": where.coordinates,
            "fabr_id": where.fabr_id,
            "grp_id": at(group, "grp_id"),
        }

    @contextmanager
    def pool_edit(self, group: Raw, *, takes_over: bool) -> Iterator[None]:
        """Edit the device pool of a group within the `with` block. Changes take effect when the block ends without an error.

        Raises MatrixRefusal if another client edits the pool.

        Args:
            group: the group, as the Matrix lists it.
            cancel_existing: cancel an edit that already exists, because a dead process of this lease left it.
        """
        body = self.pool_body(group)
        self._begin("pool/edit", "pool/cancel", body, lambda error: takes_over)
        try:
            yield
            self.change("POST", "pool/done", body)
        except BaseException:
            self.quietly("POST", "pool/cancel", body)
            raise

    @contextmanager
    def machine_edit(self, machine: Raw) -> Iterator[None]:
        """Edit a machine of this program within the `with` block. Devices are connected when the block ends without an error.

        Raises MatrixRefusal if another machine is being edited, OutcomeUnknown if connecting the devices fails.
        """
        cancel, ours = "fabric/edit/cancel", at(machine, "mach_id")
        self._begin("fabric/edit", cancel, machine, lambda error: bool(ours) and error.names(ours))
        try:
            yield
        except BaseException:
            self.quietly("POST", cancel, machine)
            raise
        try:
            self.change("POST", "fabric/reprogram", machine)
        except MatrixRefused as error:
            self.quietly("POST", cancel, machine)
            raise OutcomeUnknown(f"{error}; which devices are connected now is unknown") from error

    def _begin(self, begin: str, cancel: str, body: Any, takes_over: Callable[[MatrixRefused], bool]) -> None:
        """Begin an edit on the Liqid Matrix. If a cancellable edit is in the way, cancel it and begin again.

        Args:
            begin_path: path of the request that begins the edit.
            cancel_path: path of the request that cancels it.
            body: body of both requests.
            may_cancel: function that decides, from the refusal, if the existing edit may be cancelled.
        """
        try:
            try:
                self.change("POST", begin, body)
            except MatrixRefused as error:
                if not error.busy or not takes_over(error):
                    raise
                self.quietly("POST", cancel, body)
                self.change("POST", begin, body)
        except OutcomeUnknown:
            self.quietly("POST", cancel, body)
            raise

    def _sent(self, send: Callable[[], Answer]) -> Answer:
        """Send a request, and log in before it or again after it if the Matrix does not accept the session."""
        if not self.client.authorization:
            self._login()
        answer = send()
        for turn in range(_LOGINS):
            if not _unknown_session(answer) or self.client.rehearses:
                return answer
            needed_login(self._options)
            self._pause(turn)
            self._login()
            answer = send()
        if _unknown_session(answer):
            raise FabricError(f"{self.client.base}: refused after a successful login ({answer.words()})")
        return answer

    def _pause(self, turn: int) -> None:
        """Wait for a random time before a repeated login.

        Processes with the same session label thus do not log in at the same time.
        """
        if turn:
            self.client.sleep(random.uniform(0, _LOGIN_AGAIN_S * 2**turn))

    def _login(self) -> None:
        """Create a new digest key for the session and use it from now on. This ends an older session with the same label."""
        found = login(self._options)
        if found is None or self.client.rehearses:
            return
        for turn in range(_LOGINS):
            self._pause(turn)
            words, key = self._digest(found)
            if key:
                self.client.authorization = {"X-API-Key": key}
                return
            if not _TAKEN.search(words):
                break
        raise FabricError(f"{self.client.base}: login as {found.user!r} ({self._options.label}): {words}")

    def _digest(self, found: Login) -> tuple[str, str]:
        """Replace the digest key of the session label, and return (message of the Matrix, new key).

        The key is empty if the Matrix gave none.
        """
        self.client.authorization = {}
        self.client.hide(found.password)
        basic = base64.b64encode(f"{found.user}:{found.password}".encode()).decode()
        headers, path = {"Authorization": f"Basic {basic}"}, f"{self._base}/digest/{self._options.label}"
        with suppress(OutcomeUnknown):  # there may be no key to delete; creating the new one shows any problem
            self.client.change("DELETE", path, headers=headers, secret=True)
        try:
            answer = self.client.change("POST", path, headers=headers, secret=True)
        except OutcomeUnknown as error:
            raise FabricError(f"{self.client.base}: login: {error}") from error
        made = snapshot.envelope(answer.body)
        key = next((at(each, "digest_key") for each in made.data), None) if made else None
        words = answer.words() if made is None or made.ok else made.words
        if answer.is_refusal and not _TAKEN.search(words):
            raise Refused(f"{self.client.base}: login as {found.user!r} ({self._options.label}): {words}")
        return words, key if made is not None and made.ok and isinstance(key, str) else ""

    def _wait(self, what: str, path: str) -> None:
        """Poll an operation that the Liqid Matrix has accepted until it is done.

        Raises MatrixRefusal if the operation failed, OutcomeUnknown if it cannot be followed.

        Args:
            operation: name of the operation, for messages.
            path: path of its status.
        """
        silent = 0
        while silent < _SILENT_POLLS:
            try:
                self.client.sleep(self._options.poll_s)
                answer = self.client.get(path)
            except FabricError as error:
                raise OutcomeUnknown(f"{what}: begun, and then: {error}") from error
            if answer.status == 404:
                return  # the Matrix forgets operations that are done
            found = snapshot.envelope(answer.body)
            state = snapshot.state_of(found.data).upper() if found is not None else ""
            if state == "SUCCESS":
                return
            if state == "FAILURE":
                said = next((str(at(each, "message") or "") for each in found.data), "") if found else ""
                raise MatrixRefused(f"{what}: failed: {said or 'no reason given'}")
            silent = 0 if state == "PENDING" else silent + 1
        raise OutcomeUnknown(f"{what}: begun, and {_SILENT_POLLS} answers did not say what came of it")


def _unknown_session(answer: Answer) -> bool:
    """Return True if an answer shows that the Matrix does not accept the session."""
    found = snapshot.envelope(answer.body)
    return answer.status in (401, 403) or (found is not None and not found.ok and found.code == 401)
