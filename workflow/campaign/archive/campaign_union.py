"""One campaign from several that differ in their cells alone. Pure.

Taken together: configurations, values of axes, workloads, exclusions, and the most repetitions and compositions. Words and what
changes no number (`_FREE`) are the first campaign's. Leases are in blocks where those of all campaigns are. Everything else must be
equal. Cells that the axes give when they are put together, and that none of the campaigns asked for, are excluded by a rule that
says so: nobody planned them, so they are not missing either.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from campaign.config.resolve import Campaign, from_document
from campaign.documents.run_numbers import BLOCK_ORDERS
from campaign.errors import ArchiveError, ConfigError
from campaign.plan.matrix import expand

WHY_LEFT_OUT = "none of the campaigns that were put together asked for it"
_UNITED = (
    "campaign.configurations",
    "campaign.axes.configuration",
    "campaign.axes.workload",
    "campaign.axes.batch",
    "campaign.axes.precision",
    "campaign.exclude",
    "campaign.protocol.repetitions",
    "campaign.protocol.compositions",
    "campaign.protocol.lease_order",
)
_FREE = (
    "campaign.name",
    "campaign.title",
    "campaign.question",
    "campaign.baseline",
    "campaign.references",
    "campaign.protocol.attempts",
    "campaign.protocol.compose_wait_s",
    "campaign.protocol.isolation",
    "campaign.protocol.links.sizes_bytes",
    "references",
)
_FREE_OF_SYSTEMS = (
    "launcher",
    "description",
    "notes",
)
_SYSTEM = re.compile(r"system\.|systems\.[^.]+\.")
_AXES = ("configuration", "workload", "batch", "precision")


def united(campaigns: Sequence[Campaign], names: Sequence[str]) -> tuple[Campaign, tuple[str, ...]]:
    """The campaign of which all of these are parts, and what of the first one was taken where they differ.

    names: what to call each in messages. ArchiveError names the keys that make them different campaigns.
    """
    documents = [campaign.document() for campaign in campaigns]
    first = documents[0]
    if all(document == first for document in documents[1:]):
        return campaigns[0], ()
    differ = {path: values for path, values in _differences(documents) if not _may_differ(path)}
    if differ:
        told = "; ".join(
            f"{path} ({', '.join(_short(value) for value in values)})" for path, values in sorted(differ.items())
        )
        raise ArchiveError(
            f"{' and '.join(names)}: are archives of different campaigns and cannot be merged: {told}. Only configurations, "
            "values of axes, workloads, exclusions, repetitions, compositions and their order may differ; "
            "'campaign compare' compares them"
        )
    taken = tuple(path for path, _ in _differences(documents) if _is_free(path))
    document = _put_together(campaigns, documents)
    try:
        return _without_new_cells(document, campaigns, names), taken
    except ConfigError as error:
        raise ArchiveError(f"{' and '.join(names)}: cannot be merged: {error}") from error


def _differences(documents: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, list[Any]]]:
    """Paths of the keys at which documents differ, with the values, in the order of the first document."""

    def walk(path: str, values: list[Any]) -> Iterator[tuple[str, list[Any]]]:
        if all(value == values[0] for value in values[1:]):
            return
        if all(isinstance(value, Mapping) for value in values):
            for key in dict.fromkeys(key for value in values for key in value):
                yield from walk(f"{path}.{key}" if path else key, [value.get(key, _ABSENT) for value in values])
        else:
            yield path, values

    yield from walk("", list(documents))


class _Absent:
    """A key that is not there; unlike null, which is a value."""

    def __repr__(self) -> str:
        return "nothing"


_ABSENT = _Absent()


def _may_differ(path: str) -> bool:
    # `workloads.<name>` alone: a whole workload that only some of the campaigns have.
    a_workload = path.startswith("workloads.") and path.count(".") == 1
    return a_workload or path in _UNITED or _is_free(path) or path.startswith("campaign.axes.options.")


def _is_free(path: str) -> bool:
    of_system = _SYSTEM.match(path)
    return path[of_system.end() :] in _FREE_OF_SYSTEMS if of_system else path in _FREE


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}.."


def _put_together(campaigns: Sequence[Campaign], documents: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    document: dict[str, Any] = copy.deepcopy(dict(documents[0]))
    files = [each["campaign"] for each in documents]
    file, axes = document["campaign"], document["campaign"]["axes"]
    file["configurations"] = _in_order([each["configurations"] for each in files])
    for name in ("workload", "batch", "precision"):
        axes[name] = _in_order([each["axes"][name] for each in files])
    for name in dict.fromkeys(name for each in files for name in each["axes"]["options"]):
        if any(name not in each["axes"]["options"] for each in files):
            raise ArchiveError(
                f"axis '{name}' is an axis of some of the campaigns only; it must be an axis of all or of none"
            )
        axes["options"][name] = _in_order([each["axes"]["options"][name] for each in files])
    if any(each["axes"]["configuration"] for each in files):
        axes["configuration"] = _in_order([[c.name for c in campaign.configurations] for campaign in campaigns])
    for often in ("repetitions", "compositions"):
        file["protocol"][often] = max(each["protocol"][often] for each in files)
    if any(each["protocol"]["lease_order"] not in BLOCK_ORDERS for each in files):
        file["protocol"]["lease_order"] = "least-recomposition"
    file["exclude"] = [rule for rule in files[0]["exclude"] if all(rule in each["exclude"] for each in files)]
    file["baseline"] = next((each["baseline"] for each in files if each["baseline"]), None)
    document["workloads"] = {name: workload for each in documents for name, workload in each["workloads"].items()}
    return document


def _in_order(lists: Sequence[Sequence[Any]]) -> list[Any]:
    """Every value once: ascending where numbers ascend in every list, otherwise as they come."""
    together: list[Any] = []
    for value in (value for values in lists for value in values):
        if not any(value == known and type(value) is type(known) for known in together):
            together.append(value)
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in together)
    return sorted(together) if numbers and all(list(values) == sorted(values) for values in lists) else together


def _without_new_cells(document: dict[str, Any], campaigns: Sequence[Campaign], names: Sequence[str]) -> Campaign:
    """The campaign of a document without the cells that no part has; ArchiveError where a part would lose or rename any."""
    parts = [{cell.id: cell for cell in expand(campaign).cells} for campaign in campaigns]
    wanted = {identity for part in parts for identity in part}
    campaign = from_document(document)
    if {cell.id for cell in expand(campaign).cells} - wanted:
        when = "not (" + " or ".join(_selects(each, document) for each in campaigns) + ")"
        document["campaign"]["exclude"].append({"when": when, "why": WHY_LEFT_OUT})
        campaign = from_document(document)
    found = {cell.id: cell for cell in expand(campaign).cells}
    for part, name in zip(parts, names, strict=True):
        for identity, cell in part.items():
            same = found.get(identity)
            if same is None:
                raise ArchiveError(
                    f"{name}: its cell {cell.label()} does not exist in the merged campaign; do not merge these archives"
                )
            if same.configuration.name != cell.configuration.name:
                raise ArchiveError(
                    f"{name}: calls '{cell.configuration.name}' what is '{same.configuration.name}' among all; name the shape alike"
                )
    if set(found) - wanted:
        raise ArchiveError(
            f"{' and '.join(names)}: the merged campaign would have cells that none of them has; do not merge these archives"
        )
    return campaign


def _selects(campaign: Campaign, together: Mapping[str, Any]) -> str:
    """A predicate that holds for the cells of one part among those of all."""
    axes, all_axes = campaign.document()["campaign"]["axes"], together["campaign"]["axes"]
    own: dict[str, Sequence[Any]] = {name: axes[name] for name in _AXES[1:] if axes[name] != all_axes[name]}
    own |= {name: values for name, values in axes["options"].items() if values != all_axes["options"][name]}
    own["configuration"] = [configuration.name for configuration in campaign.configurations]
    terms = [f"{name} in {list(values)!r}" for name, values in own.items()]
    common = [rule["when"] for rule in together["campaign"]["exclude"]]
    terms += [f"not ({rule.when})" for rule in campaign.file.exclude if rule.when not in common]
    return "(" + " and ".join(terms) + ")"
