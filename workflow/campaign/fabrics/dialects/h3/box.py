"""One GPU box: reading it, and one allocation at a time. Its answers are never believed, only two readings that agree.

Everything is sent as public clients of real boxes send it, byte for byte, because the answers look like those of shell scripts.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Generic, TypeVar

from campaign.errors import FabricError
from campaign.fabrics.dialects.h3.listing import Listing, listing, survey
from campaign.fabrics.errors import Busy, OutcomeUnknown, ProtocolViolation
from campaign.fabrics.http.client import Client
from campaign.fabrics.http.json_values import listing as values
from campaign.fabrics.http.response import Answer
from campaign.files import acquire_lock

RESOURCES, ALLOCATION = "/h3api/v1/resources", "/h3api/v1/allocation"
State = TypeVar("State")
_PLAIN = {"Content-Type": "text/plain"}


class AnyBox(Generic[State]):
    """name: the drawer that it is. state_dir: beside the state file, for the lock that all campaigns on this system share."""

    def __init__(self, name: str, client: Client, state_dir: Path, *, poll_s: float, reads_max: int) -> None:
        self.name = name
        self.client = client
        self._lock_file = state_dir / f"h3-{re.sub(r'[^A-Za-z0-9.-]', '_', name)}.lock"
        self._thread_lock = threading.Lock()
        self._poll_s, self._reads_max = poll_s, reads_max

    def read_once(self) -> State:
        """One reading; ProtocolViolation: what came is none."""
        raise NotImplementedError

    def read(self) -> State:
        """The box as two readings in a row agree on it.

        Raises FabricError for a box that is not there or never agrees with itself, ProtocolViolation for what is no reading.
        """
        last: State | ProtocolViolation | None = None
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


class Box(AnyBox[Listing]):
    """A box of GPUs."""

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
            return FabricError(
                f"{where}: {answer.words()}; the box demands a login, and none is known for its interface"
            )
        return ProtocolViolation(f"{where}: no list of devices and ports: {answer.words()}")

    def survey(self) -> dict[str, Any]:
        """What the box answers, masked (see `listing.survey`)."""
        with self.alone():
            answer = self.client.get(RESOURCES)
        return {
            "status": answer.status,
            "headers": sorted(answer.headers),
            "content_type": answer.header("Content-Type"),
            "records": survey(answer.body if answer.body is not None else answer.text),
        }

    def attach(self, gid: str, port_gid: str) -> str:
        """Have a device attached; gives what the box said of it, which proves nothing. OutcomeUnknown: it said nothing."""
        return self._allocate("POST", f'{{"gep" : "0", "port_gid" : "{port_gid}", "dev_gid" : "{gid}"}}')

    def detach(self, gid: str) -> str:
        """As `attach`, for taking a device from whoever has it."""
        return self._allocate("DELETE", f'{{"gep" : "0", "dev_gid" : "{gid}"}}')

    def _allocate(self, method: str, body: str) -> str:
        with self.alone():
            answer = self.client.change(method, ALLOCATION, body.encode(), headers=_PLAIN, assumed={"result": [True]})
        told = values(answer.body, "result")
        if not told or not isinstance(told[0], bool):
            raise OutcomeUnknown(f"{self.name}: {method} {self.client.base}{ALLOCATION}: {answer.words()}")
        return "true" if told[0] else "false"
