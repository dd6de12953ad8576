"""The RO-Crate of an archive: `ro-crate-metadata.json`, made and read back by the `rocrate` package. No files are touched.

Standards: RO-Crate 1.1 (https://w3id.org/ro/crate/1.1); Workflow Run Crate 0.5 (https://w3id.org/ro/wfrun/workflow/0.5), which
extends Process Run Crate 0.5 and Workflow RO-Crate 1.0. The workflow is the Snakefile. It was executed once for the campaign as a
whole; each lease is one execution of the program that measures, with the records of its runs as results.
"""

from __future__ import annotations

import json
import warnings
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
_CONTEXT = "https://w3id.org/ro/terms/workflow-run/context"  # it has the term `sha256`
_PROGRAM = "#composable-campaign"
_CREATOR = "#creator"
_NO_LICENSE = "#license"
_SPDX = "https://spdx.org/licenses/"
_FORMATS = {
    "json": "application/json",
    "csv": "text/csv",
    "tsv": "text/tab-separated-values",
    "yaml": "application/yaml",
    "md": "text/markdown",
    "parquet": "application/vnd.apache.parquet",
}


@dataclass(frozen=True)
class Action:
    """One lease as the crate tells it. start_s, end_s: Unix seconds of its first and last run, None where no run was started."""

    lease_id: str
    lease: str
    start_s: float | None
    end_s: float | None
    results: tuple[str, ...]
    workloads: tuple[str, ...] = ()
    runs: int = 0
    error: str = ""
    """Why runs of the lease are missing; empty where none is, or nobody has said."""


@dataclass(frozen=True)
class Described:
    """What the crate says of the campaign. license: SPDX identifier or address; version: of the program that made the archive."""

    name: str
    title: str
    question: str
    system: str
    version: str
    license: str = ""
    creator: str = ""
    packages: Mapping[str, tuple[str, ...]] | None = None
    """Versions of the software on the hosts, by package."""
    programs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Members that are programs and input files, by workload."""


def crate_document(described: Described, files: Mapping[str, FileFacts], actions: Sequence[Action]) -> dict[str, Any]:
    """The crate's JSON-LD. files: every member but the crate and the index. The same input gives the same document."""
    from rocrate.model.computerlanguage import ComputerLanguage
    from rocrate.model.contextentity import ContextEntity
    from rocrate.rocrate import ROCrate

    crate = ROCrate(version="1.1")
    crate.metadata.extra_contexts.append(_CONTEXT)
    crate.metadata["conformsTo"] = [{"@id": "https://w3id.org/ro/crate/1.1"}, {"@id": f"{_WORKFLOW_CRATE}/1.0"}]

    def context(identifier: str, **properties: Any) -> dict[str, str]:
        given = {
            "@type" if key == "type" else key: each for key, each in properties.items() if each not in ("", None, [])
        }
        return {"@id": crate.add(ContextEntity(crate, identifier, properties=given)).id}

    language = ComputerLanguage(crate, f"{_WORKFLOW_CRATE}#snakemake", properties={
        "name": "Snakemake", "url": {"@id": "https://snakemake.readthedocs.io"},
    })  # fmt: skip
    crate.add(language)
    _add_files(crate, described, files, {"@id": language.id})
    for address, (name, version) in PROFILES.items():
        context(address, type="CreativeWork", name=name, version=version)
    agent = context(_CREATOR, type="Person", name=described.creator) if described.creator else None
    needed = [
        context(f"#package-{name}-{version}", type="SoftwareApplication", name=name, softwareVersion=version)
        for name, versions in sorted((described.packages or {}).items())
        for version in versions
    ]
    context(
        _PROGRAM,
        type="SoftwareApplication",
        name="Composable Campaign",
        softwareVersion=described.version,
        description="Composes hardware through a fabric, runs workloads on it and records every run.",
        softwareRequirements=needed[0] if len(needed) == 1 else needed,
    )
    root = crate.root_dataset
    root["name"] = described.title or described.name
    root["description"] = described.question or f"Measurements of the campaign {described.name} on {described.system}."
    # When the last run ended, not when the file was written: the same results are the same crate.
    root["datePublished"] = _time(_end_s(actions) or 0.0)
    root["conformsTo"] = [{"@id": address} for address in PROFILES]
    root["mainEntity"] = {"@id": SNAKEFILE}
    root["mentions"] = [
        context(**each, type="CreateAction", agent=agent) for each in _actions(described, files, actions)
    ]
    if agent:
        root["creator"] = root["author"] = agent
    if described.license:
        address = described.license if "://" in described.license else _SPDX + described.license
        root["license"] = context(address, type="CreativeWork", name=described.license)
    else:
        words = "Ask who made this archive before reusing it."
        root["license"] = context(_NO_LICENSE, type="CreativeWork", name="Not stated", description=words)
    document: dict[str, Any] = crate.metadata.generate()
    document["@graph"] = sorted(document["@graph"], key=lambda entity: (entity["@id"] != CRATE, str(entity["@id"])))
    return document


def _add_files(crate: Any, described: Described, files: Mapping[str, FileFacts], language: Mapping[str, str]) -> None:
    workflow = {
        "@type": ["File", "SoftwareSourceCode", "ComputationalWorkflow"],
        "name": "Workflow of Composable Campaign",
        "description": "Entry of the Snakemake workflow, as it stands in the version that made this archive. It needs the program "
        "itself to run.",
        "version": described.version,
        "programmingLanguage": language,
    }
    special: dict[str, dict[str, Any]] = {README: {"about": {"@id": "./"}}, SNAKEFILE: workflow}
    for name, facts in files.items():
        form = _FORMATS.get(name.rpartition(".")[2], "text/plain")
        common = {"name": name, "contentSize": str(facts.size), "sha256": facts.sha256, "encodingFormat": form}
        crate.add_file(dest_path=name, properties={**common, **special.get(name, {})})
    for part, meaning in MEANINGS.items():
        if any(name.startswith(f"{part}/") for name in files):
            crate.add_dataset(dest_path=part, properties={"name": part, "description": meaning})


def _actions(
    described: Described, files: Mapping[str, FileFacts], actions: Sequence[Action]
) -> Iterator[dict[str, Any]]:
    """The campaign as a whole, and each lease."""
    configured = [name for name in files if name.startswith(f"{CONFIG}/")]
    of_workloads = {name for name in configured if name.startswith(f"{CONFIG}/workloads/")}
    of_workloads |= {member for members in described.programs.values() for member in members}
    yield {
        "identifier": "#campaign",
        "name": f"Campaign {described.name} on {described.system}",
        "description": described.question or "All leases of the campaign, from the plan to the tables.",
        "startTime": _time(min((a.start_s for a in actions if a.start_s is not None), default=None)),
        "endTime": _time(_end_s(actions)),
        "instrument": {"@id": SNAKEFILE},
        "object": _references(configured),
        "result": _references(name for name in files if name.startswith("tables/")),
        "actionStatus": _status(any(action.runs for action in actions)),
    }
    for action in actions:
        theirs = {f"{CONFIG}/workloads/{name}.yaml" for name in action.workloads}
        theirs |= {member for name in action.workloads for member in described.programs.get(name, ())}
        used = [name for name in configured if name in theirs or name not in of_workloads]
        yield {
            "identifier": f"#lease-{action.lease_id}",
            "name": f"Lease {action.lease_id}",
            "description": f"{action.runs} runs on the composition of lease {action.lease}",
            "startTime": _time(action.start_s),
            "endTime": _time(action.end_s),
            "instrument": {"@id": _PROGRAM},
            "object": _references(used),
            "result": _references(action.results),
            "actionStatus": _status(action.runs > 0),
            "error": action.error if not action.runs else "",
        }


def _status(whole: bool) -> str:
    return f"http://schema.org/{'Completed' if whole else 'Failed'}ActionStatus"


def _references(names: Iterable[str]) -> list[dict[str, str]]:
    return [{"@id": quote(name)} for name in names]


def _end_s(actions: Sequence[Action]) -> float | None:
    return max((action.end_s for action in actions if action.end_s is not None), default=None)


def _time(seconds: float | None) -> str | None:
    return None if seconds is None else datetime.fromtimestamp(round(seconds), UTC).isoformat()


def problems(document: Mapping[str, Any], files: Mapping[str, FileFacts]) -> list[str]:
    """What of a crate is against RO-Crate, its profiles, or the files that it describes; empty for a good one.

    files: every member but the crate and the index.
    """
    from rocrate.rocrate import ROCrate

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            crate = ROCrate(source=json.loads(json.dumps(document)))
        return [*_of_root(crate), *_of_actions(crate), *_of_files(crate, files)]
    except Exception as error:  # of an entity of any form, which the package looks at late
        return [f"the rocrate package does not read it ({type(error).__name__}: {error})"]


def _of_root(crate: Any) -> Iterator[str]:
    root = crate.root_dataset
    for name in ("name", "description", "datePublished", "license", "mainEntity"):
        if not root.get(name):
            yield f"its root says no {name}"
    claimed = {getattr(each, "id", each) for each in _many(root.get("conformsTo"))}
    yield from (f"its root does not conform to {address}" for address in PROFILES if address not in claimed)
    if "ComputationalWorkflow" not in _many(getattr(root.get("mainEntity"), "type", ())):
        yield "its main entity is no workflow"


def _of_actions(crate: Any) -> Iterator[str]:
    mentioned = {getattr(each, "id", each) for each in _many(crate.root_dataset.get("mentions"))}
    actions = crate.get_by_type("CreateAction")
    if not any(action.get("instrument") is crate.mainEntity for action in actions):
        yield "no action executed its workflow"
    for action in actions:
        if action.id not in mentioned:
            yield f"action {action.id} is not mentioned by the root"
        for name in ("instrument", "object", "result"):
            unknown = [each for each in _many(action.get(name)) if isinstance(each, str)]
            yield from (f"{name} {each} of action {action.id} is not described" for each in unknown)
        if not action.get("instrument"):
            yield f"action {action.id} has no instrument"


def _of_files(crate: Any, files: Mapping[str, FileFacts]) -> Iterator[str]:
    described = {unquote(each.id): each for each in crate.get_by_type("File")}
    yield from (f"'{name}' is not described" for name in sorted(set(files) - set(described)))
    for name, entity in sorted(described.items()):
        if name not in files:
            yield f"'{name}' is described, but not there"
        elif (entity.get("sha256"), entity.get("contentSize")) != (files[name].sha256, str(files[name].size)):
            yield f"'{name}' is not the file that is described"


def _many(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, list | tuple) else [value]
