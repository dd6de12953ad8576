"""Client of one GPU box, which reads its devices and sends one allocation at a time.

A state counts only if two readings agree. Every request has the exact bytes that public clients send to real boxes, because the
answers look like the output of shell scripts.

One list contains records of several kinds, which are distinguished by their keys. Only the records that public clients of two
boxes read are known. All other records are skipped.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from campaign.common.errors import FabricError
from campaign.common.files import acquire_lock
from campaign.fabrics.errors import Busy, OutcomeUnknown, ProtocolViolation, Refused
from campaign.fabrics.http.client import HttpClient
from campaign.fabrics.http.response import Answer
from campaign.fabrics.http.response import get_list as values

RESOURCES_PATH, ALLOCATION_PATH = "/h3api/v1/resources", "/h3api/v1/allocation"
_PLAIN_TEXT_HEADERS = {"Content-Type": "text/plain"}


UNATTACHED_PORT_VALUES = ("", "na", "n/a", "none", "null")
"""Values of `Host_Port#` for a device without a host, in lower case without punctuation. Assumed: no recording shows one."""


@dataclass(frozen=True, slots=True, order=True)
class BoxGpu:
    """One GPU in a box's listing.

    gid: identifier (`Dev_GID`) used in requests, valid only at the time of the listing. port: `Host_Port#`, or None if no host
    has the GPU.
    """

    uuid: str
    gid: str
    port: str | None

    @property
    def slot(self) -> int:
        """Slot number of the GPU: its Dev_GID without the low byte, which is 00 in every recording."""
        number = int(self.gid, 16)
        return number if number & 0xFF else number >> 8


@dataclass(frozen=True)
class BoxListing:
    """Devices and ports of an H3 box at one moment.

    ports: Port_GID by `Port#`. skipped_records: number of records of an unknown kind, ignored in comparisons.
    """

    gpus: tuple[BoxGpu, ...]
    ports: Mapping[str, str]
    skipped_records: int = field(default=0, compare=False)
    unreadable: int = field(default=0, compare=False)

    def find_gpu(self, uuid: str) -> BoxGpu | None:
        """Return the GPU with this UUID, or None if the box does not list it."""
        return next((gpu for gpu in self.gpus if gpu.uuid == uuid), None)

    def find_uuids_by_gid(self, gid: str) -> list[str]:
        """Return the UUIDs of all GPUs with this Dev_GID. More than one means that the listing is ambiguous."""
        return [gpu.uuid for gpu in self.gpus if gpu.gid == gid]


def parse_listing(body: Any) -> BoxListing | None:
    """Parse the list of devices and ports of an H3 box, or return None if the JSON is not such a list.

    A valid listing is a list of objects with at least one port.
    """
    if not isinstance(body, list) or not all(isinstance(record, dict) for record in body):
        return None
    gpus, ports, skipped_records, unreadable = list[BoxGpu](), dict[str, str](), 0, 0
    for record in body:
        text_values = {key: value for key, value in record.items() if isinstance(value, str)}
        uuid, gid = text_values.get("OB_GPU_GUID", "").strip(), text_values.get("Dev_GID", "")
        if text_values.get("dev_type") == "GPU" and uuid and re.fullmatch("[0-9A-Fa-f]{1,8}", gid):
            gpus.append(BoxGpu(uuid, gid, _parse_port(text_values.get("Host_Port#", ""))))
        elif text_values.get("Port#") and text_values.get("Port_GID"):
            ports[text_values["Port#"]] = text_values["Port_GID"]
        else:
            skipped_records += 1
            unreadable += bool(text_values.get("dev_type") == "GPU" or uuid)
    in_order = tuple(sorted(gpus, key=lambda gpu: (gpu.uuid, gpu.gid)))
    return BoxListing(in_order, ports, skipped_records, unreadable) if ports else None


def _parse_port(value: str) -> str | None:
    """Parse the `Host_Port#` of a GPU. Return None for a value that means no host."""
    return None if re.sub(r"[^a-z0-9/]", "", value.lower()) in UNATTACHED_PORT_VALUES else value


class BoxClient:
    """Client of one H3 GPU box. It sends one request at a time, and shares the box with other processes through a lock."""

    def __init__(self, name: str, client: HttpClient, state_dir: Path, *, poll_s: float, reads_max: int) -> None:
        """Create a client for an H3 box.

        Args:
            name: name of the box, which is a drawer of the pool.
            client: HTTP client of the box.
            state_dir: directory of the state file, also used for the lock that all campaigns share.
            poll_s: poll interval in seconds.
            reads_max: maximum number of readings to take before two in a row must agree.
        """
        self.name = name
        self.client = client
        self._lock_file = state_dir / f"h3-{re.sub(r'[^A-Za-z0-9.-]', '_', name)}.lock"
        self._thread_lock = threading.Lock()
        self._poll_s, self._reads_max = poll_s, reads_max

    def read_confirmed(self) -> BoxListing:
        """Read an H3 box until two consecutive readings agree, and return that listing.

        Raises FabricError if the box cannot be reached or its readings never agree, ProtocolViolation if the last answer is not
        a listing.
        """
        previous: BoxListing | ProtocolViolation | None = None
        for attempt in range(self._reads_max):
            if attempt:
                self.client.sleep(self._poll_s)
            try:
                box_listing = self.read_once()
            except ProtocolViolation as error:
                previous = error
                continue
            if box_listing == previous:
                return box_listing
            previous = box_listing
        if isinstance(previous, ProtocolViolation):
            raise previous
        raise FabricError(
            f"{self.name} ({self.client.base}): no two consecutive readings out of {self._reads_max} agreed (reads_max); "
            "another program polls or changes the box; stop it and try again"
        )

    @contextmanager
    def lock_box(self) -> Iterator[None]:
        """Lock an H3 box within the `with` block, so that no other client of this program sends it a request.

        Raises Busy if the lock does not become free within the operation's time limit.
        """
        with self._thread_lock:
            descriptor = acquire_lock(self._lock_file, attempts=max(1, int(100 * self.client.compute_remaining_s())))
            if descriptor is None:
                raise Busy(f"{self.name}: another process of this program has used the box for too long", (self.name,))
            try:
                yield
            finally:
                os.close(descriptor)

    def read_once(self) -> BoxListing:
        """Read the devices and ports of an H3 box, without confirmation by a second reading.

        Raises ProtocolViolation if the answer is not a listing, FabricError if the box requires a login.
        """
        with self.lock_box():
            answer = self.client.get(RESOURCES_PATH)
        box_listing = parse_listing(answer.body)
        if box_listing is None:
            raise self._build_listing_error(answer)
        return box_listing

    def _build_listing_error(self, answer: Answer) -> FabricError:
        """Build the error for a box's answer that is not a listing."""
        request = f"{self.name}: GET {self.client.base}{RESOURCES_PATH}"
        if answer.status in (401, 403):
            return Refused(
                f"{request}: {answer.summarize()}; the box requires a login, which this adapter does not support"
            )
        if answer.is_refusal:
            return Refused(f"{request}: {answer.summarize()}")
        return ProtocolViolation(f"{request}: the answer is not a list of devices and ports: {answer.summarize()}")

    def attach_device(self, gid: str, port_gid: str) -> str:
        """Send the request that attaches a device of an H3 box to a port, and return the reported result ("true" or "false").

        The reported result proves nothing. Raises OutcomeUnknown if the box reports none.
        """
        return self._change_allocation("POST", f'{{"gep" : "0", "port_gid" : "{port_gid}", "dev_gid" : "{gid}"}}')

    def detach_device(self, gid: str) -> str:
        """Send the request that detaches a device of an H3 box, and return the reported result ("true" or "false").

        The reported result proves nothing. Raises OutcomeUnknown if the box reports none.
        """
        return self._change_allocation("DELETE", f'{{"gep" : "0", "dev_gid" : "{gid}"}}')

    def _change_allocation(self, method: str, body: str) -> str:
        """Send a request that changes an allocation, and return the result that the box reports."""
        with self.lock_box():
            answer = self.client.send_change(
                method, ALLOCATION_PATH, body.encode(), headers=_PLAIN_TEXT_HEADERS, rehearsal_body={"result": [True]}
            )
        results = values(answer.body, "result")
        if not results or not isinstance(results[0], bool):
            raise OutcomeUnknown(f"{self.name}: {method} {self.client.base}{ALLOCATION_PATH}: {answer.summarize()}")
        return "true" if results[0] else "false"
