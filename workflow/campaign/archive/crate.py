"""RO-Crate of an archive, which is the content of `ro-crate-metadata.json`. No files are read or written.

Standards: RO-Crate 1.1 (https://w3id.org/ro/crate/1.1); Workflow Run Crate 0.5 (https://w3id.org/ro/wfrun/workflow/0.5), which
extends Process Run Crate 0.5 and Workflow RO-Crate 1.0. The workflow is the Snakefile, executed once for the whole campaign. Each
lease is one execution of the measuring program, with the records of its runs as results.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, unquote

from campaign.archive.layout import CONFIG, CRATE, PART_DESCRIPTIONS, README, SNAKEFILE, FileFacts

_WORKFLOW_CRATE_URL = "https://w3id.org/workflowhub/workflow-ro-crate"
PROFILES_BY_URL: Mapping[str, tuple[str, str]] = {
    "https://w3id.org/ro/wfrun/process/0.5": ("Process Run Crate", "0.5"),
    "https://w3id.org/ro/wfrun/workflow/0.5": ("Workflow Run Crate", "0.5"),
    f"{_WORKFLOW_CRATE_URL}/1.0": ("Workflow RO-Crate", "1.0"),
}
# The second context defines the term `sha256`.
_CONTEXT_URLS = ["https://w3id.org/ro/crate/1.1/context", "https://w3id.org/ro/terms/workflow-run/context"]
_ROOT_ID = "./"
_LANGUAGE_ID = f"{_WORKFLOW_CRATE_URL}#snakemake"
_PROGRAM_ID = "#composable-campaign"
_CREATOR_ID = "#creator"
_MEDIA_TYPES = {
    "json": "application/json",
    "csv": "text/csv",
    "tsv": "text/tab-separated-values",
    "yaml": "application/yaml",
    "md": "text/markdown",
    "parquet": "application/vnd.apache.parquet",
}
CrateEntity = dict[str, Any]


@dataclass(frozen=True)
class LeaseAction:
    """Lease as described in the crate.

    Attributes:
        lease_id: id of the lease on the fabric.
        lease: name of the lease.
        start_s: Unix seconds of the start of its first run, None if no run was started.
        end_s: Unix seconds of the end of its last run, None if no run was started.
        results: members with its results.
        workloads: workloads of its runs.
        runs: number of runs that were started.
    """

    lease_id: str
    lease: str
    start_s: float | None
    end_s: float | None
    results: tuple[str, ...]
    workloads: tuple[str, ...] = ()
    runs: int = 0
    error: str = ""
    """Reason why runs of the lease are missing, empty if none is missing or no reason is recorded."""


@dataclass(frozen=True)
class CrateDescription:
    """Description of the campaign in the crate.

    Attributes:
        name: name of the campaign.
        title: title of the campaign.
        question: question that the campaign answers.
        system: names of its systems.
        version: version of the program that made the archive.
        license: SPDX identifier or address of the license.
        creator: name of the person who made the archive.
    """

    name: str
    title: str
    question: str
    system: str
    version: str
    license: str = ""
    creator: str = ""
    packages: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Versions of the software on the hosts by package."""
    programs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Members that are programs or input files, by workload."""


def build_crate(
    crate: CrateDescription, files: Mapping[str, FileFacts], actions: Sequence[LeaseAction]
) -> dict[str, Any]:
    """Build the JSON-LD document of the crate. The same input always produces the same document.

    Args:
        crate: description of the campaign.
        files: size and checksum of every member except the crate and the index.
        actions: leases of the campaign.
    """
    parts = [_make_file_entity(crate, name, facts) for name, facts in files.items()]
    parts += [
        _make_entity(f"{part}/", "Dataset", name=part, description=meaning)
        for part, meaning in PART_DESCRIPTIONS.items()
        if any(name.startswith(f"{part}/") for name in files)
    ]
    action_entities = list(_make_action_entities(crate, files, actions))
    entities = [
        _make_root_entity(crate, parts, action_entities, _find_latest_end_s(actions)),
        *parts,
        *action_entities,
        *_make_context_entities(crate),
    ]
    entities.sort(key=lambda entity: str(entity["@id"]))
    profiles = [_make_reference("https://w3id.org/ro/crate/1.1"), _make_reference(f"{_WORKFLOW_CRATE_URL}/1.0")]
    descriptor = _make_entity(CRATE, "CreativeWork", about=_make_reference(_ROOT_ID), conformsTo=profiles)
    return {"@context": _CONTEXT_URLS, "@graph": [descriptor, *entities]}


def _make_entity(identifier: str, kind: str | Sequence[str], **properties: Any) -> CrateEntity:
    """Build an entity of the crate without its empty properties."""
    non_empty = {name: value for name, value in properties.items() if value not in ("", None, [])}
    return {"@id": identifier, "@type": kind, **non_empty}


def _make_reference(identifier: str) -> dict[str, str]:
    return {"@id": identifier}


def _make_references(names: Iterable[str]) -> list[dict[str, str]]:
    return [_make_reference(quote(name)) for name in names]


def _make_root_entity(
    crate: CrateDescription, parts: Sequence[CrateEntity], action_entities: Sequence[CrateEntity], end_s: float | None
) -> CrateEntity:
    creator = _make_reference(_CREATOR_ID) if crate.creator else None
    return _make_entity(
        _ROOT_ID,
        "Dataset",
        name=crate.title or crate.name,
        description=crate.question or f"Measurements of the campaign {crate.name} on {crate.system}.",
        # The date is the end of the last run instead of the time of writing, so that the same results give the same crate.
        datePublished=_format_time(end_s or 0.0),
        conformsTo=[_make_reference(address) for address in PROFILES_BY_URL],
        mainEntity=_make_reference(SNAKEFILE),
        hasPart=[_make_reference(entity["@id"]) for entity in parts],
        mentions=[_make_reference(entity["@id"]) for entity in action_entities],
        creator=creator,
        author=creator,
        license=_make_reference(_make_license_entity(crate)["@id"]),
    )


def _make_license_entity(crate: CrateDescription) -> CrateEntity:
    name = crate.license
    if not name:
        return _make_entity(
            "#license",
            "CreativeWork",
            name="Not stated",
            description="Ask the authors of this archive before you reuse it.",
        )
    return _make_entity(name if "://" in name else f"https://spdx.org/licenses/{name}", "CreativeWork", name=name)


def _make_context_entities(crate: CrateDescription) -> Iterator[CrateEntity]:
    """Yield the entities that other entities refer to: language, profiles, program, packages, creator and license."""
    yield _make_entity(
        _LANGUAGE_ID, "ComputerLanguage", name="Snakemake", url=_make_reference("https://snakemake.readthedocs.io")
    )
    for address, (name, version) in PROFILES_BY_URL.items():
        yield _make_entity(address, "CreativeWork", name=name, version=version)
    packages = [
        _make_entity(f"#package-{name}-{version}", "SoftwareApplication", name=name, softwareVersion=version)
        for name, versions in sorted(crate.packages.items())
        for version in versions
    ]
    yield from packages
    yield _make_entity(
        _PROGRAM_ID,
        "SoftwareApplication",
        name="Composable Campaign",
        softwareVersion=crate.version,
        description="Composes hardware through a fabric, runs workloads on it and records every run.",
        softwareRequirements=[_make_reference(package["@id"]) for package in packages],
    )
    if crate.creator:
        yield _make_entity(_CREATOR_ID, "Person", name=crate.creator)
    yield _make_license_entity(crate)


def _make_file_entity(crate: CrateDescription, name: str, facts: FileFacts) -> CrateEntity:
    media_type = _MEDIA_TYPES.get(name.rpartition(".")[2], "text/plain")
    common = {"contentSize": str(facts.size), "sha256": facts.sha256, "encodingFormat": media_type}
    if name == SNAKEFILE:
        return _make_entity(
            name,
            ["File", "SoftwareSourceCode", "ComputationalWorkflow"],
            **common,
            name="Workflow of Composable Campaign",
            description="Entry point of the Snakemake workflow in the version that made this archive. It needs the program to run.",
            version=crate.version,
            programmingLanguage=_make_reference(_LANGUAGE_ID),
        )
    return _make_entity(
        quote(name), "File", **common, name=name, about=_make_reference(_ROOT_ID) if name == README else None
    )


def _make_action_entities(
    crate: CrateDescription, files: Mapping[str, FileFacts], actions: Sequence[LeaseAction]
) -> Iterator[CrateEntity]:
    """Yield one action entity for the whole campaign, and one per lease."""
    config_files = [name for name in files if name.startswith(f"{CONFIG}/")]
    workload_files = {name for name in config_files if name.startswith(f"{CONFIG}/workloads/")}
    workload_files |= {member for members in crate.programs.values() for member in members}
    agent = _make_reference(_CREATOR_ID) if crate.creator else None
    yield _make_entity(
        "#campaign",
        "CreateAction",
        name=f"Campaign {crate.name} on {crate.system}",
        description=crate.question or "All leases of the campaign, from the plan to the tables.",
        startTime=_format_time(
            min((lease_action.start_s for lease_action in actions if lease_action.start_s is not None), default=None)
        ),
        endTime=_format_time(_find_latest_end_s(actions)),
        instrument=_make_reference(SNAKEFILE),
        object=_make_references(config_files),
        result=_make_references(name for name in files if name.startswith("tables/")),
        actionStatus=_format_action_status(any(lease_action.runs for lease_action in actions)),
        agent=agent,
    )
    for action in actions:
        action_files = {f"{CONFIG}/workloads/{name}.yaml" for name in action.workloads}
        action_files |= {member for name in action.workloads for member in crate.programs.get(name, ())}
        yield _make_entity(
            f"#lease-{action.lease_id}",
            "CreateAction",
            name=f"Lease {action.lease_id}",
            description=f"{action.runs} runs on the composition of lease {action.lease}",
            startTime=_format_time(action.start_s),
            endTime=_format_time(action.end_s),
            instrument=_make_reference(_PROGRAM_ID),
            object=_make_references(
                name for name in config_files if name in action_files or name not in workload_files
            ),
            result=_make_references(action.results),
            actionStatus=_format_action_status(action.runs > 0),
            error=action.error if not action.runs else "",
            agent=agent,
        )


def _format_action_status(is_complete: bool) -> str:
    return f"http://schema.org/{'Completed' if is_complete else 'Failed'}ActionStatus"


def _find_latest_end_s(actions: Sequence[LeaseAction]) -> float | None:
    return max((action.end_s for action in actions if action.end_s is not None), default=None)


def _format_time(seconds: float | None) -> str | None:
    return None if seconds is None else datetime.fromtimestamp(round(seconds), UTC).isoformat()


def find_crate_problems(document: Any, files: Mapping[str, FileFacts]) -> list[str]:
    """Return the differences between a crate and its profile, and between a crate and its files.

    The list is empty for a valid crate.

    Args:
        document: JSON-LD document of the crate.
        files: size and checksum of every member except the crate and the index.
    """
    try:
        entities = {unquote(entity["@id"]): entity for entity in document["@graph"]}
        root = entities[_ROOT_ID]
        profiles = {profile["@id"] for profile in root["conformsTo"]}
        # Only files have a checksum.
        file_entities = {name: entity for name, entity in entities.items() if "sha256" in entity}
    except (KeyError, TypeError, AttributeError) as error:
        return [f"it is not an RO-Crate ({error!r})"]
    return [
        *(f"the root does not conform to {address}" for address in PROFILES_BY_URL if address not in profiles),
        *(f"'{name}' is not described" for name in sorted(set(files) - set(file_entities))),
        *(f"'{name}' is described but missing" for name in sorted(set(file_entities) - set(files))),
        *(
            f"'{name}' differs from its description"
            for name, facts in sorted(files.items())
            if (entity := file_entities.get(name))
            and (entity.get("sha256"), entity.get("contentSize")) != (facts.sha256, str(facts.size))
        ),
    ]
