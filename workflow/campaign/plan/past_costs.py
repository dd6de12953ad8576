"""Durations of earlier runs and leases: the documents that forecasts use (`costs/1`), and their locations.

A campaign's tables/costs.json covers all its records and leases. Each manifest has the durations and the forecast of one lease.
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
from campaign.spec.earlier_spread import EarlierSpread, parse_spreads

COSTS = "costs.json"
"""Name of the document in tables/ of a campaign's results. Next to NAME.yaml it is NAME.costs.json."""
_FORECAST = "forecast.json"

ShapeValues = Mapping[str, Scalar]
"""Hardware of a configuration, as returned by `Configuration.shape`."""


@dataclass(frozen=True)
class CellCost:
    """Durations (seconds) of the runs of one cell.

    Earlier versions wrote the number of runs and the mean of ln(seconds) instead. `believed` is True if most of the runs were
    `ok`, because runs that fail early do not predict the duration of other cells' runs.
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

    Args:
        lease_id: id of the use.
        shape: hardware of the lease.
        runs: number of runs.
        compose_s: time from the request until the lease is ready.
        start_s: time from the start of the driver until the first run.
        between_s: mean time between two runs.
        end_s: time from the last run until everything is released.
        queue_s: time from the ready lease until the start of the driver.
        off: actual over expected duration of the whole use.
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
class CampaignCosts:
    """Durations of the runs and leases of one campaign on one system."""

    campaign: str
    system: str
    cells: tuple[CellCost, ...] = ()
    leases: tuple[LeaseCost, ...] = ()
    spread: Annotated[tuple[EarlierSpread, ...], BeforeValidator(parse_spreads)] = ()
    """Spread between compositions, by workload."""
    fabric: str = ""
    """Kind of the system's fabric."""
    schema_version: Literal["costs/1"] = "costs/1"

    def to_document(self) -> dict[str, Any]:
        """Return the costs as a JSON-serialisable dict, which `parse_costs` reads."""
        document: dict[str, Any] = _COSTS.dump_python(self, mode="json", exclude_defaults=True)
        return {**document, "schema_version": self.schema_version}


_COSTS = TypeAdapter(CampaignCosts)


@dataclass(frozen=True)
class RunSpan:
    """Start and end (Unix seconds) of one run. `use` is the lease use of the run, or '' if it follows from the time."""

    cell_id: str
    started: float
    ended: float
    ok: bool
    use: str = ""

    @property
    def seconds(self) -> float:
        return round(max(0.001, self.ended - self.started), 3)


def parse_costs(document: Any) -> list[CampaignCosts]:
    """Parse the costs of a campaign, one per system. Damaged entries are left out, because they only improve forecasts."""
    costs = []
    for entry in document.get("systems", [document]) if isinstance(document, dict) else []:
        try:
            costs.append(_COSTS.validate_python(entry))
        except ValidationError:
            continue
    return costs


def dump_costs(costs: Sequence[CampaignCosts]) -> dict[str, Any]:
    """Return the costs of a campaign on its systems as a JSON-serialisable dict, which `parse_costs` reads."""
    return (
        costs[0].to_document()
        if len(costs) == 1
        else {"systems": [system_costs.to_document() for system_costs in costs]}
    )


def measure_costs(
    header: CampaignCosts,
    cells: Mapping[str, tuple[str, Configuration]],
    spans: Iterable[RunSpan],
    leases: Sequence[Mapping[str, Any]],
    ratios: Mapping[str, float] | None = None,
) -> CampaignCosts:
    """Compute the costs of some cells' runs and of the uses of leases.

    Args:
        header: campaign and system, without costs.
        cells: workload and configuration of each cell, by its id.
        spans: start and end of each run.
        leases: documents of the lease uses.
        ratios: actual over expected duration of the uses that had a forecast.
    """
    by_cell: defaultdict[str, list[RunSpan]] = defaultdict(list)
    by_use: defaultdict[str, list[RunSpan]] = defaultdict(list)
    for span in spans:
        by_cell[span.cell_id].append(span)
        by_use[
            span.use
            or next((str(use_document["lease_id"]) for use_document in leases if _is_within(use_document, span)), "")
        ].append(span)
    cell_costs = [
        CellCost(
            name, configuration.shape(), workload, len(runs), 2 * sum(span.ok for span in runs) > len(runs),
            tuple(span.seconds for span in runs),
        )
        for name, (workload, configuration) in sorted(cells.items())
        if (runs := by_cell[name])
    ]  # fmt: skip
    uses = (_measure_lease_cost(lease, by_use[str(lease["lease_id"])], ratios or {}) for lease in leases)
    return replace(header, cells=tuple(cell_costs), leases=tuple(use for use in uses if use is not None))


def _measure_lease_cost(
    document: Mapping[str, Any], spans: Iterable[RunSpan], ratios: Mapping[str, float]
) -> LeaseCost | None:
    """Return the cost of one use of a lease, or None if it never became ready or has no runs."""
    requested_s, ready_s, released_s, driver_began_s = (
        _read_number(document, name) for name in ("requested_s", "ready_s", "released_s", "driver_began_s")
    )
    sorted_spans = sorted(spans, key=lambda span: span.started)
    shape = document.get("requested")
    if ready_s is None or not sorted_spans or not isinstance(shape, Mapping):
        return None
    first, last = sorted_spans[0].started, max(span.ended for span in sorted_spans)
    queue_s = None if driver_began_s is None else max(0.0, min(driver_began_s, first) - ready_s)
    gaps = [after.started - before.ended for before, after in itertools.pairwise(sorted_spans)]
    return LeaseCost(
        lease_id=str(document["lease_id"]),
        shape={name: value for name, value in shape.items() if name != "name"},
        runs=len(sorted_spans),
        compose_s=None if requested_s is None else max(0.0, ready_s - requested_s),
        start_s=max(0.0, first - ready_s - (queue_s or 0.0)),
        between_s=max(0.0, fmean(gaps)) if gaps else None,
        end_s=None if released_s is None else max(0.0, released_s - last),
        queue_s=queue_s,
        off=ratios.get(str(document["lease_id"])),
    )


def _read_number(document: Mapping[str, Any], name: str) -> float | None:
    value = document.get(name)
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _is_within(lease: Mapping[str, Any], span: RunSpan) -> bool:
    ready_s, released_s = _read_number(lease, "ready_s"), _read_number(lease, "released_s")
    return ready_s is not None and ready_s <= span.started and (released_s is None or span.ended <= released_s)


def read_costs(results: Results, learn_from: Sequence[Path] = (), campaign: Path | None = None) -> list[CampaignCosts]:
    """Read the costs of this campaign, of all others below the same root, and of the places in `learn_from`.

    Damaged files are left out. Raises ConfigError if a place in `learn_from` has no runs.

    Args:
        results: results directory of the campaign.
        learn_from: archives and results directories.
        campaign: path of the campaign file; costs in NAME.costs.json next to NAME.yaml are used for cells without runs here.
    """
    costs_found = [*_read_campaign_costs(results.directory, manifests=True)]
    for directory in sorted(results.root.glob("[!.]*/")):
        if directory != results.directory:
            costs_found += _read_campaign_costs(directory)
    for place in learn_from:
        places = [place, *sorted(place.glob("*/"))]  # one campaign's results, or a directory of several
        place_costs = (
            _read_archived_costs(place)
            if place.is_file()
            else [c for directory_below in places for c in _read_campaign_costs(directory_below)]
        )
        if not any(costs.cells for costs in place_costs):
            raise ConfigError(
                f"--learn-from {place}: there are no runs to learn from; name an archive (.zip), the results directory of a "
                "campaign, or a directory with several of them"
            )
        costs_found += place_costs
    if campaign is not None:
        costs_found += parse_costs(read_json(campaign.with_suffix(f".{COSTS}")))
    return merge_costs(costs_found)


def merge_costs(costs_found: Sequence[CampaignCosts]) -> list[CampaignCosts]:
    """Merge costs so that each cell counts once, from the entry with the most runs, and each lease use once."""
    max_runs: dict[str, int] = {}
    for cell in (cell for costs in costs_found for cell in costs.cells):
        max_runs[cell.cell_id] = max(max_runs.get(cell.cell_id, 0), cell.runs)
    uses: set[tuple[str, str]] = set()
    merged = []
    for costs in costs_found:
        cells = tuple(cell for cell in costs.cells if max_runs.get(cell.cell_id) == cell.runs)
        for cell in cells:
            max_runs.pop(cell.cell_id, None)
        leases = tuple(lease for lease in costs.leases if (costs.campaign, lease.lease_id) not in uses)
        uses.update((costs.campaign, lease.lease_id) for lease in leases)
        if cells or leases or costs.spread:
            merged.append(replace(costs, cells=cells, leases=leases))
    return merged


def collect_earlier_spread(
    past_costs: Iterable[CampaignCosts], campaign: str, systems: Collection[str]
) -> tuple[EarlierSpread, ...]:
    """Return the spread between compositions in other campaigns on these systems."""
    relevant_costs = (costs for costs in past_costs if costs.campaign != campaign and costs.system in systems)
    # Duplicates are dropped, because a copy of a campaign may be among the places to learn from.
    return tuple(dict.fromkeys(spread for costs in relevant_costs for spread in costs.spread))


def _read_campaign_costs(directory: Path, *, manifests: bool = False) -> Iterator[CampaignCosts]:
    """Yield the costs of one campaign's results.

    Args:
        directory: results directory of the campaign.
        manifests: True to read manifests even if there are tables, which may not include them yet.
    """
    table_costs = parse_costs(read_json(Results.from_directory(directory).tables / COSTS))
    yield from table_costs
    if table_costs and not manifests:
        return
    for manifest in _read_manifests(directory):
        ratios = compute_forecast_ratios([manifest])
        for costs in parse_costs(manifest.get("costs")):
            leases = tuple(replace(lease, off=ratios.get(lease.lease_id)) for lease in costs.leases)
            yield replace(costs, leases=leases)


def _read_archived_costs(path: Path) -> list[CampaignCosts]:
    try:
        with zipfile.ZipFile(path) as archive:
            tables = [name for name in archive.namelist() if name.endswith(f"tables/{COSTS}")]
            return parse_costs(parse_json(archive.read(tables[0]))) if tables else []
    except (OSError, ValueError, zipfile.BadZipFile, KeyError, RuntimeError) as error:
        raise ConfigError(f"--learn-from {path}: this archive cannot be read ({error}); copy it again") from error


def _read_manifests(directory: Path) -> Iterator[dict[str, Any]]:
    yield from map(read_lease_document, Results.from_directory(directory).list_manifests())


def read_lease_document(path: Path) -> dict[str, Any]:
    """Read a manifest or a lease document. Returns an empty dict for any other file."""
    document = read_json(path)
    return document if isinstance(document.get("lease"), str) else {}


def read_forecast_ratios(directory: Path) -> dict[str, float]:
    """Return the ratio of actual to expected duration of each forecast lease in a results directory, by lease use."""
    return compute_forecast_ratios(_read_manifests(directory))


def compute_forecast_ratios(manifests: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Compute the ratio of actual to expected duration of leases measured without interruption, by lease use."""
    ratios = {}
    for manifest in manifests:
        forecast, actual, uses = (manifest.get(name) for name in ("forecast", "actual", "uses"))
        if not (isinstance(forecast, dict) and isinstance(actual, dict) and isinstance(uses, list) and len(uses) == 1):
            continue
        expected_s, wall_s = _read_number(forecast, "expected_s"), _read_number(actual, "wall_s")
        in_one_go = actual.get("runs") == forecast.get("runs") and not forecast.get("resumed")
        # Forecasts with parts come from earlier versions and are not medians.
        if in_one_go and expected_s and wall_s and "parts" not in forecast:
            ratios[str(uses[0])] = wall_s / expected_s
    return ratios


def begin_forecast(results: Results, lease: str, forecast: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Store the forecast of a lease that is about to be measured, and return it.

    The first forecast counts if the measurement of the lease was interrupted before.
    """
    path = results.work_directory(lease) / _FORECAST
    stored_forecast = read_json(path)
    if isinstance(stored_forecast.get("runs"), int):
        return {**stored_forecast, "resumed": True}
    if forecast is None:
        return None
    write_json(path, forecast)
    return {**forecast, "resumed": False}


def end_forecast(results: Results, lease: str) -> None:
    """Remove the stored forecast of a lease, because its manifest contains the forecast now."""
    (results.work_directory(lease) / _FORECAST).unlink(missing_ok=True)


def read_measured_forecasts(directory: Path) -> list[dict[str, Any]]:
    """Return the forecast and the actual duration of every lease that was measured with a forecast."""
    rows = []
    for document in _read_manifests(directory):
        forecast, actual = document.get("forecast"), document.get("actual")
        if not isinstance(forecast, dict) or not isinstance(actual, dict) or actual.get("wall_s") is None:
            continue
        with reject_damaged_document(
            directory, "a manifest of its leases is damaged; delete manifests/, which will be created again"
        ):
            row = {name: forecast[name] for name in ("expected_s", "low_s", "high_s", "basis", "resumed")}
            row |= {"lease": document["lease"], "configuration": str(document.get("configuration", ""))}
            row |= {"runs_expected": forecast["runs"], "runs": actual["runs"], "uses": actual["uses"]}
            rows.append({**row, "actual_s": actual["wall_s"]})
    return rows
