"""The mark that says whose a lease is, as text: a fabric has one free field at most (a name, a description)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from urllib.parse import quote, unquote

from campaign.fabrics.protocol import Tag
from campaign.spec.hardware import Device

_PREFIX = "composable-campaign"
_TEXT = re.compile(rf"{_PREFIX} lease=(\S+) campaign=(\S*) owner=(\S*) since=(\d+)")


def encode(tag: Tag) -> str:
    """One line of ASCII without quotes, such as `composable-campaign lease=.. campaign=.. owner=.. since=1700000000`."""
    lease, campaign, owner = (quote(word, safe="-_.+") for word in (tag.lease_id, tag.campaign, tag.owner))
    return f"{_PREFIX} lease={lease} campaign={campaign} owner={owner} since={int(tag.since_s)}"


def decode(text: object) -> Tag | None:
    """The tag that a text is, or None for whatever else a fabric has in that field."""
    found = _TEXT.fullmatch(text.strip()) if isinstance(text, str) else None
    if found is None:
        return None
    lease, campaign, owner = (unquote(word) for word in found.groups()[:3])
    return Tag(lease, campaign, owner, float(found[4]), ())


def by_lease(tags: Iterable[Tag | None], devices: Sequence[Device]) -> dict[str, Tag]:
    """Tags that were found, one for each lease, with the devices that are its; not every mark has room for an owner."""
    found: dict[str, Tag] = {}
    for tag in tags:
        if tag is not None and (tag.lease_id not in found or not found[tag.lease_id].owner):
            found[tag.lease_id] = tag
    ids = {lease: dict.fromkeys(device.fabric_id for device in devices if device.holder == lease) for lease in found}
    return {lease: replace(tag, devices=tuple(ids[lease])) for lease, tag in found.items()}
