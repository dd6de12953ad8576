"""Durations of earlier runs and leases: the documents that forecasts learn from (`costs/1`), and their places.

A campaign's tables/costs.json covers all its records and leases. Each manifest has the durations of one lease, and the forecast
of that lease.
"""

from __future__ import annotations

import itertools
import math
import zipfile
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, FiniteFloat, PositiveFloat, TypeAdapter, ValidationError

from campaign.common.errors import ConfigError
from campaign.common.files import parse_json, read_json, reject_damaged_document, write_json
from campaign.common.paths import Results
from campaign.spec.cell import Configuration, Scalar
from campaign.spec.earlier_spread import EarlierSpread, spreads

COSTS = "costs.json"
"""Name of the document in tables/ of a campaign's results. Beside NAME.yaml it is NAME.costs.json."""
_FORECAST = "forecast.json"

ShapeValues = Mapping[str, Scalar]
"""Hardware of a configuration, as `Configuration.shape` gives it."""


@dataclass(frozen=True)
class CellCost:
    """Durations (seconds) of the runs of one cell.

    Earlier versions wrote the number of runs and the mean of ln(seconds) instead. believed: whether most of the runs were `ok`.
    Runs that fail early are no guide to the duration of other cells' runs.
    """

    cell_id: str
    shape: ShapeValues
    workload: str
    runs: int = 0
    believed: bool = False
    run_s: tuple[Annotated[PositiveFloat, FiniteFloat], ...] = ()
    mean_log_s: FiniteFloat = 0.0

    @property
    def seconds(self) -> tuple[float, ...]:
        return self.run_s or (math.exp(self.mean_log_s),) * self.runs


@dataclass(frozen=True)
class LeaseCost:
    """Durations (seconds) of one use of a lease, without its runs; None if not recorded.

    compose_s: from the request until the lease is ready; queue_s: until its driver begins; start_s: until the first run;
    between_s: mean between two runs; end_s: from the last run until everything is released. off: actual over expected duration
    of the whole use.
    """

    lease_id: str
    shape: ShapeValues
    runs: int
    compose_s: FiniteFloat | None
    start_s: FiniteFloat | None
    between_s: FiniteFloat | None
    end_s: FiniteFloat | None
    queue_s: FiniteFloat | None = None
    off: Annotated[PositiveFloat, FiniteFloat] | None = None


@dataclass(frozen=True)
class Costs:
    """Durations of the runs and leases of one campaign on one system."""

    campaign: str
    system: str
    cells: tuple[CellCost, ...] = ()
    leases: tuple[LeaseCost, ...] = ()
    spread: Annotated[tuple[EarlierSpread, ...], BeforeValidator(spreads)] = ()
    """How much compositions differed, by workload."""
    fabric: str = ""
    """Kind of the system's fabric."""
    schema_version: Literal["costs/1"] = "costs/1"

    def document(self) -> dict[str, Any]:
        """Return the costs as JSON, which `parse_costs` reads."""
        document: dict[str, Any] = _COSTS.dump_python(self, mode="json", exclude_defaults=True)
        return {**document, "schema_version": self.schema_version}


_COSTS = TypeAdapter(Costs)


@dataclass(frozen=True)
class Span:
    """Start and end (Unix seconds) of one run.

    use: lease use that the run was measured on; empty if it follows from the time.
    """

    cell_id: str
    started: float
    ended: float
    ok: bool
    use: str = ""

    @property
    def seconds(self) -> float:
        return round(max(0.001, self.ended - self.started), 3)


def parse_costs(document: Any) -> list[Costs]:
    """Parse the costs of a campaign, one per system. Damaged entries are left out, which only makes forecasts coarser."""
    found = []
    for each in document.get("systems", [document]) if isinstance(document, dict) else []:
        try:
            found.append(_COSTS.validate_python(each))
        except ValidationError:
            continue
    return found


def costs_document(found: Sequence[Costs]) -> dict[str, Any]:
    """Return the costs of a campaign on its systems as JSON, which `parse_costs` reads."""
    return found[0].document() if len(found) == 1 else {"systems": [each.document() for each in found]}


def measure_costs(
    empty: Costs,
    cells: Mapping[str, tuple[str, Configuration]],
    spans: Iterable[Span],
    leases: Sequence[Mapping[str, Any]],
    offs: Mapping[str, float] | None = None,
) -> Costs:
    """Compute the costs of some cells' runs and of the uses of leases.

    Args:
        header: campaign and system, without costs.
        cells: workload and configuration of each cell, by its id.
        spans: start and end of each run.
        leases: documents of the lease uses.
        ratios: actual over expected duration of the uses that had a forecast.
    """
    by_cell: defaultdict[str, list[Span]] = defaultdict(list)
    by_use: defaultdict[str, list[Span]] = defaultdict(list)
    for span in spans:
        by_cell[span.cell_id].append(span)
        by_use[span.use or next((str(each["lease_id"]) for each in leases if _is_within(each, span)), "")].append(span)
    found = [
        CellCost(
            name, configuration.shape(), workload, len(runs), 2 * sum(span.ok for span in runs) > len(runs),
            tuple(span.seconds for span in runs),
        )
        for name, (workload, configuration) in sorted(cells.items())
        if (runs := by_cell[name])
    ]  # fmt: skip
    uses = (_lease_cost(lease, by_use[str(lease["lease_id"])], offs or {}) for lease in leases)
    return replace(empty, cells=tuple(found), leases=tuple(use for use in uses if use is not None))


def _lease_cost(document: Mapping[str, Any], spans: Iterable[Span], offs: Mapping[str, float]) -> LeaseCost | None:
    """Return the cost of one use of a lease; None if it never got ready or ran nothing."""
    requested, ready, released, began = (
        _number(document, name) for name in ("requested_s", "ready_s", "released_s", "driver_began_s")
    )
    ordered = sorted(spans, key=lambda span: span.started)
    shape = document.get("requested")
    if ready is None or not ordered or not isinstance(shape, Mapping):
        return None
    first, last = ordered[0].started, max(span.ended for span in ordered)
    queue_s = None if began is None else max(0.0, min(began, first) - ready)
    gaps = [after.started - before.ended for before, after in itertools.pairwise(ordered)]
    return LeaseCost(
        lease_id=str(document["lease_id"]),
        shape={name: value for name, value in shape.items() if name != "name"},
        runs=len(ordered),
        compose_s=None if requested is None else max(0.0, ready - requested),
        start_s=max(0.0, first - ready - (queue_s or 0.0)),
        between_s=max(0.0, fmean(gaps)) if gaps else None,
        end_s=None if released is None else max(0.0, released - last),
        queue_s=queue_s,
        off=offs.get(str(document["lease_id"])),
    )


def _number(document: Mapping[str, Any], name: str) -> float | None:
    value = document.get(name)
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _is_within(lease: Mapping[str, Any], span: Span) -> bool:
    ready, released = _number(lease, "ready_s"), _number(lease, "released_s")
    return ready is not None and ready <= span.started and (released is None or span.ended <= released)


def read_costs(results: Results, learn_from: Sequence[Path] = (), campaign: Path | None = None) -> list[Costs]:
    """Read the costs of this campaign, of all others below the same root, and of further places.

    Damaged files are left out. Raises ConfigError for a place to learn from that holds no runs.

    Args:
        results: results directory of the campaign.
        learn_from: archives and results directories.
        campaign: path of its file; costs in NAME.costs.json beside NAME.yaml yield to runs that are measured here.
    """
    found = [*_campaign_costs(results.directory, manifests=True)]
    for directory in sorted(results.root.glob("[!.]*/")):
        if directory != results.directory:
            found += _campaign_costs(directory)
    for place in learn_from:
        places = [place, *sorted(place.glob("*/"))]  # one campaign's results, or a directory of several
        learned = _archived_costs(place) if place.is_file() else [c for each in places for c in _campaign_costs(each)]
        if not any(costs.cells for costs in learned):
            raise ConfigError(
                f"--learn-from {place}: holds no runs to learn from; give an archive (.zip), a campaign's results directory, or a "
                "directory of such"
            )
        found += learned
    if campaign is not None:
        found += parse_costs(read_json(campaign.with_suffix(f".{COSTS}")))
    return merge_costs(found)


def merge_costs(found: Sequence[Costs]) -> list[Costs]:
    """Merge costs so that each cell counts once, from the entry with the most runs, and each lease use once."""
    most: dict[str, int] = {}
    for cell in (cell for costs in found for cell in costs.cells):
        most[cell.cell_id] = max(most.get(cell.cell_id, 0), cell.runs)
    uses: set[tuple[str, str]] = set()
    merged = []
    for costs in found:
        cells = tuple(cell for cell in costs.cells if most.get(cell.cell_id) == cell.runs)
        for cell in cells:
            most.pop(cell.cell_id, None)
        leases = tuple(each for each in costs.leases if (costs.campaign, each.lease_id) not in uses)
        uses.update((costs.campaign, each.lease_id) for each in leases)
        if cells or leases or costs.spread:
            merged.append(replace(costs, cells=cells, leases=leases))
    return merged


def earlier_spread(known: Iterable[Costs], campaign: str, systems: Collection[str]) -> tuple[EarlierSpread, ...]:
    """Return the spread between compositions in other campaigns on these systems."""
    others = (costs for costs in known if costs.campaign != campaign and costs.system in systems)
    return tuple(dict.fromkeys(each for costs in others for each in costs.spread))  # a copy of one may be named as well


def _campaign_costs(directory: Path, *, manifests: bool = False) -> Iterator[Costs]:
    """Yield the costs of one campaign's results. manifests: also of those that the tables may not have yet."""
    known = parse_costs(read_json(Results.from_directory(directory).tables / COSTS))
    yield from known
    if known and not manifests:
        return
    for manifest in _manifests(directory):
        offs = forecast_offs([manifest])
        for costs in parse_costs(manifest.get("costs")):
            leases = tuple(replace(each, off=offs.get(each.lease_id)) for each in costs.leases)
            yield replace(costs, leases=leases)


def _archived_costs(path: Path) -> list[Costs]:
    try:
        with zipfile.ZipFile(path) as archive:
            tables = [name for name in archive.namelist() if name.endswith(f"tables/{COSTS}")]
            return parse_costs(parse_json(archive.read(tables[0]))) if tables else []
    except (OSError, ValueError, zipfile.BadZipFile, KeyError, RuntimeError) as error:
        raise ConfigError(f"--learn-from {path}: is no archive that can be read ({error}); copy it again") from error


def _manifests(directory: Path) -> Iterator[dict[str, Any]]:
    yield from map(read_lease_document, Results.from_directory(directory).list_manifests())


def read_lease_document(path: Path) -> dict[str, Any]:
    """Read a manifest or a lease document. Returns {} for any other file."""
    document = read_json(path)
    return document if isinstance(document.get("lease"), str) else {}


def read_forecast_offs(directory: Path) -> dict[str, float]:
    """Return actual over expected duration of each lease of a results directory that had a forecast, by its use."""
    return forecast_offs(_manifests(directory))


def forecast_offs(manifests: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Compute actual over expected duration of leases that were measured without interruption, by their use."""
    offs = {}
    for manifest in manifests:
        forecast, actual, uses = (manifest.get(name) for name in ("forecast", "actual", "uses"))
        if not (isinstance(forecast, dict) and isinstance(actual, dict) and isinstance(uses, list) and len(uses) == 1):
            continue
        expected_s, wall_s = _number(forecast, "expected_s"), _number(actual, "wall_s")
        in_one_go = actual.get("runs") == forecast.get("runs") and not forecast.get("resumed")
        # Forecasts with parts are of earlier versions, and no medians.
        if in_one_go and expected_s and wall_s and "parts" not in forecast:
            offs[str(uses[0])] = wall_s / expected_s
    return offs


def begin_forecast(results: Results, lease: str, forecast: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Store the forecast of a lease that is about to be measured, and return it.

    The first forecast counts if the lease was begun before.
    """
    path = results.work_directory(lease) / _FORECAST
    before = read_json(path)
    if isinstance(before.get("runs"), int):
        return {**before, "resumed": True}
    if forecast is None:
        return None
    write_json(path, forecast)
    return {**forecast, "resumed": False}


def end_forecast(results: Results, lease: str) -> None:
    """Remove the forecast of a lease, which its manifest has now."""
    (results.work_directory(lease) / _FORECAST).unlink(missing_ok=True)


def measured_forecasts(directory: Path) -> list[dict[str, Any]]:
    """Return forecast and actual duration of every lease that was measured with a forecast (`context_schema.ForecastSaid`)."""
    rows = []
    for document in _manifests(directory):
        forecast, actual = document.get("forecast"), document.get("actual")
        if not isinstance(forecast, dict) or not isinstance(actual, dict) or actual.get("wall_s") is None:
            continue
        with reject_damaged_document(
            directory, "a manifest of its leases is damaged; delete manifests/, they are made again"
        ):
            row = {name: forecast[name] for name in ("expected_s", "low_s", "high_s", "basis", "resumed")}
            row |= {"lease": document["lease"], "configuration": str(document.get("configuration", ""))}
            row |= {"runs_expected": forecast["runs"], "runs": actual["runs"], "uses": actual["uses"]}
            rows.append({**row, "actual_s": actual["wall_s"]})
    return rows
