"""Programs and input files of workloads in an archive, so that a campaign can be measured again elsewhere."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from campaign.archive.layout import CONFIG, compute_facts, is_allowed_member
from campaign.common.credentials import find_secrets
from campaign.common.errors import ArchiveError
from campaign.plan.campaign.workload_inputs import InputFile, Inputs, archive_path

DEFAULT_MAX_PROGRAM_MIB = 16.0
"""Default size limit. Larger files are left out."""


@dataclass(frozen=True)
class PackedPrograms:
    """Programs and input files of an archive.

    Attributes:
        files_by_member: source file by member name.
        members_by_workload: member names by workload.
        left_out: files that are not packed, each with the reason.
    """

    files_by_member: Mapping[str, Path] = field(default_factory=dict)
    members_by_workload: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()


def select_programs(
    inputs: Inputs, current_inputs: Inputs, roots: Sequence[Path], used_names: Collection[str], max_mib: float
) -> PackedPrograms:
    """Select the programs and input files whose content is unchanged since the measurement.

    Each file is searched at its measured path, at its current path, and in the directories to which archives were unpacked.

    Args:
        inputs: files that were measured, by workload.
        current_inputs: files at their current paths, if they were moved.
        roots: directories to which archives were unpacked.
        used_names: names of other members.
        max_mib: size limit of a packed file in MiB.
    """
    files_by_member: dict[str, Path] = {}
    members_by_workload: dict[str, tuple[str, ...]] = {}
    left_out: dict[str, None] = {}
    digest_by_member: dict[str, str] = {}
    for workload, text, file in _iterate_inputs(inputs):
        member = archive_path(text, file.sha256)
        current_file = current_inputs.get(workload, {}).get(text, file)
        problem, path = _find_measured_file(
            file, [Path(file.path), Path(current_file.path), *(root / member for root in roots)], max_mib
        )
        if path is None:
            left_out[f"{text} of {workload}: {problem}"] = None
        elif member in used_names or digest_by_member.get(member, file.sha256) != file.sha256:
            left_out[f"{text} of {workload}: another file in the archive has the same name"] = None
        elif not is_allowed_member(member):
            left_out[f"{text} of {workload}: an archive may not contain a file of this name"] = None
        else:
            files_by_member[member], digest_by_member[member] = path, file.sha256
            members_by_workload[workload] = (*members_by_workload.get(workload, ()), member)
    return PackedPrograms(dict(sorted(files_by_member.items())), members_by_workload, tuple(left_out))


def is_program_member(name: str) -> bool:
    """Return True if a member is a program or input file that is not YAML."""
    return name.startswith(f"{CONFIG}/") and not name.endswith(".yaml")


def reject_unmeasured_programs(inputs: Inputs, members: Mapping[str, str]) -> None:
    """Raise ArchiveError for a member in config/ that is neither YAML nor a measured file.

    Args:
        inputs: files that were measured, by workload.
        members: SHA-256 by member name.
    """
    measured_digests = {archive_path(text, file.sha256): file.sha256 for _, text, file in _iterate_inputs(inputs)}
    for name, digest in members.items():
        if is_program_member(name) and measured_digests.get(name) != digest:
            raise ArchiveError(
                f"member '{name}' is not a program or input file that was measured; do not trust this file"
            )


def _iterate_inputs(inputs: Inputs) -> Iterator[tuple[str, str, InputFile]]:
    """Yield (workload, name in the workload file, input file) for all inputs, sorted."""
    for workload, files in sorted(inputs.items()):
        for text, file in sorted(files.items()):
            yield workload, text, file


def _find_measured_file(file: InputFile, candidates: Iterable[Path], max_mib: float) -> tuple[str, Path | None]:
    """Return ('', path) of the first candidate that has the measured content, or (reason, None) if there is none."""
    if max_mib == 0:
        return "not packed because of --inputs-mib 0", None
    problem = "no longer exists"
    for path in (path for path in candidates if path.is_file()):
        size = path.stat().st_size
        if size > max_mib * 2**20:
            return f"is larger than {max_mib:g} MiB ({size / 2**20:.3g} MiB)", None
        content = path.read_bytes()
        if compute_facts(content).sha256 == file.sha256:
            text = content.decode(errors="replace")
            if secret := next(find_secrets(text), None):
                return f"contains {secret.description} in line {text.count(chr(10), 0, secret.begin) + 1}", None
            return "", path
        problem = "was edited after it was measured"
    return problem, None
