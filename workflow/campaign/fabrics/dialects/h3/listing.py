"""What a GPU box lists, read out of the records that it answers with. Pure.

Records of several kinds stand in one list, and a kind is told by its keys. All that is known of them is what public clients of two
boxes read; everything else is counted and told by `unknown`, never guessed.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

GPU_KEYS = frozenset({"dev_type", "Dev_GID", "Host_Port#", "OB_GPU_GUID"})
PORT_KEYS = frozenset({"Port#", "Port_GID"})
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
    """A box at one moment. ports: Port_GID by `Port#`. Equal where what is known of the box is; `strange` does not count."""

    gpus: tuple[Gpu, ...]
    ports: Mapping[str, str]
    strange: tuple[str, ...] = field(default=(), compare=False)

    def gpu(self, uuid: str) -> Gpu | None:
        return next((gpu for gpu in self.gpus if gpu.uuid == uuid), None)

    def called(self, gid: str) -> list[str]:
        """UUIDs of what has this Dev_GID."""
        return [gpu.uuid for gpu in self.gpus if gpu.gid == gid]


def listing(body: Any) -> Listing | None:
    """The listing that an answer is; None for what is none: no list of objects, or one without any port."""
    if not isinstance(body, list) or not all(isinstance(record, dict) for record in body):
        return None
    gpus, ports, strange = list[Gpu](), dict[str, str](), list[str]()
    for record in body:
        texts = {key: value for key, value in record.items() if isinstance(value, str)}
        if texts.get("dev_type") == "GPU" and re.fullmatch("[0-9A-Fa-f]{1,8}", texts.get("Dev_GID", "")):
            if uuid := texts.get("OB_GPU_GUID", "").strip():
                gpus.append(Gpu(uuid, texts["Dev_GID"], _port(texts.get("Host_Port#", ""))))
                known = GPU_KEYS
            else:
                known = frozenset[str]()
        elif texts.get("Port#") and texts.get("Port_GID"):
            ports[texts["Port#"]] = texts["Port_GID"]
            known = PORT_KEYS
        else:
            known = frozenset[str]()
        if more := record.keys() - known or {key for key in record if key not in texts}:
            strange.append(_kind(record, bool(known), more))
    return Listing(tuple(sorted(gpus, key=lambda gpu: (gpu.uuid, gpu.gid))), ports, tuple(strange)) if ports else None


def _port(told: str) -> str | None:
    return None if re.sub(r"[^a-z0-9/]", "", told.lower()) in NOBODY else told


def _kind(record: Mapping[str, Any], known: bool, more: Iterable[str]) -> str:
    """What is beyond what is known of a record, in words: its keys with the forms of their values."""
    shown = ", ".join(f"{key}={form(record[key])}" for key in sorted(more))
    return f"{'known record' if known else 'unknown record'} with {shown}"


def form(value: Any) -> str:
    """A value as it may be shown to others: what could name a device, an address or a person is masked."""
    if not isinstance(value, str):
        return f"{type(value).__name__}({'...' if isinstance(value, list | dict) else value})"
    if re.search(r"[0-9A-Fa-f]{8}|[.:@]|\d{4}|-.*-", value):
        return re.sub(r"[A-Za-z]", "x", re.sub(r"\d", "9", value))
    return repr(value[:40])


def unknown(listings: Iterable[Listing]) -> dict[str, int]:
    """How often each kind of thing that is not known was listed."""
    return dict(Counter(words for each in listings for words in each.strange))
