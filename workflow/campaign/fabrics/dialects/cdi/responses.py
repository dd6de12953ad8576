"""Answers of the fabric manager, in words and as what they say was attached. Pure."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping

from campaign.fabrics.http.client import Answer


def words(answer: Answer) -> str:
    """{"status", "detail": {"code", "message": text or object}}, in words; what else came, as it is."""
    detail = answer.body.get("detail") if isinstance(answer.body, dict) else None
    if not isinstance(detail, dict):
        return answer.words()
    message = detail.get("message")
    text = message if isinstance(message, str) else json.dumps(message)
    return f"HTTP {answer.status} {detail.get('code', '')} {text}".replace("  ", " ")


def attached_by(answer: Answer, types: Collection[str]) -> list[str]:
    """UUIDs of the resources of the named types in the answer to an update; none where it is something else.

    Some answers have all of the machine in them, its processors too.
    """
    data = answer.body.get("data") if isinstance(answer.body, dict) else None
    listed = data.get("machines") if isinstance(data, dict) else None
    resources = [
        one
        for machine in (listed if isinstance(listed, list) else [])
        if isinstance(machine, dict)
        for one in (machine.get("resources") or [])
        if isinstance(one, dict)
    ]
    return [str(one["res_uuid"]) for one in resources if one.get("res_uuid") and one.get("res_type") in types]


def itemised(words_of: Mapping[str, str]) -> str:
    return "; ".join(f"{unit}: {text}" for unit, text in words_of.items())
