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
from campaign.fabrics.adapters.liqid.snapshot import LiqidDevice, MatrixObject
from campaign.fabrics.control_plane.protocol import ControlPlaneOptions
from campaign.fabrics.errors import OutcomeUnknown, ProtocolViolation, Refused
from campaign.fabrics.http.client import Answer, HttpClient
from campaign.fabrics.http.options import Login, read_login, require_login
from campaign.fabrics.http.response import get_nested
from campaign.fabrics.protocol import AttachMode

RESERVED_LABELS = ("slurm",)
BASE_PATH = "/liqid/api/v2"
_MAX_LOGINS = 6
"""Maximum number of logins per request. Processes with the same label end each other's sessions and must then log in again."""
_LOGIN_BACKOFF_S = 0.05
_MAX_SILENT_POLLS = 5
_LABEL_IN_USE = re.compile(r"exist|in use|duplicate", re.IGNORECASE)


class LiqidOptions(ControlPlaneOptions):
    """Options of a Liqid Matrix. `hosts` names the compute device of a host if its name differs from the host's."""

    group: str = Field(
        default="campaign", min_length=1, description="group in which machines are created. No other user should use it"
    )
    create_group: bool = Field(default=False, description="create the group if the Matrix does not have it")
    label: str = Field(
        default="composable-campaign",
        pattern=r"^[A-Za-z0-9_.-]+$",
        description="label of the session (digest). A login ends an older session with the same label",
    )
    poll_s: Annotated[float, Field(gt=0)] = Field(
        default=1.0, description="poll interval of an unfinished operation in seconds"
    )
    attach_mode: AttachMode = Field(
        default="hot",
        description="`hot`: hosts keep running; `reboot`: a host is rebooted after its devices are attached; `powered_off`: a host "
        "is started after its devices are attached, and shut down before they are detached",
    )

    @field_validator("label")
    @classmethod
    def _reject_reserved_label(cls, label: str) -> str:
        """Reject a session label that Liqid's own software uses."""
        if label.lower() in RESERVED_LABELS:
            raise ValueError(
                f"the label {label!r} is reserved for Liqid's Slurm plugin (a login would end its session); use another label"
            )
        return label


class MatrixRefusal(FabricError):
    """Error for a request that the Liqid Matrix refused. Nothing was changed."""

    @property
    def is_busy(self) -> bool:
        """True if another edit on the Matrix is the reason for the refusal."""
        return snapshot.is_busy_message(str(self))

    def mentions_number(self, number: object) -> bool:
        """Return True if the refusal mentions the machine or group with this number."""
        return snapshot.parse_number(number) in snapshot.find_numbers(str(self).partition(": ")[2])


class ReadRefused(MatrixRefusal, Refused):
    """Error for a read request that the Matrix refused. A retry does not help."""


@dataclass(frozen=True, slots=True)
class MatrixLocation:
    """Coordinates and fabric id of a Liqid Matrix. They never change and many requests need them."""

    coordinates: Any
    fabr_id: int


class LiqidApi:
    """Client of one Liqid Matrix that logs in when necessary.

    Every method raises FabricError. `send_change` raises MatrixRefusal or OutcomeUnknown.
    """

    def __init__(self, options: LiqidOptions) -> None:
        """Create the client without sending a request."""
        self.client = HttpClient(options)
        self._options = options
        self._location: MatrixLocation | None = None
        self._base_path = "" if self.client.base.endswith(BASE_PATH) else BASE_PATH

    def get_data(self, path: str, **params: Any) -> tuple[Any, ...]:
        """Send a GET request to the Liqid Matrix and return the data in its answer.

        Raises MatrixRefusal if the Matrix refuses the request, ProtocolViolation if the answer is not a list.

        Args:
            path: path below the base path of the interface.
            **params: query parameters.
        """
        answer = self._send_with_login(lambda: self.client.get(f"{self._base_path}/{path}", params or None))
        envelope = snapshot.parse_envelope(answer.body)
        if envelope is not None and not envelope.is_success:
            raise (ReadRefused if answer.is_refusal else MatrixRefusal)(f"GET {path}: {envelope.message}")
        if answer.is_refusal:
            raise ReadRefused(f"GET {path}: {answer.summarize()}")
        if answer.status >= 500:
            raise FabricError(f"GET {path}: {answer.summarize()}")
        if not answer.is_success or envelope is None:
            raise ProtocolViolation(f"GET {path}: {answer.summarize()}")
        return envelope.data

    def read_location(self) -> MatrixLocation:
        """Return the coordinates and fabric id of the Liqid Matrix, which are read only once."""
        if self._location is None:
            coordinates = next(iter(self.get_data("coordinates")), {"rack": 0, "shelf": 0, "node": 0})
            self._location = MatrixLocation(coordinates, snapshot.find_first_number(self.get_data("fabric/id")) or 1)
        return self._location

    def send_change(self, method: str, path: str, body: Any = None) -> tuple[Any, ...]:
        """Send a change to the Liqid Matrix, wait until it is done, and return the data in the answer.

        A rehearsal does not wait. Raises MatrixRefusal or OutcomeUnknown.
        """
        answer = self._send_with_login(lambda: self.client.send_change(method, f"{self._base_path}/{path}", body))
        operation = f"{method} {path}"
        if answer.status >= 500:
            raise OutcomeUnknown(f"{operation}: {answer.summarize()}")
        envelope = snapshot.parse_envelope(answer.body)
        if envelope is not None and not envelope.is_success:
            raise MatrixRefusal(f"{operation}: {envelope.message}")
        if not answer.is_success:
            raise MatrixRefusal(f"{operation}: {answer.summarize()}")
        data = () if envelope is None else envelope.data
        if answer.status == 202 and (href := snapshot.find_status_link(data)) is not None:
            # Only the path of the link is used, so that the session key is sent to this Matrix only.
            _, base, path_below_base = (path := urlsplit(href).path).partition(BASE_PATH)
            self._wait_until_done(operation, self._base_path + (path_below_base if base else f"/{path.lstrip('/')}"))
        return data

    def try_change(self, method: str, path: str, body: Any = None) -> None:
        """Send a change that only cleans up, ignoring any failure."""
        with suppress(FabricError):
            self.send_change(method, path, body)

    def set_description(self, device: LiqidDevice, text: str) -> None:
        """Set the user description of a device on the Liqid Matrix, or delete it if the text is empty."""
        path = f"device/udesc/{snapshot.DESCRIPTION_TYPE_BY_PATH[device.path]}/{device.device_id}"
        self.send_change("PUT", path, {"udesc": text}) if text else self.send_change("DELETE", path)

    def read_statuses(self, devices: Iterable[LiqidDevice]) -> dict[str, MatrixObject]:
        """Return the complete status objects of devices, by name. Requests that change devices must contain them.

        Raises FabricError if a device has none.
        """
        device_list = list(devices)
        status_by_name: dict[str, MatrixObject] = {}
        for path in dict.fromkeys(device.path for device in device_list):
            records = self.get_data(f"status/{path}", filter="false")
            status_by_name |= {
                str(get_nested(record, "name")): record for record in records if isinstance(record, Mapping)
            }
        if missing_names := [device.name for device in device_list if device.name not in status_by_name]:
            raise FabricError(f"the Matrix does not report the status of {', '.join(missing_names)}")
        return status_by_name

    def build_pool_body(self, group: MatrixObject) -> dict[str, Any]:
        """Build the body of the requests that begin, finish and cancel an edit of a group's pool."""
        location = self.read_location()
        return {
            "coordinates": location.coordinates,
            "fabr_id": location.fabr_id,
            "grp_id": get_nested(group, "grp_id"),
        }

    @contextmanager
    def edit_pool(self, group: MatrixObject, *, cancel_existing: bool) -> Iterator[None]:
        """Edit the device pool of a group within the `with` block. Changes take effect when the block ends without an error.

        Raises MatrixRefusal if another client edits the pool.

        Args:
            group: the group, as the Matrix lists it.
            cancel_existing: True to cancel an existing edit that a dead process of this lease left behind.
        """
        body = self.build_pool_body(group)
        self._begin_edit("pool/edit", "pool/cancel", body, lambda error: cancel_existing)
        try:
            yield
            self.send_change("POST", "pool/done", body)
        except BaseException:
            self.try_change("POST", "pool/cancel", body)
            raise

    @contextmanager
    def edit_machine(self, machine: MatrixObject) -> Iterator[None]:
        """Edit a machine of this program within the `with` block. Devices are connected when the block ends without an error.

        Raises MatrixRefusal if another machine is being edited, OutcomeUnknown if connecting the devices fails.
        """
        cancel_path, mach_id = "fabric/edit/cancel", get_nested(machine, "mach_id")
        self._begin_edit(
            "fabric/edit", cancel_path, machine, lambda error: bool(mach_id) and error.mentions_number(mach_id)
        )
        try:
            yield
        except BaseException:
            self.try_change("POST", cancel_path, machine)
            raise
        try:
            self.send_change("POST", "fabric/reprogram", machine)
        except MatrixRefusal as error:
            self.try_change("POST", cancel_path, machine)
            raise OutcomeUnknown(f"{error}; it is unknown which devices are connected now") from error

    def _begin_edit(
        self, begin_path: str, cancel_path: str, body: Any, may_cancel: Callable[[MatrixRefusal], bool]
    ) -> None:
        """Begin an edit on the Liqid Matrix. If a cancellable edit is in the way, cancel it and begin again.

        Args:
            begin_path: path of the request that begins the edit.
            cancel_path: path of the request that cancels it.
            body: body of both requests.
            may_cancel: function that decides from the refusal whether the existing edit may be cancelled.
        """
        try:
            try:
                self.send_change("POST", begin_path, body)
            except MatrixRefusal as error:
                if not error.is_busy or not may_cancel(error):
                    raise
                self.try_change("POST", cancel_path, body)
                self.send_change("POST", begin_path, body)
        except OutcomeUnknown:
            self.try_change("POST", cancel_path, body)
            raise

    def _send_with_login(self, send: Callable[[], Answer]) -> Answer:
        """Send a request, logging in first if necessary, and repeat it after a new login if the Matrix rejects the session."""
        if not self.client.authorization:
            self._log_in()
        answer = send()
        for attempt in range(_MAX_LOGINS):
            if not _is_session_unknown(answer) or self.client.is_rehearsing:
                return answer
            require_login(self._options)
            self._wait_before_login(attempt)
            self._log_in()
            answer = send()
        if _is_session_unknown(answer):
            raise FabricError(
                f"{self.client.base}: the Matrix refuses the session after a successful login ({answer.summarize()})"
            )
        return answer

    def _wait_before_login(self, attempt: int) -> None:
        """Wait for a random time before a repeated login.

        Processes with the same session label thus do not log in at the same time.
        """
        if attempt:
            self.client.sleep(random.uniform(0, _LOGIN_BACKOFF_S * 2**attempt))

    def _log_in(self) -> None:
        """Create a new digest key for the session and use it from now on. This ends an older session with the same label."""
        account = read_login(self._options)
        if account is None or self.client.is_rehearsing:
            return
        for attempt in range(_MAX_LOGINS):
            self._wait_before_login(attempt)
            message, key = self._create_digest_key(account)
            if key:
                self.client.authorization = {"X-API-Key": key}
                return
            if not _LABEL_IN_USE.search(message):
                break
        raise FabricError(f"{self.client.base}: login as {account.user!r} ({self._options.label}) failed: {message}")

    def _create_digest_key(self, account: Login) -> tuple[str, str]:
        """Replace the digest key of the session label, and return (message of the Matrix, new key).

        The key is empty if the Matrix returned none.
        """
        self.client.authorization = {}
        self.client.add_secret(account.password)
        encoded_login = base64.b64encode(f"{account.user}:{account.password}".encode()).decode()
        headers, path = {"Authorization": f"Basic {encoded_login}"}, f"{self._base_path}/digest/{self._options.label}"
        with suppress(OutcomeUnknown):  # There may be no key to delete. Creating the new key shows any problem.
            self.client.send_change("DELETE", path, headers=headers, secret=True)
        try:
            answer = self.client.send_change("POST", path, headers=headers, secret=True)
        except OutcomeUnknown as error:
            raise FabricError(f"{self.client.base}: login failed: {error}") from error
        envelope = snapshot.parse_envelope(answer.body)
        key = next((get_nested(record, "digest_key") for record in envelope.data), None) if envelope else None
        message = answer.summarize() if envelope is None or envelope.is_success else envelope.message
        if answer.is_refusal and not _LABEL_IN_USE.search(message):
            raise Refused(f"{self.client.base}: login as {account.user!r} ({self._options.label}) failed: {message}")
        return message, key if envelope is not None and envelope.is_success and isinstance(key, str) else ""

    def _wait_until_done(self, operation: str, path: str) -> None:
        """Poll an operation that the Liqid Matrix has accepted until it is done.

        Raises MatrixRefusal if the operation failed, OutcomeUnknown if its progress cannot be followed.

        Args:
            operation: name of the operation, for messages.
            path: path of its status.
        """
        silent_polls = 0
        while silent_polls < _MAX_SILENT_POLLS:
            try:
                self.client.sleep(self._options.poll_s)
                answer = self.client.get(path)
            except FabricError as error:
                raise OutcomeUnknown(
                    f"{operation}: the operation was accepted, but its status cannot be read: {error}"
                ) from error
            if answer.status == 404:
                return  # The Matrix forgets completed operations.
            envelope = snapshot.parse_envelope(answer.body)
            state = snapshot.find_execution_state(envelope.data).upper() if envelope is not None else ""
            if state == "SUCCESS":
                return
            if state == "FAILURE":
                message = (
                    next((str(get_nested(record, "message") or "") for record in envelope.data), "") if envelope else ""
                )
                raise MatrixRefusal(f"{operation}: the operation failed: {message or 'the Matrix gave no reason'}")
            silent_polls = 0 if state == "PENDING" else silent_polls + 1
        raise OutcomeUnknown(
            f"{operation}: the operation was accepted, but {_MAX_SILENT_POLLS} answers did not contain its status"
        )


def _is_session_unknown(answer: Answer) -> bool:
    """Return True if an answer shows that the Matrix does not accept the session."""
    envelope = snapshot.parse_envelope(answer.body)
    return answer.status in (401, 403) or (envelope is not None and not envelope.is_success and envelope.code == 401)
