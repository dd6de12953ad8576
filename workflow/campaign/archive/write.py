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
from campaign.analysis.tables.collect import collect, gather
from campaign.archive.crate import Action, Described, crate_document
from campaign.archive.layout import (
    CAMPAIGN,
    CONFIG,
    CRATE,
    INDEX,
    PARTS,
    README,
    SNAKEFILE,
    FileFacts,
    Index,
    dumped,
    is_member,
    part_of,
    readme,
)
from campaign.archive.programs import LIMIT_MIB, Programs, programs_of
from campaign.archive.read import Opened, naming_members, unpack
from campaign.archive.zip_file import Content, pack
from campaign.common.credentials import find_in
from campaign.common.errors import ArchiveError
from campaign.common.paths import ROOT
from campaign.plan.campaign.resolve import Campaign, systems_of
from campaign.plan.campaign.workload_inputs import Inputs
from campaign.spec.published_file import is_set
from campaign.spec.record import CAMPAIGN_SCHEMA as AS_USED


@dataclass(frozen=True)
class Written:
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
    kept: tuple[str, ...] = ()
    superseded: tuple[str, ...] = ()
    programs: Programs = field(default_factory=Programs)
    secrets: tuple[str, ...] = ()


@dataclass(frozen=True)
class Wishes:
    """Options of the user for an archive. None stands for the value in the earlier archive, if there is one.

    Attributes:
        license: SPDX identifier or address of the license.
        creator: name of the person who makes the archive.
        telemetry: includes telemetry.
    """

    license: str | None = None
    creator: str | None = None
    telemetry: bool = True
    inputs_mib: float = LIMIT_MIB
    """Size limit of a packed program or input file in MiB. 0 packs none."""


def write_archive(
    campaign: Campaign,
    results: Path,
    out: Path,
    where: str | None = None,
    wishes: Wishes | None = None,
    inputs: Inputs | None = None,
) -> Written:
    """Pack a campaign's results into an archive.

    The same results give the same bytes with the same version of this program and of zlib. If `out` is an archive of the
    campaign,
    members that the results lack are kept. Raises ArchiveError if there are no records, if `out` is something else, or if it
    cannot
    be written. The file is then unchanged.

    Args:
        campaign: the campaign.
        results: directory of its results.
        out: file of the archive.
        where: filter that the archive's report uses by default.
        options: options of the user.
        current_inputs: input files at their current paths, if they were moved.
    """
    wishes = wishes or Wishes()
    with ExitStack() as stack:
        members = parts_of(results, () if wishes.telemetry else ("telemetry",))
        kept: tuple[str, ...] = ()
        superseded: tuple[str, ...] = ()
        before, roots = Index(campaign.name), [results]
        if out.exists():
            old = _earlier(out, campaign, Path(stack.enter_context(TemporaryDirectory(prefix="campaign-archive-"))))
            before = old.index
            roots.append(old.directory)
            kept, superseded = _keep(members, old)
        if not any(name.startswith("records/") for name in members):
            raise ArchiveError(f"{results}: there are no records to archive; run the campaign first")
        if "tables/runs.parquet" not in members or any(name.startswith("records/") for name in kept):
            scratch = Path(stack.enter_context(TemporaryDirectory(prefix="campaign-archive-")))
            with naming_members(out, scratch):
                _remake_tables(campaign, members, where, scratch)
        index = Index(
            campaign.name,
            where,
            before.license if wishes.license is None else wishes.license,
            before.creator if wishes.creator is None else wishes.creator,
            order=_manifests_by_age(members),
        )
        packed = _pack(campaign, members, out, index, roots, wishes.inputs_mib, inputs or {})
        return replace(packed, kept=kept, superseded=superseded)


def parts_of(directory: Path, without: Sequence[str] = ()) -> dict[str, Content]:
    """Return the files of a results directory that belong into an archive, by member name.

    Links to files and to directories are followed, as readers of the results do. Raises ArchiveError for anything else among the
    results, because an archive without it would be mistaken for a complete one.
    """
    members: dict[str, Content] = {}
    for part in PARTS:
        if part not in without:
            for path in _walk_files(directory / part):
                name = path.relative_to(directory).as_posix()
                if is_member(name):
                    members[name] = path
    return members


_FILE_SUFFIXES = frozenset({".json", ".parquet", ".gz", ".csv", ".tsv"})
_MOVE_AWAY = "move it away, or put a regular file in its place"


def _walk_files(directory: Path, above: tuple[str, ...] = ()) -> Iterator[Path]:
    """Yield the regular files below a directory, which need not exist.

    Args:
        directory: directory to search.
        ancestors: real paths of the directories through which it was reached.
    """
    if not os.path.lexists(directory):
        return
    real = os.path.realpath(directory)
    if real in above:
        raise ArchiveError(f"{directory}: is a link to a directory that holds it; {_MOVE_AWAY}")
    try:
        entries = sorted(os.scandir(directory), key=lambda entry: entry.name)
    except OSError as error:
        raise ArchiveError(f"{directory}: cannot be listed ({error.strerror}); fix it, or move it away") from error
    for entry in entries:
        path = directory / entry.name
        if entry.name.startswith("."):
            continue
        if entry.is_dir() and path.suffix not in _FILE_SUFFIXES:
            yield from _walk_files(path, (*above, real))
        elif entry.is_file():
            yield path
        else:
            kind = (
                "directory"
                if entry.is_dir()
                else "link that leads to no file"
                if entry.is_symlink()
                else "pipe or device"
            )
            raise ArchiveError(f"{path}: is a {kind} where a file of the results belongs; {_MOVE_AWAY}")


def _manifests_by_age(members: Mapping[str, Content]) -> tuple[str, ...]:
    """Return the names of the manifests from the oldest to the newest."""
    found = {name: path for name, path in members.items() if name.startswith("manifests/") and isinstance(path, Path)}
    return tuple(sorted(found, key=lambda name: (found[name].stat().st_mtime, name)))


def _remake_tables(campaign: Campaign, members: dict[str, Content], where: str | None, scratch: Path) -> None:
    """Build tables/ again from these members in an empty directory, and replace the existing tables by them."""
    for name in [name for name in members if name.startswith("tables/")]:
        del members[name]
    try:
        for name, source in members.items():
            if (
                part_of(name) != "tables"
            ):  # the plan has the reasons of missing runs and the spread borrowed from earlier campaigns
                target = scratch / name
                target.parent.mkdir(parents=True, exist_ok=True)
                if isinstance(source, Path):
                    shutil.copy2(source, target)
                else:
                    target.write_bytes(source)
        collect(gather(campaign, scratch, where), scratch / "tables")
    except OSError as error:
        raise ArchiveError(
            f"tables/ could not be made in {scratch} ({error.strerror or error}); free space, or set TMPDIR to a directory that "
            "has it"
        ) from error
    members.update({f"tables/{path.name}": path for path in sorted((scratch / "tables").iterdir())})


def _earlier(out: Path, campaign: Campaign, scratch: Path) -> Opened:
    """Unpack the existing archive. Raises ArchiveError if it cannot be read or belongs to another campaign."""
    try:
        old = unpack(out, scratch)
    except ArchiveError as error:
        raise ArchiveError(f"{error}. Nothing was written: move that file away, or give another --output") from error
    if (old.campaign.name, old.campaign.system_names) != (campaign.name, campaign.system_names):
        raise ArchiveError(
            f"{out}: is the archive of campaign '{old.campaign.name}' on {old.campaign.system_names}, not of '{campaign.name}' on "
            f"{campaign.system_names}; give another --output"
        )
    return old


def _keep(members: dict[str, Content], old: Opened) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Add the content of the earlier archive that the results lack to the members.

    Returns the names of the kept members and of the superseded records.
    """
    digests = old.index.sha256
    set_aside = {
        hashlib.sha256(source.read_bytes()).hexdigest()
        for name, source in members.items()
        if name.startswith("superseded/") and isinstance(source, Path)
    }
    kept, superseded = [], []
    # Tables are made from the records. The plan is taken as a whole, from the results if they have one.
    dropped = ("", "tables", *(["plan"] if any(name.startswith("plan/") for name in members) else []))
    for name in digests:
        part, path = part_of(name), old.directory / name
        if part in dropped or digests[name] in set_aside:
            continue
        if name not in members:
            members[name] = path
            kept.append(name)
        elif part == "records" and _digest(members[name]) != digests[name]:
            members[f"superseded/{_digest(path)[:12]}/{name}"] = path
            superseded.append(name)
    return tuple(kept), tuple(superseded)


def _digest(source: Content) -> str:
    return hashlib.sha256(source if isinstance(source, bytes) else source.read_bytes()).hexdigest()


def _pack(
    campaign: Campaign,
    members: Mapping[str, Content],
    out: Path,
    index: Index,
    roots: Sequence[Path],
    inputs_mib: float,
    inputs: Inputs,
) -> Written:
    """Write an archive of these parts, with all members outside the parts.

    Args:
        campaign: the campaign.
        members: content of the parts by member name.
        out: file of the archive.
        index: index without checksums.
        roots: directories to which archives were unpacked, which may have the programs.
        max_program_mib: size limit of a program or input file in MiB, as in `ArchiveOptions`.
        current_inputs: input files at their current paths, as in `write_archive`.
    """
    ordered = {
        name: members[name] for name in sorted(members, key=lambda name: (PARTS.index(part_of(name) or "plan"), name))
    }
    told, own = _ArchiveFacts(), _beside(campaign)
    programs = programs_of(campaign.inputs, inputs, roots, {*own, *ordered}, inputs_mib)

    def last(written: Mapping[str, FileFacts]) -> Iterator[tuple[str, bytes]]:
        """Yield the crate and the index, which describe all members written before."""
        described = Described(
            campaign.name, campaign.file.title, campaign.file.question, campaign.system_names, __version__, index.license,
            index.creator,
            {name: tuple(sorted(versions)) for name, versions in told.software.items()},
            programs.of,
        )  # fmt: skip
        actions = [told.action(lease) for lease in sorted({*told.runs, *told.names})]
        yield CRATE, dumped(crate_document(described, dict(written), actions))
        sums = {name: facts.sha256 for name, facts in written.items()}
        yield INDEX, dumped(replace(index, made_by=f"composable-campaign {__version__}", sha256=sums).document())

    parts = sorted({part_of(name) for name in ordered} | {CONFIG, "workflow"})
    words = readme(campaign.name, campaign.file.title, parts, programs.packed, programs.left_out)
    written = pack(out, {README: words, **own, **programs.packed, **ordered}, last, told.see)
    records = sum(name.startswith("records/") for name in written)
    return Written(out, len(written), records, programs=programs, secrets=tuple(told.secrets))


def _beside(campaign: Campaign) -> dict[str, bytes]:
    """Return the members outside the parts (the campaign as used, as JSON and as YAML, and the workflow)."""
    document = campaign.document()
    own, names = _own_references(campaign)
    return {
        CAMPAIGN: dumped(document),
        f"{CONFIG}/campaign.yaml": _yaml({**document["campaign"], "references": names}),
        **own,
        **{f"{CONFIG}/systems/{name}.yaml": _yaml(each) for name, each in systems_of(document).items()},
        **{f"{CONFIG}/workloads/{name}.yaml": _yaml(each) for name, each in document["workloads"].items()},
        SNAKEFILE: (ROOT / SNAKEFILE).read_bytes(),
        **{f"workflow/rules/{path.name}": path.read_bytes() for path in sorted((ROOT / "workflow" / "rules").glob("*.smk"))},
    }  # fmt: skip


def _own_references(campaign: Campaign) -> tuple[dict[str, bytes], list[str]]:
    """Return the members for sets of published claims that are the campaign's own files.

    Also returns the names of all sets as the archive's campaign file lists them.
    """
    named = dict(zip(dict.fromkeys(campaign.file.references), campaign.references, strict=False))
    own = {name: each for name, each in named.items() if not is_set(name)}
    files = {f"{CONFIG}/references/{each.name}.yaml": _yaml(each.model_dump(mode="json")) for each in own.values()}
    return files, [f"references/{own[name].name}.yaml" if name in own else name for name in campaign.file.references]


def _yaml(document: Any) -> bytes:
    text: str = yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=100)
    return text.encode()


@dataclass
class _ArchiveFacts:
    """Collector of the facts about leases and software for the crate, filled while the members are packed."""

    runs: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: defaultdict(list))
    of_lease: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    names: dict[str, str] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    software: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    secrets: list[str] = field(default_factory=list)

    def see(self, name: str, content: bytes) -> None:
        """Collect the facts of one member. Raises ArchiveError if it is damaged."""
        part = part_of(name)
        if name == CAMPAIGN:
            self._look(name, json.loads(content))
        if part not in ("records", "leases", "links", "manifests", "shared"):
            return
        try:
            document = json.loads(content)
            self._take(part, name, document)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ArchiveError(
                f"{name}: is damaged ({error!r}); move it away, or restore it from an archive"
            ) from error

    def _take(self, part: str, name: str, document: Mapping[str, Any]) -> None:
        if part == "shared":
            if document.get("schema_version") != AS_USED:  # its content is also in the campaign's document
                self._look(name, document)
            for package, version in (document.get("packages") or {}).items():
                self.software[str(package)].add(str(version))
        elif part == "manifests":
            self.reasons[document["lease"]] = str(document.get("reason") or "")
        else:
            lease = document["lease_id"]
            self.of_lease[lease].append(name)
            if part == "records":
                self._look(name, document.get("failure"))
                wanted = ("started", "ended", "implied_by")
                self.runs[lease].append(
                    {**{key: document.get(key) for key in wanted}, "workload": document["cell"]["workload"]}
                )
            elif part == "leases":
                self.names[lease] = document.get("lease") or lease

    def _look(self, name: str, document: object) -> None:
        self.secrets += [f"{name}: {what} at {'.'.join(map(str, place))}" for place, what in find_in(document)]

    def action(self, lease: str) -> Action:
        """Build the crate's action for one lease."""
        name = self.names.get(lease, lease)
        started = [run for run in self.runs.get(lease, ()) if not run["implied_by"]]
        return Action(
            lease_id=lease,
            lease=name,
            start_s=min((run["started"] for run in started), default=None),
            end_s=max((run["ended"] for run in started), default=None),
            results=tuple(self.of_lease.get(lease, ())),
            workloads=tuple(sorted({run["workload"] for run in started})),
            runs=len(started),
            error=self.reasons.get(name, ""),
        )
