"""How a lease is marked on a Matrix: text behind a device's user description, and the name of a machine. Pure."""

from __future__ import annotations

import hashlib
import re

from campaign.fabrics.control_plane import lease_tag
from campaign.fabrics.protocol import Tag

_BETWEEN = " | "
_NAME = re.compile(r"cc[0-9a-f]{14}")


def machine_name(lease_id: str, host: str) -> str:
    """The name of a lease's machine for a host: letters and digits only, the same every time."""
    return f"cc{hashlib.sha256(f'{lease_id}/{host}'.encode()).hexdigest()[:14]}"


def is_machine_name(name: object) -> bool:
    """True for what some lease of this program may have named."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def marked(text: str, tag: Tag) -> str:
    """A user description with our mark; what somebody wrote there before stays in front of it."""
    own, _ = unmarked(text)
    return f"{own}{_BETWEEN}{lease_tag.encode(tag)}" if own else lease_tag.encode(tag)


def unmarked(text: str) -> tuple[str, Tag | None]:
    """What somebody wrote, and our mark where there is one."""
    own, _, last = text.rpartition(_BETWEEN)
    tag = lease_tag.decode(last)
    return (text, None) if tag is None else (own, tag)
