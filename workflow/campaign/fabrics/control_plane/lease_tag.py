"""Text form of the mark that identifies the owner of a lease.

A fabric has at most one free text field, such as a name or a description.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from urllib.parse import quote, unquote

from campaign.fabrics.protocol import Tag
from campaign.spec.hardware import Device

_TAG_PREFIX = "composable-campaign"
_TAG_PATTERN = re.compile(rf"{_TAG_PREFIX} lease=(\S+) campaign=(\S*) owner=(\S*) since=(\d+)")


def encode_tag(tag: Tag) -> str:
    """Encode a tag as one line of ASCII text without quotes.

    Example: `composable-campaign lease=.. campaign=.. owner=.. since=1700000000`.
    """
    lease, campaign, owner = (quote(word, safe="-_.+") for word in (tag.lease_id, tag.campaign, tag.owner))
    return f"{_TAG_PREFIX} lease={lease} campaign={campaign} owner={owner} since={int(tag.since_s)}"


def decode_tag(text: object) -> Tag | None:
    """Decode the tag in a text field of the fabric. Returns None if the text is anything else."""
    match = _TAG_PATTERN.fullmatch(text.strip()) if isinstance(text, str) else None
    if match is None:
        return None
    lease, campaign, owner = (unquote(word) for word in match.groups()[:3])
    return Tag(lease, campaign, owner, float(match[4]), ())


def group_tags_by_lease(tags: Iterable[Tag | None], devices: Sequence[Device]) -> dict[str, Tag]:
    """Return one tag per lease, with the fabric ids of the devices that the lease holds.

    A tag with an owner is preferred, because some marks have no room for the owner.
    """
    tags_by_lease: dict[str, Tag] = {}
    for tag in tags:
        if tag is not None and (tag.lease_id not in tags_by_lease or not tags_by_lease[tag.lease_id].owner):
            tags_by_lease[tag.lease_id] = tag
    ids = {
        lease: dict.fromkeys(device.fabric_id for device in devices if device.holder == lease)
        for lease in tags_by_lease
    }
    return {lease: replace(tag, devices=tuple(ids[lease])) for lease, tag in tags_by_lease.items()}
