"""Several archives of one campaign in one: what was measured in parts, or on several machines.

Runs are told apart by cell and repetition. A record that is the same in two archives is one; records that differ are refused, or
the first archive's counts and the other is kept under superseded/. Where two archives call different leases by one id (they were
measured below the same path on two machines), the later archive's lease gets another id, also in its records. Tables are made
anew; a plan is kept where all have the same one, since no plan was made for all of it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from campaign.archive.campaign_union import united
from campaign.archive.layout import DERIVED, Index, part_of
from campaign.archive.read import Opened, opened
from campaign.archive.write import aside, manifests_by_age, pack_crate, remade
from campaign.archive.zip_file import Content
from campaign.errors import ArchiveError

OnConflict = Literal["error", "first"]
_ABSENT = "nothing"
_LONGEST = 60


@dataclass(frozen=True)
class Merged:
    """What became of a merge. taken: keys of the campaign in which the first archive's value counts; renamed: leases that got
    another id, with the new one; superseded: records that gave way to those of an earlier archive; plan: whether it was kept."""

    path: Path
    members: int
    records: int
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
            raise ArchiveError(_told(union.conflicts))
        members = union.members
        plan = _same_plan(parts)
        members.update(plan)
        where = parts[0].where if len({part.where for part in parts}) == 1 else None
        order = _in_turn(parts, members)
        remade(campaign, members, where, Path(stack.enter_context(TemporaryDirectory(prefix="campaign-archive-"))))
        license, creator = (
            next(filter(None, (getattr(part.index, name) for part in parts)), "") for name in ("license", "creator")
        )
        written = pack_crate(campaign, members, out, Index(campaign.name, where, license, creator, order=order))
    records = sum(name.startswith("records/") for name in written)
    left_out = not plan and any(name.startswith("plan/") for part in parts for name in part.index.sha256)
    return Merged(out, len(written), records, taken, union.renamed, tuple(union.superseded), not left_out)


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


@dataclass(frozen=True)
class _Conflict:
    """Two archives' records of one run."""

    name: str
    archives: tuple[str, str]
    words: str


class _Union:
    """The members of all archives, taken in one archive after the other."""

    def __init__(self, names: Sequence[str], set_aside: Collection[str]) -> None:
        self.names = names
        self.set_aside = set_aside
        self.members: dict[str, Content] = {}
        self.conflicts: list[_Conflict] = []
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
        self.conflicts.append(_Conflict(name, (self.names[self._from[name]], self.names[position]), words))
        self.members[aside(content, name)] = content
        self.superseded.append(name)


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


def _how(record: Mapping[str, Any]) -> str:
    rate = record.get("throughput_per_s")
    return f"{record['status']} ({rate:.6g} per s)" if rate else str(record["status"])


def _difference(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> str:
    """How both ended, where that differs, and the first key in which they differ, with its values."""
    one, two = dict(_leaves(ours)), dict(_leaves(theirs))
    key = next((each for each in (*one, *two) if one.get(each, _ABSENT) != two.get(each, _ABSENT)), "")
    hows = (_how(ours), _how(theirs))
    told = [] if hows[0] == hows[1] else [f"{hows[0]} against {hows[1]}"]
    if key:
        told.append(f"'{key}' is {_short(one.get(key, _ABSENT))} against {_short(two.get(key, _ABSENT))}")
    return ", ".join(told) or "written otherwise"


def _leaves(value: object, above: str = "") -> Iterator[tuple[str, object]]:
    """Every value in a document by its place: 'metrics.energy_j', 'steps.0.3'."""
    if isinstance(value, dict | list) and value:
        for name, each in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _leaves(each, f"{above}.{name}" if above else str(name))
    else:
        yield above, value


def _short(value: object) -> str:
    text = value if value is _ABSENT else json.dumps(value, ensure_ascii=False)
    return str(text) if len(str(text)) <= _LONGEST else f"{str(text)[: _LONGEST - 3]}..."


def _told(conflicts: Sequence[_Conflict]) -> str:
    first = conflicts[0]
    more = f", and {len(conflicts) - 5} more" if len(conflicts) > 5 else ""
    told = "; ".join(conflict.words for conflict in conflicts[:5])
    return (
        f"{' and '.join(first.archives)}: hold different records of {len(conflicts)} runs: {told}{more}. With "
        "'--on-conflict first' those of the archive that is named first count, and the others are kept under superseded/"
    )
