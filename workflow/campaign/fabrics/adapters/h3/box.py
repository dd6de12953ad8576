"""One GPU box: reading it, and one allocation at a time. Its answers are never believed, only two readings that agree.

Everything is sent as public clients of real boxes send it, byte for byte, because the answers look like those of shell scripts.

Records of several kinds stand in one list, and a kind is told by its keys. All that is known of them is what public clients of two
boxes read; everything else is passed over, never guessed.
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
from campaign.fabrics.http.client import Client
from campaign.fabrics.http.response import Answer
from campaign.fabrics.http.response import listing as values

RESOURCES, ALLOCATION = "/h3api/v1/resources", "/h3api/v1/allocation"
_PLAIN = {"Content-Type": "text/plain"}


NOBODY = ("", "na", "n/a", "none", "null")
"""What `Host_Port#` may say of a device that nobody has, in lower case and without signs. Assumed: no recording shows one."""


@dataclass(frozen=True, slots=True, order=True)
class Gpu:
    """One GPU of a box. gid: how a box is told of it, good for the moment only; port: `Host_Port#`, None: nobody's."""

    uuid: str
    gid: str
    port: str | None

    @property
    def slot(self) -> int:
        """A number for its place: what is before the low byte of its Dev_GID, which is 00 wherever it was seen."""
        number = int(self.gid, 16)
        return number if number & 0xFF else number >> 8


@dataclass(frozen=True)
class Listing:
    """A box at one moment. ports: Port_GID by `Port#`; skipped: records of no known kind, which equality passes over.

    unreadable: how many of these seem to be GPUs, so that one that is not listed may be among them.
    """

    gpus: tuple[Gpu, ...]
    ports: Mapping[str, str]
    skipped: int = field(default=0, compare=False)
    unreadable: int = field(default=0, compare=False)

    def gpu(self, uuid: str) -> Gpu | None:
        return next((gpu for gpu in self.gpus if gpu.uuid == uuid), None)

    def called(self, gid: str) -> list[str]:
        """UUIDs of what has this Dev_GID."""
        return [gpu.uuid for gpu in self.gpus if gpu.gid == gid]


def listing(body: Any) -> Listing | None:
    """The listing that an answer is; None for what is none: no list of objects, or one without any port."""
    if not isinstance(body, list) or not all(isinstance(record, dict) for record in body):
        return None
    gpus, ports, skipped, unreadable = list[Gpu](), dict[str, str](), 0, 0
    for record in body:
        texts = {key: value for key, value in record.items() if isinstance(value, str)}
        uuid, gid = texts.get("OB_GPU_GUID", "").strip(), texts.get("Dev_GID", "")
        if texts.get("dev_type") == "GPU" and uuid and re.fullmatch("[0-9A-Fa-f]{1,8}", gid):
            gpus.append(Gpu(uuid, gid, _port(texts.get("Host_Port#", ""))))
        elif texts.get("Port#") and texts.get("Port_GID"):
            ports[texts["Port#"]] = texts["Port_GID"]
        else:
            skipped += 1
            unreadable += bool(texts.get("dev_type") == "GPU" or uuid)
    in_order = tuple(sorted(gpus, key=lambda gpu: (gpu.uuid, gpu.gid)))
    return Listing(in_order, ports, skipped, unreadable) if ports else None


def _port(told: str) -> str | None:
    return None if re.sub(r"[^a-z0-9/]", "", told.lower()) in NOBODY else told


class Box:
    """A box of GPUs. name: the drawer that it is. state_dir: beside the state file, for the lock that all campaigns share."""

    def __init__(self, name: str, client: Client, state_dir: Path, *, poll_s: float, reads_max: int) -> None:
        self.name = name
        self.client = client
        self._lock_file = state_dir / f"h3-{re.sub(r'[^A-Za-z0-9.-]', '_', name)}.lock"
        self._thread_lock = threading.Lock()
        self._poll_s, self._reads_max = poll_s, reads_max

    def read(self) -> Listing:
        """The box as two readings in a row agree on it.

        Raises FabricError for a box that is not there or never agrees with itself, ProtocolViolation for what is no reading.
        """
        last: Listing | ProtocolViolation | None = None
        for number in range(self._reads_max):
            if number:
                self.client.sleep(self._poll_s)
            try:
                found = self.read_once()
            except ProtocolViolation as error:
                last = error
                continue
            if found == last:
                return found
            last = found
        if isinstance(last, ProtocolViolation):
            raise last
        raise FabricError(
            f"{self.name} ({self.client.base}): no two readings in a row agreed in {self._reads_max} (reads_max); "
            "something else polls or changes the box: stop it, and try again"
        )

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Ask nothing of the box while anybody of this program does. Raises Busy when that takes longer than the operation may."""
        with self._thread_lock:
            held = acquire_lock(self._lock_file, attempts=max(1, int(100 * self.client.left_s())))
            if held is None:
                raise Busy(
                    f"{self.name}: another process of this program has been asking it for too long", (self.name,)
                )
            try:
                yield
            finally:
                os.close(held)

    def read_once(self) -> Listing:
        with self.alone():
            answer = self.client.get(RESOURCES)
        found = listing(answer.body)
        if found is None:
            raise self._no_list(answer)
        return found

    def _no_list(self, answer: Answer) -> FabricError:
        where = f"{self.name}: GET {self.client.base}{RESOURCES}"
        if answer.status in (401, 403):
            return Refused(f"{where}: {answer.words()}; the box demands a login, and none is known for its interface")
        if answer.is_refusal:
            return Refused(f"{where}: {answer.words()}")
        return ProtocolViolation(f"{where}: no list of devices and ports: {answer.words()}")

    def attach(self, gid: str, port_gid: str) -> str:
        """Have a device attached; gives what the box said of it, which proves nothing. OutcomeUnknown: it said nothing."""
        return self._allocate("POST", f'{{"gep" : "0", "port_gid" : "{port_gid}", "dev_gid" : "{gid}"}}')

    def detach(self, gid: str) -> str:
        """Have a device taken from whoever has it; see `attach`."""
        return self._allocate("DELETE", f'{{"gep" : "0", "dev_gid" : "{gid}"}}')

    def _allocate(self, method: str, body: str) -> str:
        with self.alone():
            answer = self.client.change(method, ALLOCATION, body.encode(), headers=_PLAIN, assumed={"result": [True]})
        told = values(answer.body, "result")
        if not told or not isinstance(told[0], bool):
            raise OutcomeUnknown(f"{self.name}: {method} {self.client.base}{ALLOCATION}: {answer.words()}")
        return "true" if told[0] else "false"
