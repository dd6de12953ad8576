"""Writing of an archive from a results directory. An existing archive loses nothing when it is written again."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from campaign import __version__
from campaign.analysis.tables.collect import read_campaign_results, write_campaign_tables
from campaign.archive.crate import CrateDescription, LeaseAction, build_crate
from campaign.archive.layout import (
    CAMPAIGN,
    CONFIG,
    CRATE,
    INDEX,
    PARTS,
    README,
    SNAKEFILE,
    ArchiveIndex,
    FileFacts,
    dump_json,
    find_part,
    format_readme,
    is_allowed_member,
)
from campaign.archive.programs import DEFAULT_MAX_PROGRAM_MIB, PackedPrograms, select_programs
from campaign.archive.read import OpenedArchive, name_archive_in_errors, unpack_archive
from campaign.archive.zip_file import MemberContent, write_zip
from campaign.common.credentials import find_secrets_in_document
from campaign.common.errors import ArchiveError
from campaign.common.paths import ROOT
from campaign.plan.campaign.resolve import Campaign, stored_systems
from campaign.plan.campaign.workload_inputs import Inputs
from campaign.spec.published_file import is_set_name
from campaign.spec.record import CAMPAIGN_SCHEMA as AS_USED


@dataclass(frozen=True)
class WrittenArchive:
    """Archive that was written, and its differences to the earlier archive in its place.

    Attributes:
        path: file of the archive.
        members: number of members.
        records: number of records.
        kept_members: members of the earlier archive that the results do not have.
        superseded_records: records of the earlier archive that differ in the results.
        programs: programs and input files in the archive.
        secrets: locations that look like secrets.
    """

    path: Path
    members: int
    records: int
    kept_members: tuple[str, ...] = ()
    superseded_records: tuple[str, ...] = ()
    programs: PackedPrograms = field(default_factory=PackedPrograms)
    secrets: tuple[str, ...] = ()


@dataclass(frozen=True)
class ArchiveOptions:
    """Options of the user for an archive. None keeps the value of the earlier archive, if there is one.

    Attributes:
        license: SPDX identifier or address of the license.
        creator: name of the person who makes the archive.
        telemetry: whether to include telemetry.
    """

    license: str | None = None
    creator: str | None = None
    telemetry: bool = True
    inputs_mib: float = DEFAULT_MAX_PROGRAM_MIB
    """Size limit of a packed program or input file in MiB. 0 packs none."""


def write_archive(
    campaign: Campaign,
    results: Path,
    out: Path,
    where: str | None = None,
    options: ArchiveOptions | None = None,
    current_inputs: Inputs | None = None,
) -> WrittenArchive:
    """Pack a campaign's results into an archive.

    The same results give the same bytes with the same version of this program and of zlib. If `out` is an archive of the
    campaign, members that the results lack are kept. Raises ArchiveError if there are no records, if `out` is something else,
    or if it cannot be written. The file is then unchanged.

    Args:
        campaign: the campaign.
        results: directory of its results.
        out: file of the archive.
        where: filter that the archive's report uses by default.
        options: options of the user.
        current_inputs: input files at their current paths, if they were moved.
    """
    options = options or ArchiveOptions()
    with ExitStack() as stack:
        members = collect_members(results, () if options.telemetry else ("telemetry",))
        kept_members: tuple[str, ...] = ()
        superseded_records: tuple[str, ...] = ()
        earlier_index, roots = ArchiveIndex(campaign.name), [results]
        if out.exists():
            earlier_archive = _unpack_earlier_archive(
                out, campaign, Path(stack.enter_context(TemporaryDirectory(prefix="campaign-archive-")))
            )
            earlier_index = earlier_archive.index
            roots.append(earlier_archive.directory)
            kept_members, superseded_records = _add_earlier_members(members, earlier_archive)
        if not any(name.startswith("records/") for name in members):
            raise ArchiveError(f"{results} has no records to archive; run the campaign first")
        if "tables/runs.parquet" not in members or any(name.startswith("records/") for name in kept_members):
            scratch = Path(stack.enter_context(TemporaryDirectory(prefix="campaign-archive-")))
            with name_archive_in_errors(out, scratch):
                _rebuild_tables(campaign, members, where, scratch)
        index = ArchiveIndex(
            campaign.name,
            where,
            earlier_index.license if options.license is None else options.license,
            earlier_index.creator if options.creator is None else options.creator,
            order=_sort_manifests_by_age(members),
        )
        written_archive = _pack_archive(campaign, members, out, index, roots, options.inputs_mib, current_inputs or {})
        return replace(written_archive, kept_members=kept_members, superseded_records=superseded_records)


def collect_members(directory: Path, excluded_parts: Sequence[str] = ()) -> dict[str, MemberContent]:
    """Return the files of a results directory that belong in an archive, by member name.

    Links to files and to directories are followed, as readers of the results do. Anything else among the results raises an
    ArchiveError, because an archive without it would be mistaken for a complete one.
    """
    members: dict[str, MemberContent] = {}
    for part in PARTS:
        if part not in excluded_parts:
            for path in _walk_files(directory / part):
                name = path.relative_to(directory).as_posix()
                if is_allowed_member(name):
                    members[name] = path
    return members


_FILE_SUFFIXES = frozenset({".json", ".parquet", ".gz", ".csv", ".tsv"})
_MOVE_AWAY = "move it away, or replace it by a regular file"


def _walk_files(directory: Path, ancestors: tuple[str, ...] = ()) -> Iterator[Path]:
    """Yield the regular files below a directory, which need not exist.

    Args:
        directory: directory to search.
        ancestors: real paths of the directories that led to this one.
    """
    if not os.path.lexists(directory):
        return
    real_path = os.path.realpath(directory)
    if real_path in ancestors:
        raise ArchiveError(f"{directory} links to a directory that contains it; {_MOVE_AWAY}")
    try:
        entries = sorted(os.scandir(directory), key=lambda entry: entry.name)
    except OSError as error:
        raise ArchiveError(f"{directory} cannot be listed ({error.strerror}); repair it, or move it away") from error
    for entry in entries:
        path = directory / entry.name
        if entry.name.startswith("."):
            continue
        if entry.is_dir() and path.suffix not in _FILE_SUFFIXES:
            yield from _walk_files(path, (*ancestors, real_path))
        elif entry.is_file():
            yield path
        else:
            kind = "directory" if entry.is_dir() else "broken link" if entry.is_symlink() else "pipe or device"
            raise ArchiveError(f"{path} is a {kind}, but must be a file; {_MOVE_AWAY}")


def _sort_manifests_by_age(members: Mapping[str, MemberContent]) -> tuple[str, ...]:
    """Return the names of the manifests from the oldest to the newest."""
    manifests = {
        name: path for name, path in members.items() if name.startswith("manifests/") and isinstance(path, Path)
    }
    return tuple(sorted(manifests, key=lambda name: (manifests[name].stat().st_mtime, name)))


def _rebuild_tables(campaign: Campaign, members: dict[str, MemberContent], where: str | None, scratch: Path) -> None:
    """Build tables/ again from these members in an empty directory, and replace the existing tables by them."""
    for name in [name for name in members if name.startswith("tables/")]:
        del members[name]
    try:
        for name, source in members.items():
            # The plan is needed too. It contains the reasons of missing runs and the variances of earlier campaigns.
            if find_part(name) != "tables":
                target = scratch / name
                target.parent.mkdir(parents=True, exist_ok=True)
                if isinstance(source, Path):
                    shutil.copy2(source, target)
                else:
                    target.write_bytes(source)
        write_campaign_tables(read_campaign_results(campaign, scratch, where), scratch / "tables")
    except OSError as error:
        raise ArchiveError(
            f"tables/ could not be written in {scratch} ({error.strerror or error}); free space, or set TMPDIR to a directory with "
            "enough space"
        ) from error
    members.update({f"tables/{path.name}": path for path in sorted((scratch / "tables").iterdir())})


def _unpack_earlier_archive(out: Path, campaign: Campaign, scratch: Path) -> OpenedArchive:
    """Unpack the existing archive. Raises ArchiveError if it cannot be read or belongs to another campaign."""
    try:
        earlier_archive = unpack_archive(out, scratch)
    except ArchiveError as error:
        raise ArchiveError(f"{error}. Nothing was written; move that file away, or give another --output") from error
    if (earlier_archive.campaign.name, earlier_archive.campaign.system_names) != (campaign.name, campaign.system_names):
        raise ArchiveError(
            f"{out} is the archive of campaign '{earlier_archive.campaign.name}' on "
            f"{earlier_archive.campaign.system_names}, not of '{campaign.name}' on "
            f"{campaign.system_names}; give another --output"
        )
    return earlier_archive


def _add_earlier_members(
    members: dict[str, MemberContent], earlier_archive: OpenedArchive
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Add the members of the earlier archive that are missing from the results.

    Returns the names of the kept members and of the superseded records.
    """
    digests = earlier_archive.index.sha256
    set_aside_digests = {
        hashlib.sha256(source.read_bytes()).hexdigest()
        for name, source in members.items()
        if name.startswith("superseded/") and isinstance(source, Path)
    }
    kept_members, superseded_records = [], []
    # Tables are made from the records. The plan is used as a whole, from the results if they have one.
    skipped_parts = ("", "tables", *(["plan"] if any(name.startswith("plan/") for name in members) else []))
    for name in digests:
        part, path = find_part(name), earlier_archive.directory / name
        if part in skipped_parts or digests[name] in set_aside_digests:
            continue
        if name not in members:
            members[name] = path
            kept_members.append(name)
        elif part == "records" and _hash_content(members[name]) != digests[name]:
            members[f"superseded/{_hash_content(path)[:12]}/{name}"] = path
            superseded_records.append(name)
    return tuple(kept_members), tuple(superseded_records)


def _hash_content(source: MemberContent) -> str:
    return hashlib.sha256(source if isinstance(source, bytes) else source.read_bytes()).hexdigest()


def _pack_archive(
    campaign: Campaign,
    members: Mapping[str, MemberContent],
    out: Path,
    index: ArchiveIndex,
    roots: Sequence[Path],
    max_program_mib: float,
    current_inputs: Inputs,
) -> WrittenArchive:
    """Write an archive of the given parts and of all members outside the parts.

    Args:
        campaign: the campaign.
        members: content of the parts by member name.
        out: file of the archive.
        index: index without checksums.
        roots: directories in which to look for the programs.
        max_program_mib: size limit of a program or input file in MiB, as in `ArchiveOptions`.
        current_inputs: input files at their current paths, as in `write_archive`.
    """
    ordered_members = {
        name: members[name] for name in sorted(members, key=lambda name: (PARTS.index(find_part(name) or "plan"), name))
    }
    collector, config_members = _ArchiveFacts(), _make_config_members(campaign)
    programs = select_programs(
        campaign.inputs, current_inputs, roots, {*config_members, *ordered_members}, max_program_mib
    )

    def make_last_members(facts_by_member: Mapping[str, FileFacts]) -> Iterator[tuple[str, bytes]]:
        """Yield the crate and the index, which describe all members written before."""
        description = CrateDescription(
            campaign.name, campaign.file.title, campaign.file.question, campaign.system_names, __version__, index.license,
            index.creator,
            {name: tuple(sorted(versions)) for name, versions in collector.package_versions.items()},
            programs.members_by_workload,
        )  # fmt: skip
        actions = [collector.make_action(lease) for lease in sorted({*collector.runs_by_lease, *collector.lease_names})]
        yield CRATE, dump_json(build_crate(description, dict(facts_by_member), actions))
        checksums = {name: facts.sha256 for name, facts in facts_by_member.items()}
        yield INDEX, dump_json(replace(index, made_by=f"composable-campaign {__version__}", sha256=checksums).to_dict())

    parts = sorted({find_part(name) for name in ordered_members} | {CONFIG, "workflow"})
    readme_text = format_readme(campaign.name, campaign.file.title, parts, programs.files_by_member, programs.left_out)
    facts_by_member = write_zip(
        out,
        {README: readme_text, **config_members, **programs.files_by_member, **ordered_members},
        make_last_members,
        collector.add_member,
    )
    records = sum(name.startswith("records/") for name in facts_by_member)
    return WrittenArchive(out, len(facts_by_member), records, programs=programs, secrets=tuple(collector.secrets))


def _make_config_members(campaign: Campaign) -> dict[str, bytes]:
    """Return the members outside the parts: the campaign as used, as JSON and as YAML, and the workflow."""
    document = campaign.to_document()
    reference_members, reference_names = _make_reference_members(campaign)
    return {
        CAMPAIGN: dump_json(document),
        f"{CONFIG}/campaign.yaml": _dump_yaml({**document["campaign"], "references": reference_names}),
        **reference_members,
        **{f"{CONFIG}/systems/{name}.yaml": _dump_yaml(content) for name, content in stored_systems(document).items()},
        **{f"{CONFIG}/workloads/{name}.yaml": _dump_yaml(content) for name, content in document["workloads"].items()},
        SNAKEFILE: (ROOT / SNAKEFILE).read_bytes(),
        **{f"workflow/rules/{path.name}": path.read_bytes() for path in sorted((ROOT / "workflow" / "rules").glob("*.smk"))},
    }  # fmt: skip


def _make_reference_members(campaign: Campaign) -> tuple[dict[str, bytes], list[str]]:
    """Return the members for the sets of published claims that are files of the campaign.

    The names of all sets, as the archive's campaign file lists them, are returned too.
    """
    references_by_name = dict(zip(dict.fromkeys(campaign.file.references), campaign.references, strict=False))
    own_references = {name: reference for name, reference in references_by_name.items() if not is_set_name(name)}
    files = {
        f"{CONFIG}/references/{reference.name}.yaml": _dump_yaml(reference.model_dump(mode="json"))
        for reference in own_references.values()
    }
    return files, [
        f"references/{own_references[name].name}.yaml" if name in own_references else name
        for name in campaign.file.references
    ]


def _dump_yaml(document: Any) -> bytes:
    text: str = yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=100)
    return text.encode()


@dataclass
class _ArchiveFacts:
    """Accumulator for the crate's facts about leases and software, filled while the members are packed."""

    runs_by_lease: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: defaultdict(list))
    members_by_lease: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    lease_names: dict[str, str] = field(default_factory=dict)
    missing_run_reasons: dict[str, str] = field(default_factory=dict)
    package_versions: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    secrets: list[str] = field(default_factory=list)

    def add_member(self, name: str, content: bytes) -> None:
        """Collect the facts of one member. Raises ArchiveError if it is damaged."""
        part = find_part(name)
        if name == CAMPAIGN:
            self._find_secrets(name, json.loads(content))
        if part not in ("records", "leases", "links", "manifests", "shared"):
            return
        try:
            document = json.loads(content)
            self._add_document(part, name, document)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ArchiveError(f"{name} is damaged ({error!r}); move it away, or restore it from an archive") from error

    def _add_document(self, part: str, name: str, document: Mapping[str, Any]) -> None:
        if part == "shared":
            if document.get("schema_version") != AS_USED:  # The content of such a document is also in `campaign.json`.
                self._find_secrets(name, document)
            for package, version in (document.get("packages") or {}).items():
                self.package_versions[str(package)].add(str(version))
        elif part == "manifests":
            self.missing_run_reasons[document["lease"]] = str(document.get("reason") or "")
        else:
            lease = document["lease_id"]
            self.members_by_lease[lease].append(name)
            if part == "records":
                self._find_secrets(name, document.get("failure"))
                kept_keys = ("started", "ended", "implied_by")
                self.runs_by_lease[lease].append(
                    {**{key: document.get(key) for key in kept_keys}, "workload": document["cell"]["workload"]}
                )
            elif part == "leases":
                self.lease_names[lease] = document.get("lease") or lease

    def _find_secrets(self, name: str, document: object) -> None:
        self.secrets += [
            f"{name}: {description} at {'.'.join(map(str, key_path))}"
            for key_path, description in find_secrets_in_document(document)
        ]

    def make_action(self, lease: str) -> LeaseAction:
        """Build the crate's action for one lease."""
        name = self.lease_names.get(lease, lease)
        started_runs = [run for run in self.runs_by_lease.get(lease, ()) if not run["implied_by"]]
        return LeaseAction(
            lease_id=lease,
            lease=name,
            start_s=min((run["started"] for run in started_runs), default=None),
            end_s=max((run["ended"] for run in started_runs), default=None),
            results=tuple(self.members_by_lease.get(lease, ())),
            workloads=tuple(sorted({run["workload"] for run in started_runs})),
            runs=len(started_runs),
            error=self.missing_run_reasons.get(name, ""),
        )
