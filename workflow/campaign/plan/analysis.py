"""The analysis of a campaign as it was written down before the first run: what is compared, and by which choices.

plan/analysis.json of the results (`analysis/1`) holds every version: a change before the first run replaces the last
one, a later change stands beside it with its date. So a reader sees whether anything was chosen after numbers were
known. Nothing of it is part of the identity of a cell.
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
    """One version. written: date and time (UTC), empty for one that no plan was written with yet; runs: how many had
    a record then."""

    hash: str
    written: str
    runs: int
    choices: Mapping[str, Any]


def choices(campaign: Campaign) -> dict[str, Any]:
    """What is compared and how, without what does not bear on it. Keys that are left at their default are left out,
    so that a new key of a later version changes nothing."""
    file = campaign.file.model_dump(mode="json", include={*_FILE, "protocol"}, exclude_defaults=True)
    protocol = {name: value for name, value in file.pop("protocol", {}).items() if name in _PROTOCOL}
    found = {
        **file,
        "protocol": protocol,
        "claims": {each.name: hash_document(each.model_dump(mode="json")) for each in campaign.references},
    }
    return {name: value for name, value in found.items() if value}


def version(campaign: Campaign, written: str = "", runs: int = 0) -> Analysis:
    """The analysis of a campaign as its files have it now."""
    chosen = choices(campaign)
    return Analysis(hash_document(chosen), written, runs, chosen)


def keep(results: Results, campaign: Campaign) -> None:
    """Write the analysis down where it is another one than the last."""
    found, now = kept(results.analysis_file), version(campaign)
    if campaign.file.imported or (found and found[-1].hash == now.hash):
        return
    # What was measured and then moved aside was known as well.
    runs = len({*results.records.glob("*/*.json"), *results.superseded_records.glob("*/records/*/*.json")})
    earlier = [each for each in found if each.runs or runs]
    written = time.strftime("%Y-%m-%d %H:%M", time.gmtime())
    versions = [asdict(each) for each in (*earlier, version(campaign, written, runs))]
    write_json(results.analysis_file, {"schema_version": SCHEMA, "versions": versions}, indent=1)


def kept(path: Path) -> Sequence[Analysis]:
    """All versions, the first one first; none where nothing was written, or it is damaged."""
    document = read_json(path)
    try:
        found = [Analysis(**each) for each in document.get("versions", ())]
    except TypeError:
        return ()
    return found if document.get("schema_version") == SCHEMA else ()


def said(found: Sequence[Analysis], campaign: Campaign) -> Iterator[dict[str, Any]]:
    """What the report is told of each version, and of a change since the last plan: hash, written, runs, and the
    keys that changed."""
    now = version(campaign)
    later = [now] if found and found[-1].hash != now.hash else []
    for before, each in zip((None, *found), (*found, *later), strict=False):
        changed = [] if before is None else _changed(before.choices, each.choices)
        yield {"hash": each.hash, "written": each.written, "runs": each.runs, "changed": changed}


def _changed(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """The keys that differ, such as `exclude` and `protocol.repetitions`."""
    one, two = _flat(before), _flat(now)
    return sorted(name for name in {*one, *two} if one.get(name) != two.get(name))


def _flat(chosen: Mapping[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in chosen.items():
        flat |= {f"{name}.{key}": each for key, each in value.items()} if isinstance(value, dict) else {name: value}
    return flat
