"""Where a forecast learns from: the costs of all campaigns below a results root, of archives and of other results; and where the
forecast of a lease is kept until its manifest has it."""

from __future__ import annotations

import zipfile
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from campaign.config.resolve import Campaign
from campaign.config.system_file import SystemFile
from campaign.documents.earlier_spread import EarlierSpread
from campaign.documents.operation_times import (
    OPERATIONS,
    OperationTimes,
    Session,
    Timed,
    published_times,
    read_times,
)
from campaign.documents.record import Record
from campaign.errors import ConfigError
from campaign.fabrics.operations import Steps
from campaign.fabrics.registry import fabric_kind
from campaign.files import parse_json, read_json, reading, write_json
from campaign.paths import Results
from campaign.plan.cost.composing import ENOUGH, ComposingTimes
from campaign.plan.cost.costs import Costs, costs_of, from_document, from_documents
from campaign.wording import plural

COSTS = "costs.json"
"""In tables/ of a campaign's results, and behind the name of a campaign file."""

_FORECAST = "forecast.json"


def read_costs(results: Results, learn_from: Sequence[Path] = (), campaign: Path | None = None) -> list[Costs]:
    """What this campaign, all others below the same root, and what is named have cost; damaged files only make it coarser.

    campaign: its file. NAME.costs.json beside NAME.yaml holds what somebody else's runs of it have cost: a run here takes the place
    of what the file says of its cell. ConfigError for a place to learn from that holds nothing.
    """
    found = [*_campaign(results.directory, manifests=True)]
    for directory in sorted(results.root.glob("[!.]*/")):
        if directory != results.directory:
            found += _campaign(directory)
    for place in learn_from:
        places = [place, *sorted(place.glob("*/"))]  # one campaign's results, or a directory of several
        learned = _archive(place) if place.is_file() else [costs for each in places for costs in _campaign(each)]
        if not any(costs.runs for costs in learned):
            raise ConfigError(
                f"--learn-from {place}: holds no runs to learn from; give an archive (.zip), a campaign's results directory, or a "
                "directory of such"
            )
        found += learned
    if campaign is not None:
        found += from_documents(read_json(campaign.with_suffix(f".{COSTS}")))
    return merged(found)


def earlier_spread(known: Iterable[Costs], campaign: str, systems: Collection[str]) -> tuple[EarlierSpread, ...]:
    """How much compositions differed in other campaigns on these systems."""
    others = (costs for costs in known if costs.campaign != campaign and costs.system in systems)
    return tuple(dict.fromkeys(each for costs in others for each in costs.spread))  # a copy of one may be named as well


def merged(found: Iterable[Costs]) -> list[Costs]:
    """Every cell and every use of a lease once, as where most of its runs are known."""
    sources = list(found)
    most: dict[str, int] = {}
    for costs in sources:
        for cell in costs.cells:
            most[cell.cell_id] = max(most.get(cell.cell_id, 0), cell.runs)
    uses: set[tuple[str, str]] = set()
    kept = []
    for costs in sources:
        cells = [cell for cell in costs.cells if most.get(cell.cell_id) == cell.runs]
        for cell in cells:
            del most[cell.cell_id]
        leases = [each for each in costs.leases if (costs.campaign, each.lease_id) not in uses]
        uses.update((costs.campaign, each.lease_id) for each in leases)
        if cells or leases or costs.spread:
            kept.append(replace(costs, cells=tuple(cells), leases=tuple(leases)))
    return kept


def _campaign(directory: Path, *, manifests: bool = False) -> Iterator[Costs]:
    """manifests: also those that the tables may not know yet."""
    known = from_documents(read_json(Results.at(directory).tables / COSTS))
    yield from known
    if not known or manifests:
        for manifest in _manifests(directory):
            if (costs := from_document(manifest.get("costs"))) is not None:
                yield costs


def _manifests(directory: Path) -> Iterator[dict[str, Any]]:
    """What each lease in turn says."""
    yield from map(document_of, sorted(Results.at(directory).manifests.rglob("*.json")))


def _archive(path: Path) -> list[Costs]:
    """Costs from the tables of an archive, or from its records where it has none."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            if tables := [name for name in names if name.endswith(f"tables/{COSTS}")]:
                return from_documents(parse_json(archive.read(tables[0])))
            names = [name for name in names if name.endswith(".json")]
            records = [Record.model_validate_json(archive.read(name)) for name in names if "records/" in name]
            leases = [parse_json(archive.read(name)) for name in names if name.rpartition("/")[0].endswith("leases")]
    except (OSError, ValueError, zipfile.BadZipFile, KeyError, RuntimeError) as error:
        raise ConfigError(f"--learn-from {path}: is no archive that can be read ({error}); copy it again") from error
    by_system: defaultdict[str, list[Record]] = defaultdict(list)
    for record in records:
        by_system[str(record.specification.get("system", {}).get("name", ""))].append(record)
    return [costs_of(path.stem, system, mine, leases) for system, mine in sorted(by_system.items())]


def document_of(path: Path) -> dict[str, Any]:
    """A manifest or lease document; empty for a file that is neither."""
    document = read_json(path)
    return document if isinstance(document.get("lease"), str) else {}


def begin(results: Results, lease: str, forecast: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Keep the forecast of a lease that is about to be measured; of one that was begun before, the one of then counts."""
    if (before := begun(results, lease)) is not None:
        return {**before, "resumed": True}
    if forecast is None:
        return None
    write_json(results.work(lease) / _FORECAST, forecast)
    return {**forecast, "resumed": False}


def begun(results: Results, lease: str) -> dict[str, Any] | None:
    """The forecast of a lease that is being measured."""
    document = read_json(results.work(lease) / _FORECAST)
    return document if isinstance(document.get("runs"), int) else None


def end(results: Results, lease: str) -> None:
    """The manifest has it now."""
    (results.work(lease) / _FORECAST).unlink(missing_ok=True)


def measured_forecasts(directory: Path) -> list[dict[str, Any]]:
    """Forecast and actual duration of every lease that was measured with a forecast (`page_document.ForecastSaid`)."""
    rows = []
    for document in _manifests(directory):
        forecast, actual = document.get("forecast"), document.get("actual")
        if not isinstance(forecast, dict) or not isinstance(actual, dict) or actual.get("wall_s") is None:
            continue
        with reading(directory, "a manifest of its leases is damaged; delete manifests/, they are made again"):
            rows.append(
                {
                    "lease": document["lease"],
                    "configuration": str(document.get("configuration", "")),
                    "runs_expected": forecast["runs"],
                    "runs": actual["runs"],
                    "uses": actual["uses"],
                    **{name: forecast[name] for name in ("expected_s", "low_s", "high_s", "basis", "resumed")},
                    "actual_s": actual["wall_s"],
                    "parts": [
                        {**part, "actual_s": actual.get("parts_s", {}).get(part["part"])}
                        for part in forecast.get("parts", ())
                    ],
                }
            )
    return rows


def composing_of(campaign: Campaign, costs: Sequence[Costs]) -> ComposingTimes:
    """What is known of the times of operations on a campaign's system; the campaign itself is the present session."""
    system = campaign.system
    steps = fabric_kind(str(system.fabric["kind"])).steps or Steps()
    rows: defaultdict[str, list[Timed]] = defaultdict(list)  # costs of a campaign may come from several files
    for each in costs:
        if each.system == system.name:
            rows[each.campaign] += timed_of(each, steps)
    now = rows.pop(campaign.name, [])
    before = tuple(Session(name, tuple(timed)) for name, timed in rows.items() if timed)
    published = given_times(system, campaign.system_source.path)
    if published is not None:  # a site's own file may have this campaign
        published = replace(published, sessions=tuple(s for s in published.sessions if s.name != campaign.name))
    if published is not None and steps.confirmed and not system.times:
        published = published.read_twice(float(system.fabric.get("poll_s", 0.0)))
    known = [
        *(["this campaign"] if now else []),
        *([f"{plural(len(before), 'earlier campaign')} on {system.name}"] if before else []),
        *([published.source] if published and len(before) < ENOUGH else []),
    ]
    return ComposingTimes(published, before, " and ".join(known)).within(now)


def given_times(system: SystemFile, path: Path) -> OperationTimes | None:
    """Times of operations that a system file names, or that come with the package for its kind of fabric."""
    if system.times:
        return read_times(path.parent / system.times).scaled(system.times_factor)
    if drawn := str(system.fabric.get("times", "")):  # by a simulation, for devices of every kind
        return published_times(drawn).scaled(float(system.fabric.get("times_factor", 1.0))).of_any_device()
    name = fabric_kind(str(system.fabric["kind"])).times
    return published_times(name).scaled(system.times_factor) if name else None


def timed_of(costs: Costs, steps: Steps) -> tuple[Timed, ...]:
    """Operations of all leases of a campaign, and as `rest` what composing took beside those that are foreseen."""
    foreseen = {*steps.attach, *steps.detach, *steps.once}
    found: list[Timed] = []
    for lease in costs.leases:
        for group, each in enumerate(lease.timed, len(found)):
            found += timed_rows(each, group, foreseen)
    return tuple(found)


def timed_rows(entry: Mapping[str, Any], group: int, foreseen: Iterable[str]) -> list[Timed]:
    """Operations of one composing or release as a journal has it; nothing of what is damaged."""
    wanted = set(foreseen)
    try:
        rows = [
            Timed(operation, str(device), str(box), str(answer), float(seconds), group)
            for operation, device, box, answer, seconds in entry["rows"]
            if operation in OPERATIONS
        ]
        if entry["of"] == "composing":
            rest = float(entry["seconds"]) - sum(row.seconds for row in rows if row.operation in wanted)
            rows.append(Timed("rest", "", "", "", max(0.0, rest), group))
    except (KeyError, TypeError, ValueError):
        return []
    return rows
