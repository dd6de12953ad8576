"""The programs and input files of workloads that an archive brings along, so that a campaign can be measured again elsewhere."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from campaign.archive.layout import CONFIG, facts, is_member
from campaign.common.credentials import find
from campaign.common.errors import ArchiveError
from campaign.plan.campaign.workload_inputs import InputFile, Inputs, carried_place

LIMIT_MIB = 16.0
"""Larger files are left out."""


@dataclass(frozen=True)
class Programs:
    """What is packed of them. packed: members and their files; of: members by workload; left_out: those that are not, and why."""

    packed: Mapping[str, Path] = field(default_factory=dict)
    of: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()


def programs_of(
    inputs: Inputs, now: Inputs, roots: Sequence[Path], taken: Collection[str], limit_mib: float
) -> Programs:
    """The files that still hold what was measured, where they were or in one of the directories that archives were unpacked to.

    now: where they are now, if elsewhere; taken: names that other members have; limit_mib: size of the largest file that is
    packed, in MiB.
    """
    packed: dict[str, Path] = {}
    of: dict[str, tuple[str, ...]] = {}
    left_out: dict[str, None] = {}
    held: dict[str, str] = {}
    for workload, text, file in _each(inputs):
        place = carried_place(text, file.sha256)
        there = now.get(workload, {}).get(text, file)
        why, path = _found(file, [Path(file.path), Path(there.path), *(root / place for root in roots)], limit_mib)
        if path is None:
            left_out[f"{text} of {workload}: {why}"] = None
        elif place in taken or held.get(place, file.sha256) != file.sha256:
            left_out[f"{text} of {workload}: another file of the archive has its name"] = None
        elif not is_member(place):
            left_out[f"{text} of {workload}: an archive holds no file of this name"] = None
        else:
            packed[place], held[place] = path, file.sha256
            of[workload] = (*of.get(workload, ()), place)
    return Programs(dict(sorted(packed.items())), of, tuple(left_out))


def is_program(name: str) -> bool:
    """Whether a member is a program or input file, other than one in YAML."""
    return name.startswith(f"{CONFIG}/") and not name.endswith(".yaml")


def refuse_others(inputs: Inputs, members: Mapping[str, str]) -> None:
    """ArchiveError for a member in config/ that is neither YAML nor a file that was measured. members: SHA-256 by name."""
    known = {carried_place(text, file.sha256): file.sha256 for _, text, file in _each(inputs)}
    for name, digest in members.items():
        if is_program(name) and known.get(name) != digest:
            raise ArchiveError(f"member '{name}' is no program or input file that was measured; do not trust this file")


def _each(inputs: Inputs) -> Iterator[tuple[str, str, InputFile]]:
    for workload, files in sorted(inputs.items()):
        for text, file in sorted(files.items()):
            yield workload, text, file


def _found(file: InputFile, candidates: Iterable[Path], limit_mib: float) -> tuple[str, Path | None]:
    """The first candidate that holds what was measured, or why there is none."""
    if limit_mib == 0:
        return "no file is packed by --inputs-mib 0", None
    why = "is gone"
    for path in (path for path in candidates if path.is_file()):
        size = path.stat().st_size
        if size > limit_mib * 2**20:
            return f"{size / 2**20:.3g} MiB, more than {limit_mib:g} MiB", None
        content = path.read_bytes()
        if facts(content).sha256 == file.sha256:
            text = content.decode(errors="replace")
            if secret := next(find(text), None):
                return f"has {secret.what} in line {text.count(chr(10), 0, secret.begin) + 1}", None
            return "", path
        why = "was edited after it was measured"
    return why, None
