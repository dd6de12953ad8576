"""Programs and input files of workloads in an archive, so that a campaign can be measured again elsewhere."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from campaign.archive.layout import CONFIG, facts, is_member
from campaign.common.credentials import find
from campaign.common.errors import ArchiveError
from campaign.plan.campaign.workload_inputs import InputFile, Inputs, carried_place

LIMIT_MIB = 16.0
"""Default size limit. Larger files are left out."""


@dataclass(frozen=True)
class Programs:
    """Programs and input files of an archive.

    Attributes:
        files_by_member: source file by member name.
        members_by_workload: member names by workload.
        left_out: files that are not packed, each with the reason.
    """

    packed: Mapping[str, Path] = field(default_factory=dict)
    of: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()


def programs_of(
    inputs: Inputs, now: Inputs, roots: Sequence[Path], taken: Collection[str], limit_mib: float
) -> Programs:
    """Select the programs and input files that still have the content that was measured.

    Each is searched at its measured path, at its current path, and in the directories to which archives were unpacked.

    Args:
        inputs: files that were measured, by workload.
        current_inputs: files at their current paths, if they were moved.
        roots: directories to which archives were unpacked.
        used_names: names of other members.
        max_mib: size limit of a packed file in MiB.
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
    """Return True if a member is a program or input file that is not YAML."""
    return name.startswith(f"{CONFIG}/") and not name.endswith(".yaml")


def refuse_others(inputs: Inputs, members: Mapping[str, str]) -> None:
    """Raise ArchiveError for a member in config/ that is neither YAML nor a measured file.

    Args:
        inputs: files that were measured, by workload.
        members: SHA-256 by member name.
    """
    known = {carried_place(text, file.sha256): file.sha256 for _, text, file in _each(inputs)}
    for name, digest in members.items():
        if is_program(name) and known.get(name) != digest:
            raise ArchiveError(f"member '{name}' is no program or input file that was measured; do not trust this file")


def _each(inputs: Inputs) -> Iterator[tuple[str, str, InputFile]]:
    """Yield (workload, name in the workload file, input file) for all inputs, sorted."""
    for workload, files in sorted(inputs.items()):
        for text, file in sorted(files.items()):
            yield workload, text, file


def _found(file: InputFile, candidates: Iterable[Path], limit_mib: float) -> tuple[str, Path | None]:
    """Return ('', path) of the first candidate that has the measured content, or (reason, None) if there is none."""
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
