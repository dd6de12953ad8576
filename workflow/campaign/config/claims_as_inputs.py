"""Published claims whose numbers a campaign takes as given: what files name under `uses`."""

from __future__ import annotations

from collections.abc import Mapping


def claims_as_inputs(document: object, place: str = "") -> dict[str, list[str]]:
    """Ids of claims, each with the places of a JSON-able document that use it, such as 'system.links.fabric'."""
    found: dict[str, list[str]] = {}
    if isinstance(document, Mapping):
        children = [(f"{place}.{key}".lstrip("."), value) for key, value in document.items() if key != "uses"]
        for claim in document.get("uses") or ():
            found.setdefault(str(claim), []).append(place)
    else:
        children = [(place, each) for each in document] if isinstance(document, list | tuple) else []
    for where, child in children:
        for claim, places in claims_as_inputs(child, where).items():
            found.setdefault(claim, []).extend(each for each in places if each not in found.get(claim, []))
    return found
