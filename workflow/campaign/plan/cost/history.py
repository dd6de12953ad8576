"""Where a forecast learns from: the costs of all campaigns below a results root, of archives and of other results; and where the
forecast of a lease is kept until its manifest has it."""

from __future__ import annotations

import json
import zipfile
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from campaign.documents.earlier_spread import EarlierSpread
from campaign.documents.record import Record
from campaign.errors import ConfigError
from campaign.files import read_json, write_json
from campaign.paths import Results
from campaign.plan.cost.costs import Costs, costs_of, from_document, from_documents

COSTS = "costs.json"
"""In tables/ of a campaign's results."""

_FORECAST = "forecast.json"


def read_costs(results: Results, learn_from: Sequence[Path] = ()) -> list[Costs]:
    """What this campaign, all others below the same root, and what is named have cost; damaged files only make it coarser.

    ConfigError for a place to learn from that holds nothing.
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
    """Of each lease in turn."""
    yield from map(document_of, sorted(Results.at(directory).manifests.glob("*/*.json")))


def _archive(path: Path) -> list[Costs]:
    """From the tables of an archive, or from its records where it has none."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            if tables := [name for name in names if name.endswith(f"tables/{COSTS}")]:
                return from_documents(json.loads(archive.read(tables[0])))
            names = [name for name in names if name.endswith(".json")]
            records = [Record.model_validate_json(archive.read(name)) for name in names if "records/" in name]
            leases = [json.loads(archive.read(name)) for name in names if name.rpartition("/")[0].endswith("leases")]
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
