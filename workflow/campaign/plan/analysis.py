"""Analysis of a campaign, recorded before the first run: the comparisons and the choices behind them.

plan/analysis.json of the results (`analysis/1`) holds every version. A change before the first run replaces the last version. A
later change is added with its date. So a reader sees whether anything was chosen after numbers were known. The analysis is no
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
_PROTOCOL = (
    "warmup_steps", "warmup_steps_max", "measured_steps", "repetitions", "compositions", "target_half_width_pct",
    "repetitions_min", "seed", "order", "lease_order", "lease_per", "reference",
)  # fmt: skip
_FILE = ("question", "metric", "baseline", "configurations", "axes", "zip", "exclude", "overrides", "report")


@dataclass(frozen=True, slots=True)
class Analysis:
    """One version of the analysis of a campaign.

    written: date and time (UTC), empty if no plan was written with this version; runs: number of runs that had a record at that
    time.
    """

    hash: str
    written: str
    runs: int
    choices: Mapping[str, Any]


def choices(campaign: Campaign) -> dict[str, Any]:
    """Collect the choices that determine the comparisons of a campaign.

    Keys with their default value are left out, so that a new key of a later version of this program changes nothing.
    """
    file = campaign.file.model_dump(mode="json", include={*_FILE, "protocol"}, exclude_defaults=True)
    protocol = {name: value for name, value in file.pop("protocol", {}).items() if name in _PROTOCOL}
    found = {
        **file,
        "protocol": protocol,
        "claims": {each.name: hash_document(each.model_dump(mode="json")) for each in campaign.references},
    }
    return {name: value for name, value in found.items() if value}


def version(campaign: Campaign, written: str = "", runs: int = 0) -> Analysis:
    """Build the version of the analysis that the campaign's files describe now."""
    chosen = choices(campaign)
    return Analysis(hash_document(chosen), written, runs, chosen)


def keep(results: Results, campaign: Campaign) -> None:
    """Append the campaign's analysis to analysis.json if it differs from the last recorded version."""
    found, now = kept(results.analysis_file), version(campaign)
    if campaign.file.imported or (found and found[-1].hash == now.hash):
        return
    # Records that were moved aside count as well: their numbers were known.
    runs = len({*results.records.glob("*/*.json"), *results.superseded_records.glob("*/records/*/*.json")})
    earlier = [each for each in found if each.runs or runs]
    written = time.strftime("%Y-%m-%d %H:%M", time.gmtime())
    versions = [asdict(each) for each in (*earlier, version(campaign, written, runs))]
    write_json(results.analysis_file, {"schema_version": SCHEMA, "versions": versions}, indent=1)


def kept(path: Path) -> Sequence[Analysis]:
    """Read all recorded versions of the analysis, the oldest first.

    Returns an empty sequence if the file is absent or damaged.
    """
    document = read_json(path)
    try:
        found = [Analysis(**each) for each in document.get("versions", ())]
    except TypeError:
        return ()
    return found if document.get("schema_version") == SCHEMA else ()


def said(found: Sequence[Analysis], campaign: Campaign) -> Iterator[dict[str, Any]]:
    """Yield hash, date, number of runs and changed keys of each version, as the report shows them.

    The current analysis is added if it differs from the last recorded version.
    """
    now = version(campaign)
    later = [now] if found and found[-1].hash != now.hash else []
    for before, each in zip((None, *found), (*found, *later), strict=False):
        changed = [] if before is None else _changed(before.choices, each.choices)
        yield {"hash": each.hash, "written": each.written, "runs": each.runs, "changed": changed}


def _changed(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return the sorted keys whose values differ, such as `exclude` and `protocol.repetitions`."""
    one, two = _flat(before), _flat(now)
    return sorted(name for name in {*one, *two} if one.get(name) != two.get(name))


def _flat(chosen: Mapping[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in chosen.items():
        flat |= {f"{name}.{key}": each for key, each in value.items()} if isinstance(value, dict) else {name: value}
    return flat
