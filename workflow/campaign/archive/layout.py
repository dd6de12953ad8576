"""Layout of an archive: its schema, its parts, and the index that lists all members with checksums."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import PurePosixPath
from typing import Any

from campaign.spec.record import ARCHIVE_PATH

SCHEMA = "archive/3"

WRITE_ONCE_PARTS = (
    "records",
    "telemetry",
    "leases",
    "links",
    "devices",
    "manifests",
    "stops",
    "limits",
    "readings",
    "slurm/excluded",
    "superseded",
)
"""Directories of the results whose files are written once. An archive that is written again keeps its files in them."""
PARTS = ("plan", "records", "shared", *WRITE_ONCE_PARTS[1:], "tables")
"""Directories of the results that an archive contains, in order. Logs, scratch files and the drawn report are not included."""

INDEX = "archive.json"
CAMPAIGN = ARCHIVE_PATH
CRATE = "ro-crate-metadata.json"
README = "README.md"
CONFIG = "config"
SNAKEFILE = "workflow/Snakefile"
_SUFFIXES_BY_PART = {
    "plan": (".json", ".tsv"),
    "telemetry": (".parquet", ".json.gz"),
    "tables": (".parquet", ".csv", ".json"),
}
_OTHER_MEMBER_PATTERN = re.compile(
    rf"{re.escape(INDEX)}|{re.escape(CAMPAIGN)}|{re.escape(CRATE)}|{re.escape(README)}"
    rf"|{SNAKEFILE}|workflow/rules/[^/]+\.smk|{CONFIG}/[^\0-\37]+"
    # Earlier versions wrote these members. They are still read.
    r"|questions/[^\0-\37]+\.json"
)

PART_DESCRIPTIONS: Mapping[str, str] = {
    "config": "the campaign as used, with its system and workloads, as YAML with all defaults filled in, and the programs "
    "and input files of the workloads",
    "plan": "the planned runs, their order, and their expected cost",
    "records": "one JSON file per run (`<cell id>.<repetition>.json`): settings, outcome, every step time, all metrics",
    "shared": "data that many records share, stored once under its hash: environments, compositions, the campaign, measured links",
    "telemetry": "samples taken during the runs (time, host, part, quantity, value), as Parquet, or as JSON from hosts without "
    "pyarrow",
    "leases": "one JSON file per lease: times, the requested and the obtained composition, faults",
    "links": "the lease of each link measurement in shared/",
    "devices": "leases of the device checks in shared/, written by earlier versions and no longer read",
    "manifests": "outcomes of the runs of each lease",
    "stops": "cells that reached their target interval before the maximum number of repetitions",
    "limits": "batches that ran out of memory, and runs that contradict this",
    "readings": "results of reading stored logs again, with parser and time; the newest reading of a run is used",
    "slurm/excluded": "hosts that failed and were excluded, and when they were used again",
    "superseded": "records that were set aside and measured again; they are not used",
    "tables": "runs and cells (Parquet and CSV), telemetry (Parquet), leases, links and context (JSON)",
    "workflow": "the rules of the workflow; its entry point is `workflow/Snakefile`",
}
"""Descriptions of the directories of an archive."""


@dataclass(frozen=True)
class ArchiveIndex:
    """Content of `archive.json`.

    Attributes:
        campaign: name of the campaign.
        where: filter that the archive's report uses by default.
        license: SPDX identifier or address of the license.
        creator: name of the person who made the archive.
        made_by: program and version that made the archive.
        order: manifests from the oldest to the newest.
        sha256: SHA-256 of every member except the index.
        schema_version: schema of the archive.
    """

    campaign: str
    where: str | None = None
    license: str = ""
    creator: str = ""
    made_by: str = ""
    order: tuple[str, ...] = ()
    """Manifests from the oldest to the newest. The newest one of a lease has the reason of missing runs."""
    sha256: Mapping[str, str] = field(default_factory=dict)
    schema_version: str = SCHEMA

    def to_dict(self) -> dict[str, Any]:
        """Return the index as a JSON-serialisable dict."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class FileFacts:
    """Size and checksum of one member.

    Attributes:
        size: bytes before compression.
        sha256: SHA-256 as hex digits.
    """

    size: int
    sha256: str


def compute_facts(content: bytes) -> FileFacts:
    """Return the size and the checksum of a member's content."""
    return FileFacts(len(content), hashlib.sha256(content).hexdigest())


def dump_json(document: object) -> bytes:
    """Format a document as JSON. Equal documents always produce equal bytes."""
    return (json.dumps(document, indent=1, sort_keys=True, ensure_ascii=False) + "\n").encode()


def find_part(name: str) -> str:
    """Return the part that a member belongs to, or an empty string for a member outside the parts."""
    return next((part for part in PARTS if name.startswith(f"{part}/")), "")


def is_allowed_member(name: str) -> bool:
    """Return True if an archive may contain a file of this name.

    No member may be unpacked to a location where a campaign would run it or use it as settings.
    """
    if any(part.startswith(".") for part in PurePosixPath(name).parts):
        return False
    part = find_part(name)
    if part == "superseded":
        inner_name = name.split("/", 2)[-1]
        return inner_name == "why.json" or is_allowed_member(inner_name)
    return (
        name.endswith(_SUFFIXES_BY_PART.get(part, (".json",)))
        if part
        else _OTHER_MEMBER_PATTERN.fullmatch(name) is not None
    )


def format_readme(
    campaign: str,
    title: str,
    parts: list[str],
    programs: Collection[str] = (),
    left_out_programs: Collection[str] = (),
) -> bytes:
    """Write the README of an archive for readers who have only a zip program.

    Args:
        campaign: name of the campaign.
        title: title of the campaign.
        parts: parts that the archive has.
        programs: members that are programs and input files.
        left_out_programs: programs and input files that are not in the archive, with the reason.
    """
    part_lines = "\n".join(f"- `{part}/`: {PART_DESCRIPTIONS[part]}" for part in PART_DESCRIPTIONS if part in parts)
    program_lines = [
        "",
        "Programs and input files of the workloads, as they were measured:",
        "",
        *(f"- `{name}`" for name in programs),
    ]
    left_out_lines = ["", "Not in this archive:", "", *(f"- {program}" for program in left_out_programs)]
    part_lines += "\n".join(
        ["", *(program_lines if programs else []), *(left_out_lines if left_out_programs else [])]
    ).rstrip()
    return f"""# {title or campaign}

Results of the campaign '{campaign}', measured with Composable Campaign. This is a Workflow Run RO-Crate: `{CRATE}`
describes every file in a standard way (https://w3id.org/ro/wfrun/workflow/0.5).

## Contents

- `{CRATE}`: the steps of the campaign, with their software, times, inputs and results
- `{INDEX}`: schema of this archive ({SCHEMA}) and the SHA-256 of every other file
- `{CAMPAIGN}`: the campaign as used, as one document
{part_lines}

## Use the archive without Composable Campaign

The numbers are in `tables/cells.csv` (one line per cell: median, mean, interval) and `tables/runs.csv` (one line per run). The
Parquet files next to them contain the same values with types. Column names contain the units (`_s` seconds, `_j` joules, `_mib`
MiB, `_per_s` per second). A missing value was not measured; it does not mean zero.

    import pandas as pd
    cells = pd.read_parquet("tables/cells.parquet")

    duckdb -c "select configuration, workload, batch, median from 'tables/cells.parquet' where state = 'measured'"

## Use the archive with Composable Campaign

    campaign archive verify FILE.zip
    campaign report FILE.zip
    campaign archive extract FILE.zip
""".encode()
