"""Where a forecast learns from: the costs of all campaigns below a results root, of archives and of other results; and where the
forecast of a lease is kept until its manifest has it."""

from __future__ import annotations

import zipfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from campaign.documents.earlier_spread import EarlierSpread
from campaign.errors import ConfigError
from campaign.files import parse_json, read_json, reading, write_json
from campaign.paths import Results
from campaign.plan.cost.costs import Costs, from_documents

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


def merged(found: Sequence[Costs]) -> list[Costs]:
    """Every cell and every use of a lease once, as where most of its runs are known."""
    most: dict[str, int] = {}
    for cell in (cell for costs in found for cell in costs.cells):
        most[cell.cell_id] = max(most.get(cell.cell_id, 0), cell.runs)
    uses: set[tuple[str, str]] = set()
    kept = []
    for costs in found:
        cells = tuple(cell for cell in costs.cells if most.get(cell.cell_id) == cell.runs)
        for cell in cells:
            most.pop(cell.cell_id, None)
        leases = tuple(each for each in costs.leases if (costs.campaign, each.lease_id) not in uses)
        uses.update((costs.campaign, each.lease_id) for each in leases)
        if cells or leases or costs.spread:
            kept.append(replace(costs, cells=cells, leases=leases))
    return kept


def _campaign(directory: Path, *, manifests: bool = False) -> Iterator[Costs]:
    """manifests: also those that the tables may not know yet."""
    known = from_documents(read_json(Results.at(directory).tables / COSTS))
    yield from known
    if not known or manifests:
        for manifest in _manifests(directory):
            yield from from_documents(manifest.get("costs"))


def _manifests(directory: Path) -> Iterator[dict[str, Any]]:
    """What each lease in turn says."""
    yield from map(document_of, sorted(Results.at(directory).manifests.rglob("*.json")))


def _archive(path: Path) -> list[Costs]:
    """Costs from the tables of an archive."""
    try:
        with zipfile.ZipFile(path) as archive:
            tables = [name for name in archive.namelist() if name.endswith(f"tables/{COSTS}")]
            return from_documents(parse_json(archive.read(tables[0]))) if tables else []
    except (OSError, ValueError, zipfile.BadZipFile, KeyError, RuntimeError) as error:
        raise ConfigError(f"--learn-from {path}: is no archive that can be read ({error}); copy it again") from error


def document_of(path: Path) -> dict[str, Any]:
    """A manifest or lease document; empty for a file that is neither."""
    document = read_json(path)
    return document if isinstance(document.get("lease"), str) else {}


def begin(results: Results, lease: str, forecast: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Keep the forecast of a lease that is about to be measured; of one that was begun before, the one of then counts."""
    path = results.work(lease) / _FORECAST
    before = read_json(path)
    if isinstance(before.get("runs"), int):
        return {**before, "resumed": True}
    if forecast is None:
        return None
    write_json(path, forecast)
    return {**forecast, "resumed": False}


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
            row = {name: forecast[name] for name in ("expected_s", "low_s", "high_s", "basis", "resumed")}
            took = actual.get("parts_s", {})
            row["parts"] = [{**part, "actual_s": took.get(part["part"])} for part in forecast.get("parts", ())]
            row |= {"lease": document["lease"], "configuration": str(document.get("configuration", ""))}
            row |= {"runs_expected": forecast["runs"], "runs": actual["runs"], "uses": actual["uses"]}
            rows.append({**row, "actual_s": actual["wall_s"]})
    return rows
