"""Analysis of a campaign, recorded before the first run: the comparisons and the choices behind them.

plan/analysis.json of the results (`analysis/1`) holds every version. A change before the first run replaces the last version. A
later change is added with its date, so a reader sees whether anything was chosen after numbers were known. The analysis is not
part of the identity of a cell.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from campaign.common.files import hash_document, read_json, write_json
from campaign.common.paths import Results
from campaign.plan.campaign.resolve import Campaign

SCHEMA = "analysis/1"
_PROTOCOL_KEYS = (
    "warmup_steps", "warmup_steps_max", "measured_steps", "repetitions", "compositions", "target_half_width_pct",
    "repetitions_min", "seed", "order", "lease_order", "lease_per", "reference",
)  # fmt: skip
_FILE_KEYS = ("question", "metric", "baseline", "configurations", "axes", "zip", "exclude", "overrides", "report")


@dataclass(frozen=True, slots=True)
class Analysis:
    """One version of the analysis of a campaign.

    Args:
        hash: hash of the choices.
        written: date and time (UTC); empty if no plan was written with this version.
        runs: number of runs that had a record at that time.
        choices: choices that determine the comparisons.
    """

    hash: str
    written: str
    runs: int
    choices: Mapping[str, Any]


def collect_choices(campaign: Campaign) -> dict[str, Any]:
    """Collect the choices that determine the comparisons of a campaign.

    Keys with their default value are left out, so that a new key of a later version of this program changes nothing.
    """
    file = campaign.file.model_dump(mode="json", include={*_FILE_KEYS, "protocol"}, exclude_defaults=True)
    protocol = {name: value for name, value in file.pop("protocol", {}).items() if name in _PROTOCOL_KEYS}
    choices = {
        **file,
        "protocol": protocol,
        "claims": {claim.name: hash_document(claim.model_dump(mode="json")) for claim in campaign.references},
    }
    return {name: value for name, value in choices.items() if value}


def current_version(campaign: Campaign, date: str = "", runs: int = 0) -> Analysis:
    """Build the version of the analysis that the campaign's files currently describe."""
    current_choices = collect_choices(campaign)
    return Analysis(hash_document(current_choices), date, runs, current_choices)


def record_analysis(results: Results, campaign: Campaign) -> None:
    """Append the campaign's analysis to analysis.json if it differs from the last recorded version."""
    versions_before, current = read_versions(results.analysis_file), current_version(campaign)
    if campaign.file.imported or (versions_before and versions_before[-1].hash == current.hash):
        return
    # Records that were moved aside count as well: their numbers were known.
    runs = len({*results.records.glob("*/*.json"), *results.superseded_records.glob("*/records/*/*.json")})
    earlier = [analysis for analysis in versions_before if analysis.runs or runs]
    date = time.strftime("%Y-%m-%d %H:%M", time.gmtime())
    versions = [asdict(analysis) for analysis in (*earlier, current_version(campaign, date, runs))]
    write_json(results.analysis_file, {"schema_version": SCHEMA, "versions": versions}, indent=1)


def read_versions(path: Path) -> Sequence[Analysis]:
    """Read all recorded versions of the analysis, the oldest first.

    Returns an empty sequence if the file is absent or damaged.
    """
    document = read_json(path)
    try:
        versions = [Analysis(**entry) for entry in document.get("versions", ())]
    except TypeError:
        return ()
    return versions if document.get("schema_version") == SCHEMA else ()


def describe_versions(versions: Sequence[Analysis], campaign: Campaign) -> Iterator[dict[str, Any]]:
    """Yield hash, date, number of runs and changed keys of each version, as the report shows them.

    The current analysis is added if it differs from the last recorded version.
    """
    current = current_version(campaign)
    later = [current] if versions and versions[-1].hash != current.hash else []
    for before, analysis in zip((None, *versions), (*versions, *later), strict=False):
        changed_keys = [] if before is None else _find_changed_keys(before.choices, analysis.choices)
        yield {"hash": analysis.hash, "written": analysis.written, "runs": analysis.runs, "changed": changed_keys}


def _find_changed_keys(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Return the sorted keys whose values differ, such as `exclude` and `protocol.repetitions`."""
    flat_before, flat_after = _flatten(before), _flatten(after)
    return sorted(name for name in {*flat_before, *flat_after} if flat_before.get(name) != flat_after.get(name))


def _flatten(choices: Mapping[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in choices.items():
        flat |= {f"{name}.{key}": entry for key, entry in value.items()} if isinstance(value, dict) else {name: value}
    return flat
