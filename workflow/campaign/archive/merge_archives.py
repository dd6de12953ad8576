"""Several archives of one campaign in one: what was measured in parts, or on several machines.

Campaigns are taken together: configurations, values of axes, workloads, exclusions, and the most repetitions and compositions.
Words and what changes no number (`_FREE`) are the first campaign's; everything else must be equal. Leases are in blocks where those
of all campaigns are. Cells that the axes give when they are put together, and that no campaign asked for, are excluded by a rule
that says so.

Runs are told apart by cell and repetition. A record that is the same in two archives is one; records that differ are refused, or
the first archive's counts and the other is kept under superseded/. Where two archives call different leases by one id (they were
measured below the same path on two machines), the later archive's lease gets another id, also in its records. Tables are made
anew; a plan is kept where all have the same one, since no plan was made for all of it.
"""

from __future__ import annotations

import copy
import json
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from campaign.archive.layout import DERIVED, Index, part_of
from campaign.archive.read import Opened, opened
from campaign.archive.write import Written, aside, manifests_by_age, pack_crate, remade
from campaign.archive.zip_file import Content
from campaign.config.resolve import Campaign, from_document
from campaign.documents.run_numbers import BLOCK_ORDERS
from campaign.errors import ArchiveError, ConfigError
from campaign.plan.matrix import expand

OnConflict = Literal["error", "first"]
WHY_LEFT_OUT = "none of the campaigns that were put together asked for it"
_LONGEST = 60
_UNITED = re.compile(
    r"campaign\.(configurations|exclude|axes\.(configuration|workload|batch|precision|options\..*)"
    r"|protocol\.(repetitions|compositions|lease_order))|workloads\.[^.]+|inputs\..*"
)
"""Keys that may differ, since both are taken: a whole workload or input file too, that only some campaigns have."""
_FREE = re.compile(
    r"campaign\.(name|title|question|baseline|references|protocol\.(attempts|compose_wait_s|isolation|links\.sizes_bytes))"
    r"|references|(system|systems\.[^.]+)\.(launcher|description|notes)"
)
"""Keys that may differ and change no number: the first campaign's are taken."""
_AXES = ("workload", "batch", "precision")


@dataclass(frozen=True)
class Merged:
    """What became of a merge. written: the archive; taken: keys of the campaign in which the first archive's value counts;
    renamed: leases that got another id, with the new one; superseded: records that gave way to those of an earlier archive; plan:
    whether it was kept."""

    written: Written
    taken: tuple[str, ...] = ()
    renamed: Mapping[str, str] = field(default_factory=dict)
    superseded: tuple[str, ...] = ()
    plan: bool = True


def merge(out: Path, archives: Sequence[Path], on_conflict: OnConflict = "error") -> Merged:
    """Write the archive of all these archives; `out` may be one of them.

    ArchiveError when they are of different campaigns (it says in what), when records of one run differ, when `out` is there and
    none of them, and for an archive that cannot be read. Nothing is written then.
    """
    if out.exists() and not any(out.samefile(path) for path in archives if path.exists()):
        raise ArchiveError(
            f"{out}: already exists and is not one of the archives to merge; give another file, or add it to the archives"
        )
    with ExitStack() as stack:
        parts = [stack.enter_context(opened(path)) for path in archives]
        names = [str(path) for path in archives]
        campaign, taken = united([part.campaign for part in parts], names)
        # What any archive says has been superseded, an archive from before that must not bring back.
        superseded = {sha for part in parts for name, sha in part.index.sha256.items() if part_of(name) == "superseded"}
        union = _Union(names, superseded)
        for position, part in enumerate(parts):
            union.add(position, part)
        if union.conflicts and on_conflict == "error":
            raise ArchiveError(union.told())
        members = union.members
        plan = _same_plan(parts)
        members.update(plan)
        where = parts[0].where if len({part.where for part in parts}) == 1 else None
        order = _in_turn(parts, members)
        remade(campaign, members, where, Path(stack.enter_context(TemporaryDirectory(prefix="campaign-archive-"))))
        license, creator = (
            next(filter(None, (getattr(part.index, name) for part in parts)), "") for name in ("license", "creator")
        )
        index = Index(campaign.name, where, license, creator, order=order)
        written = pack_crate(campaign, members, out, index, [part.directory for part in parts])
    left_out = not plan and any(name.startswith("plan/") for part in parts for name in part.index.sha256)
    return Merged(written, taken, union.renamed, tuple(union.superseded), not left_out)


def _in_turn(parts: Sequence[Opened], members: Mapping[str, Content]) -> tuple[str, ...]:
    """Manifests by age, those of a later archive after those of an earlier one; the files' times say so too from now on."""
    known = [manifests_by_age({name: part.directory / name for name in part.index.sha256}) for part in parts]
    order = tuple(dict.fromkeys(name for names in known for name in names))
    for position, name in enumerate(order):
        if isinstance(path := members[name], Path):
            os.utime(path, (position + 1.0, position + 1.0))
    return order


def _same_plan(parts: Sequence[Opened]) -> dict[str, Content]:
    plans = [{name: sha for name, sha in part.index.sha256.items() if name.startswith("plan/")} for part in parts]
    return {name: parts[0].directory / name for name in plans[0]} if all(plan == plans[0] for plan in plans) else {}


class _Union:
    """The members of all archives, taken in one archive after the other."""

    def __init__(self, names: Sequence[str], set_aside: Collection[str]) -> None:
        self.names = names
        self.set_aside = set_aside
        self.members: dict[str, Content] = {}
        self.conflicts: list[str] = []
        self.of_first_conflict: tuple[str, ...] = ()
        self.superseded: list[str] = []
        self.renamed: dict[str, str] = {}
        self._from: dict[str, int] = {}

    def add(self, position: int, part: Opened) -> None:
        new_ids = self._colliding(position, part)
        self.renamed |= new_ids
        gave_way: set[str] = set()
        for name, digest in part.index.sha256.items():
            kind = part_of(name)
            if kind == "records" and digest in self.set_aside:
                gave_way.add(_run(name))
            elif kind and kind not in DERIVED and kind != "telemetry":
                content = _renamed(kind, part.directory / name, new_ids)
                target = _new_name(kind, name, new_ids)
                if kind == "records" and self._differs(target, content):
                    self._give_way(position, target, content)
                    gave_way.add(_run(target))
                elif kind == "superseded" and self._differs(target, content):
                    self.members[aside(content, target.split("/", 2)[2])] = content
                elif target not in self.members:
                    self.members[target], self._from[target] = content, position
        for name in part.index.sha256:
            # Samples belong to the record that counts.
            if part_of(name) == "telemetry" and name not in self.members and _run(name) not in gave_way:
                self.members[name] = part.directory / name

    def _colliding(self, position: int, part: Opened) -> dict[str, str]:
        """Ids under which an earlier archive has another lease, and what this archive's is called instead."""
        taken = {
            _lease_of(path)
            for name in part.index.sha256
            if part_of(name) in ("leases", "links") and self._differs(name, path := part.directory / name)
        }
        return {lease: f"{lease}.part{position + 1}" for lease in sorted(taken)}

    def _differs(self, name: str, content: Content) -> bool:
        return name in self.members and _bytes(self.members[name]) != _bytes(content)

    def _give_way(self, position: int, name: str, content: Content) -> None:
        ours, theirs = (json.loads(_bytes(each)) for each in (self.members[name], content))
        cell = f"{ours['cell']['workload']} on {ours['cell']['configuration']}, batch {ours['cell']['batch']}"
        words = f"{cell}, {ours['cell']['precision']}, repetition {ours['repetition']}: {_difference(ours, theirs)}"
        self.of_first_conflict = self.of_first_conflict or (self.names[self._from[name]], self.names[position])
        self.conflicts.append(words)
        self.members[aside(content, name)] = content
        self.superseded.append(name)

    def told(self) -> str:
        """Which runs have different records."""
        more = f", and {len(self.conflicts) - 5} more" if len(self.conflicts) > 5 else ""
        return (
            f"{' and '.join(self.of_first_conflict)}: hold different records of {len(self.conflicts)} runs: "
            f"{'; '.join(self.conflicts[:5])}{more}. With '--on-conflict first' those of the archive that is named first count, "
            "and the others are kept under superseded/"
        )


def _bytes(content: Content) -> bytes:
    return content if isinstance(content, bytes) else content.read_bytes()


def _run(name: str) -> str:
    """`<cell id>.<repetition>` of a record or of samples."""
    return ".".join(name.rpartition("/")[2].split(".")[:2])


def _lease_of(path: Path) -> str:
    return str(json.loads(path.read_bytes())["lease_id"])


def _new_name(kind: str, name: str, new_ids: Mapping[str, str]) -> str:
    if kind not in ("leases", "links"):
        return name
    stem = name.removeprefix(f"{kind}/")
    old = next((each for each in sorted(new_ids, key=len, reverse=True) if stem.startswith(f"{each}.")), None)
    return name if old is None else f"{kind}/{new_ids[old]}{stem[len(old) :]}"


def _renamed(kind: str, path: Path, new_ids: Mapping[str, str]) -> Content:
    if not new_ids or kind not in ("records", "leases", "links"):
        return path
    document = json.loads(path.read_bytes())
    if document["lease_id"] not in new_ids:
        return path
    text = json.dumps({**document, "lease_id": new_ids[document["lease_id"]]}, ensure_ascii=False)
    return text.encode() + b"\n"


def _difference(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> str:
    """How both ended, where that differs, and the first key in which they differ, with its values."""
    path, (one, two) = next(_differences([ours, theirs]), ("", [None, None]))
    hows = [record["status"] for record in (ours, theirs)]
    for place, record in enumerate((ours, theirs)):
        if rate := record.get("throughput_per_s"):
            hows[place] += f" ({rate:.6g} per s)"
    told = [] if hows[0] == hows[1] else [f"{hows[0]} against {hows[1]}"]
    told += [f"'{path}' is {_short(one)} against {_short(two)}"] if path else []
    return ", ".join(told) or "written otherwise"


def united(campaigns: Sequence[Campaign], names: Sequence[str]) -> tuple[Campaign, tuple[str, ...]]:
    """The campaign of which all of these are parts, and what of the first one was taken where they differ.

    names: what to call each in messages. ArchiveError names the keys that make them different campaigns.
    """
    documents = [campaign.document() for campaign in campaigns]
    first = documents[0]
    if all(document == first for document in documents[1:]):
        return campaigns[0], ()
    differences = dict(_differences([_without_places(document) for document in documents]))
    if differ := {path: values for path, values in differences.items() if not _may_differ(path, values)}:
        told = "; ".join(f"{path} ({', '.join(map(_short, values))})" for path, values in sorted(differ.items()))
        raise ArchiveError(
            f"{' and '.join(names)}: are archives of different campaigns and cannot be merged: {told}. Only configurations, "
            "values of axes, workloads, exclusions, repetitions, compositions and their order may differ; "
            "'campaign compare' compares them"
        )
    try:
        together = _without_new_cells(_put_together(campaigns, documents), campaigns, names)
        return together, tuple(path for path in differences if _FREE.fullmatch(path))
    except ConfigError as error:
        raise ArchiveError(f"{' and '.join(names)}: cannot be merged: {error}") from error


def _without_places(document: Mapping[str, Any]) -> dict[str, Any]:
    """A campaign with the content of its input files, wherever they were."""
    inputs = document.get("inputs", {})
    content = {name: {text: file["sha256"] for text, file in files.items()} for name, files in inputs.items()}
    return {**document, "inputs": content, "workload_dirs": {}}


def _differences(documents: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, list[Any]]]:
    """Paths of the keys at which documents differ, with the values, in the order of the first document."""

    def walk(path: str, values: Sequence[Any]) -> Iterator[tuple[str, list[Any]]]:
        if all(value == values[0] for value in values[1:]):
            return
        if all(isinstance(value, Mapping) for value in values):
            for key in dict.fromkeys(key for value in values for key in value):
                yield from walk(f"{path}.{key}" if path else key, [value.get(key, _ABSENT) for value in values])
        else:
            yield path, list(values)

    yield from walk("", documents)


class _Absent:
    """A key that is not there; unlike null, which is a value."""

    def __repr__(self) -> str:
        return "nothing"


_ABSENT = _Absent()


def _may_differ(path: str, values: Sequence[Any]) -> bool:
    same_where_given = len({str(value) for value in values if value is not _ABSENT}) == 1
    united = _UNITED.fullmatch(path) and (same_where_given or not path.startswith("inputs."))
    return bool(united or _FREE.fullmatch(path))


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 2]}.."


def _put_together(campaigns: Sequence[Campaign], documents: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    document: dict[str, Any] = copy.deepcopy(dict(documents[0]))
    files = [each["campaign"] for each in documents]
    file, axes = document["campaign"], document["campaign"]["axes"]
    file["configurations"] = _in_order([each["configurations"] for each in files])
    for name in _AXES:
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
    document |= {"inputs": {}, "workload_dirs": {}}
    for each in reversed(documents):  # the first one's places count
        document["workload_dirs"].update(each.get("workload_dirs", {}))
        for name, files in each.get("inputs", {}).items():
            document["inputs"].setdefault(name, {}).update(files)
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
    own: dict[str, Sequence[Any]] = {name: axes[name] for name in _AXES if axes[name] != all_axes[name]}
    own |= {name: values for name, values in axes["options"].items() if values != all_axes["options"][name]}
    own["configuration"] = [configuration.name for configuration in campaign.configurations]
    terms = [f"{name} in {list(values)!r}" for name, values in own.items()]
    common = [rule["when"] for rule in together["campaign"]["exclude"]]
    terms += [f"not ({rule.when})" for rule in campaign.file.exclude if rule.when not in common]
    return "(" + " and ".join(terms) + ")"
