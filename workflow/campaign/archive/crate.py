"""RO-Crate of an archive, which is the content of `ro-crate-metadata.json`. No files are touched.

Standards: RO-Crate 1.1 (https://w3id.org/ro/crate/1.1); Workflow Run Crate 0.5 (https://w3id.org/ro/wfrun/workflow/0.5), which
extends Process Run Crate 0.5 and Workflow RO-Crate 1.0. The workflow is the Snakefile, executed once for the whole campaign.
Each
lease is one execution of the measuring program, with the records of its runs as results.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, unquote

from campaign.archive.layout import CONFIG, CRATE, MEANINGS, README, SNAKEFILE, FileFacts

_WORKFLOW_CRATE = "https://w3id.org/workflowhub/workflow-ro-crate"
PROFILES: Mapping[str, tuple[str, str]] = {
    "https://w3id.org/ro/wfrun/process/0.5": ("Process Run Crate", "0.5"),
    "https://w3id.org/ro/wfrun/workflow/0.5": ("Workflow Run Crate", "0.5"),
    f"{_WORKFLOW_CRATE}/1.0": ("Workflow RO-Crate", "1.0"),
}
# The second context defines the term `sha256`.
_CONTEXT = ["https://w3id.org/ro/crate/1.1/context", "https://w3id.org/ro/terms/workflow-run/context"]
_ROOT = "./"
_LANGUAGE = f"{_WORKFLOW_CRATE}#snakemake"
_PROGRAM = "#composable-campaign"
_CREATOR = "#creator"
_FORMATS = {
    "json": "application/json",
    "csv": "text/csv",
    "tsv": "text/tab-separated-values",
    "yaml": "application/yaml",
    "md": "text/markdown",
    "parquet": "application/vnd.apache.parquet",
}
Entity = dict[str, Any]


@dataclass(frozen=True)
class Action:
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
class Described:
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


def crate_document(described: Described, files: Mapping[str, FileFacts], actions: Sequence[Action]) -> dict[str, Any]:
    """Build the JSON-LD document of the crate. The same input gives the same document.

    Args:
        crate: description of the campaign.
        files: size and checksum of every member except the crate and the index.
        actions: leases of the campaign.
    """
    parts = [_file_entity(described, name, facts) for name, facts in files.items()]
    parts += [
        _entity(f"{part}/", "Dataset", name=part, description=meaning)
        for part, meaning in MEANINGS.items()
        if any(name.startswith(f"{part}/") for name in files)
    ]
    executed = list(_actions(described, files, actions))
    entities = [_root(described, parts, executed, _end_s(actions)), *parts, *executed, *_context_entities(described)]
    entities.sort(key=lambda entity: str(entity["@id"]))
    conforms = [_reference("https://w3id.org/ro/crate/1.1"), _reference(f"{_WORKFLOW_CRATE}/1.0")]
    descriptor = _entity(CRATE, "CreativeWork", about=_reference(_ROOT), conformsTo=conforms)
    return {"@context": _CONTEXT, "@graph": [descriptor, *entities]}


def _entity(identifier: str, kind: str | Sequence[str], **properties: Any) -> Entity:
    """Build an entity of the crate without its empty properties."""
    known = {name: value for name, value in properties.items() if value not in ("", None, [])}
    return {"@id": identifier, "@type": kind, **known}


def _reference(identifier: str) -> dict[str, str]:
    return {"@id": identifier}


def _references(names: Iterable[str]) -> list[dict[str, str]]:
    return [_reference(quote(name)) for name in names]


def _root(described: Described, parts: Sequence[Entity], executed: Sequence[Entity], end_s: float | None) -> Entity:
    creator = _reference(_CREATOR) if described.creator else None
    return _entity(
        _ROOT, "Dataset", name=described.title or described.name,
        description=described.question or f"Measurements of the campaign {described.name} on {described.system}.",
        # The end of the last run, not the time of writing, so that the same results give the same crate.
        datePublished=_time(end_s or 0.0), conformsTo=[_reference(address) for address in PROFILES],
        mainEntity=_reference(SNAKEFILE), hasPart=[_reference(entity["@id"]) for entity in parts],
        mentions=[_reference(entity["@id"]) for entity in executed], creator=creator, author=creator,
        license=_reference(_license(described)["@id"]),
    )  # fmt: skip


def _license(described: Described) -> Entity:
    name = described.license
    if not name:
        return _entity(
            "#license", "CreativeWork", name="Not stated", description="Ask who made this archive before reusing it."
        )
    return _entity(name if "://" in name else f"https://spdx.org/licenses/{name}", "CreativeWork", name=name)


def _context_entities(described: Described) -> Iterator[Entity]:
    """Yield the entities that others refer to (language, profiles, program, packages, creator and license)."""
    yield _entity(_LANGUAGE, "ComputerLanguage", name="Snakemake", url=_reference("https://snakemake.readthedocs.io"))
    for address, (name, version) in PROFILES.items():
        yield _entity(address, "CreativeWork", name=name, version=version)
    packages = [
        _entity(f"#package-{name}-{version}", "SoftwareApplication", name=name, softwareVersion=version)
        for name, versions in sorted(described.packages.items())
        for version in versions
    ]
    yield from packages
    yield _entity(
        _PROGRAM, "SoftwareApplication", name="Composable Campaign", softwareVersion=described.version,
        description="Composes hardware through a fabric, runs workloads on it and records every run.",
        softwareRequirements=[_reference(package["@id"]) for package in packages],
    )  # fmt: skip
    if described.creator:
        yield _entity(_CREATOR, "Person", name=described.creator)
    yield _license(described)


def _file_entity(described: Described, name: str, facts: FileFacts) -> Entity:
    form = _FORMATS.get(name.rpartition(".")[2], "text/plain")
    common = {"contentSize": str(facts.size), "sha256": facts.sha256, "encodingFormat": form}
    if name == SNAKEFILE:
        return _entity(
            name, ["File", "SoftwareSourceCode", "ComputationalWorkflow"], **common, name="Workflow of Composable Campaign",
            description="Entry of the Snakemake workflow, as it stands in the version that made this archive. It needs the program "
            "itself to run.", version=described.version, programmingLanguage=_reference(_LANGUAGE),
        )  # fmt: skip
    return _entity(quote(name), "File", **common, name=name, about=_reference(_ROOT) if name == README else None)


def _actions(described: Described, files: Mapping[str, FileFacts], actions: Sequence[Action]) -> Iterator[Entity]:
    """Yield one action entity for the campaign as a whole, and one per lease."""
    configured = [name for name in files if name.startswith(f"{CONFIG}/")]
    of_workloads = {name for name in configured if name.startswith(f"{CONFIG}/workloads/")}
    of_workloads |= {member for members in described.programs.values() for member in members}
    agent = _reference(_CREATOR) if described.creator else None
    yield _entity(
        "#campaign", "CreateAction", name=f"Campaign {described.name} on {described.system}",
        description=described.question or "All leases of the campaign, from the plan to the tables.",
        startTime=_time(min((each.start_s for each in actions if each.start_s is not None), default=None)),
        endTime=_time(_end_s(actions)), instrument=_reference(SNAKEFILE), object=_references(configured),
        result=_references(name for name in files if name.startswith("tables/")),
        actionStatus=_status(any(each.runs for each in actions)), agent=agent,
    )  # fmt: skip
    for action in actions:
        own = {f"{CONFIG}/workloads/{name}.yaml" for name in action.workloads}
        own |= {member for name in action.workloads for member in described.programs.get(name, ())}
        yield _entity(
            f"#lease-{action.lease_id}", "CreateAction", name=f"Lease {action.lease_id}",
            description=f"{action.runs} runs on the composition of lease {action.lease}",
            startTime=_time(action.start_s), endTime=_time(action.end_s), instrument=_reference(_PROGRAM),
            object=_references(name for name in configured if name in own or name not in of_workloads),
            result=_references(action.results), actionStatus=_status(action.runs > 0),
            error=action.error if not action.runs else "", agent=agent,
        )  # fmt: skip


def _status(whole: bool) -> str:
    return f"http://schema.org/{'Completed' if whole else 'Failed'}ActionStatus"


def _end_s(actions: Sequence[Action]) -> float | None:
    return max((action.end_s for action in actions if action.end_s is not None), default=None)


def _time(seconds: float | None) -> str | None:
    return None if seconds is None else datetime.fromtimestamp(round(seconds), UTC).isoformat()


def problems(document: Any, files: Mapping[str, FileFacts]) -> list[str]:
    """Return the differences between a crate and its profile, and between a crate and its files.

    The list is empty for a valid crate.

    Args:
        document: JSON-LD document of the crate.
        files: size and checksum of every member except the crate and the index.
    """
    try:
        entities = {unquote(entity["@id"]): entity for entity in document["@graph"]}
        root = entities[_ROOT]
        profiles = {each["@id"] for each in root["conformsTo"]}
        # Only files have a checksum.
        described = {name: entity for name, entity in entities.items() if "sha256" in entity}
    except (KeyError, TypeError, AttributeError) as error:
        return [f"it is no RO-Crate ({error!r})"]
    return [
        *(f"its root does not conform to {address}" for address in PROFILES if address not in profiles),
        *(f"'{name}' is not described" for name in sorted(set(files) - set(described))),
        *(f"'{name}' is described, but not there" for name in sorted(set(described) - set(files))),
        *(
            f"'{name}' is not the file that is described"
            for name, facts in sorted(files.items())
            if (entity := described.get(name))
            and (entity.get("sha256"), entity.get("contentSize")) != (facts.sha256, str(facts.size))
        ),
    ]
