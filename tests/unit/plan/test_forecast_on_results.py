"""Forecasts of what three campaigns measured on two cores, each time without what is forecast."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from statistics import mean, median

from campaign.documents.cell import Cell, Configuration, Settings
from campaign.paths import ROOT
from campaign.plan.cost.costs import CellCost, Costs, LeaseCost, Shape, from_documents
from campaign.plan.cost.estimates import PARTS, Expected, Part, Work
from tests.planted_costs import knowing

DATA = Path(__file__).parents[2] / "data" / "costs"
PLACES = (DATA / "demo-1.json", DATA / "demo-2.json", ROOT / "config" / "campaign.costs.json")


def campaigns() -> Iterator[Costs]:
    for path in PLACES:
        (costs,) = from_documents(json.loads(path.read_bytes()))
        yield costs


FLOPS = {cell.cell_id: cell.flops for costs in campaigns() for cell in costs.cells}


def planned(cells: list[CellCost]) -> Work:
    shape = Configuration("", **cells[0].shape)  # type: ignore[arg-type]
    runs = [
        (Cell(c.cell_id, shape, c.workload, c.batch, c.precision, c.options, Settings(0, measured_steps=c.steps)), 1)
        for c in cells
    ]
    return Work("l", shape, runs, shape.fabric_devices > 0)


def forecast(known: Costs, work: Work) -> Expected:
    return knowing(known, lambda cell: FLOPS[cell.id]).forecast([work]).leases[0]


def test_a_cell_is_forecast_from_the_others() -> None:
    inside, errors = [], []
    for costs in campaigns():
        for cell in costs.cells:
            others = tuple(each for each in costs.cells if each.cell_id != cell.cell_id)
            runs, actual = (
                forecast(replace(costs, cells=others), planned([cell])).parts["runs"],
                math.exp(cell.mean_log_s),
            )
            assert runs.expected_s
            assert runs.low_s
            assert runs.high_s
            inside.append(runs.low_s <= actual <= runs.high_s)
            errors.append(abs(actual / runs.expected_s - 1))
    # Of 87 cells, 95 % are 83; 79 or fewer would be one of a hundred trials.
    assert len(inside) == 87
    assert sum(inside) >= 80
    assert median(errors) < 0.15


def parts(lease: LeaseCost, runs_s: float) -> dict[Part, float]:
    between_s = max(0.01, lease.between_s or 0.0) * (lease.runs - 1)
    found = (lease.compose_s, lease.queue_s, lease.start_s, runs_s, between_s, lease.end_s)
    return {part: max(0.01, seconds) for part, seconds in zip(PARTS, found, strict=True) if seconds is not None}


def name_of(shape: Shape) -> str:
    return json.dumps({name: value for name, value in shape.items() if value != ""}, sort_keys=True)


def test_every_part_of_a_configuration_is_forecast_from_the_other_configurations() -> None:
    inside: dict[str, list[bool]] = defaultdict(list)
    for costs in campaigns():
        by_shape: dict[str, list[CellCost]] = defaultdict(list)
        for cell in costs.cells:
            by_shape[name_of(cell.shape)].append(cell)
        for shape, cells in by_shape.items():
            ids = {cell.cell_id for cell in cells}
            others = replace(
                costs,
                cells=tuple(cell for cell in costs.cells if cell.cell_id not in ids),
                leases=tuple(lease for lease in costs.leases if name_of(lease.shape) != shape),
            )
            expected = forecast(others, planned(cells))
            runs_s = sum(math.exp(cell.mean_log_s) for cell in cells)
            for lease in (each for each in costs.leases if name_of(each.shape) == shape):
                for part, actual in parts(lease, runs_s).items():
                    estimate = expected.parts[part]
                    assert estimate.low_s is not None
                    assert estimate.high_s is not None
                    inside[part].append(estimate.low_s <= actual <= estimate.high_s)
    assert {part: len(each) for part, each in inside.items()} == {**dict.fromkeys(PARTS, 80), "queue": 20}
    assert mean(chain.from_iterable(inside.values())) >= 0.91
    # Time between runs is mostly that of a change of program, in some leases and not in others.
    assert min(map(mean, inside.values())) >= 0.85
