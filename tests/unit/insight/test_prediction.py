"""Campaigns that are simulated: what may come out of each cell, the tables, and what one number teaches about the others."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from campaign.insight.prediction import PredictedCampaign, conditioned, predict
from campaign.insight.recommend.advise import advise
from campaign.insight.recommend.objectives import asked
from campaign.statistics import comparisons
from campaign.statistics.intervals import DRAWN
from campaign.tables.io import Tables, read, write
from tests.campaign_files import load

LAYERS = [
    {"tensors": [1_000_000], "forward": 1, "backward": 2, "repeat": 8, "activations": 1e5},
]
REPLAY: dict[str, Any] = {
    "name": "trace",
    "kind": "replay",
    "precisions": ["fp32"],
    "layers": LAYERS,
    "compute": [{"device": "cpu-rank", "precision": "fp32", "batch": 4, "seconds": 0.05, "source": "a table"}],
}
CHANGES: dict[str, Any] = {
    "campaign.configurations": [
        {"devices_per_host": [1, 2], "attach": ["local", "fabric"]},
        {"hosts": 2, "devices_per_host": 2},
    ],
    "campaign.axes": {"workload": ["trace"], "batch": [4, 64], "precision": ["fp32"]},
    "workloads.trace": REPLAY,
    "system.links": {"local": {"gb_per_s": 10}, "fabric": {"gb_per_s": 2}, "network": {"gb_per_s": 1}},
    "system.devices.cpu-rank": {"runs_on": "cpu", "memory_gib": 4},
}


def predicted(*changes: tuple[str, Any]) -> PredictedCampaign:
    return _predicted(json.dumps(dict(changes)))


@cache
def _predicted(changes: str) -> PredictedCampaign:
    return predict(load(Path(mkdtemp()), {**CHANGES, **json.loads(changes)}), count=400)


def rates(of: PredictedCampaign) -> dict[tuple[str, int], tuple[float, float, float]]:
    return {
        (each.cell.configuration.name, each.cell.batch): each.throughput_per_s
        for each in of.cells
        if each.throughput_per_s
    }


def test_every_cell_has_a_median_and_an_interval_around_it() -> None:
    found = rates(predicted())
    assert len(found) == 10
    assert all(low < median < high for median, low, high in found.values())


def test_one_device_takes_what_its_file_says() -> None:
    median, low, high = rates(predicted())["1x1-local", 4]
    assert median == pytest.approx(4 / 0.05, rel=0.01)
    assert high / low < 1.2


def test_slower_links_cost_more() -> None:
    found = rates(predicted())
    assert found["1x2-local", 4][0] > found["1x2-fabric", 4][0] > found["2x2-local", 4][0] / 2


def test_a_batch_that_needs_more_memory_than_there_is_fails() -> None:
    of = predicted()
    fits = {(each.cell.configuration.name, each.cell.batch): each.fits for each in of.cells}
    assert (fits["1x1-local", 4], fits["1x1-local", 64]) == (1.0, 1.0)
    small = predicted(("system.devices.cpu-rank", {"runs_on": "cpu", "memory_gib": 0.9}))
    states = small.tables.cells.set_index(["configuration", "batch"])["state"]
    assert states["1x1-local", 64] == "failed"
    assert small.tables.cells["failures"].str.contains("oom_device").any()
    reasons = small.tables.runs["failure_reason"]
    assert reasons[reasons != ""].str.contains("predicted to need").all()


def test_a_program_of_unknown_inside_has_no_prediction() -> None:
    of = predicted(("campaign.axes", {"workload": ["trace", "program"], "batch": [4], "precision": ["fp32"]}))
    unknown = [each for each in of.cells if each.cell.workload == "program"]
    assert unknown
    assert all(each.throughput_per_s is None and each.fits is None for each in unknown)
    cells = of.tables.cells[of.tables.cells["workload"] == "program"]
    assert set(cells["state"]) == {"missing"}
    assert cells["missing_reasons"].str.contains("the model does not know").all()


def test_a_system_that_knows_better_is_asked(tmp_path: Path) -> None:
    slow = predicted(("system.parameters", {"rate[network]": {"low": 1e8, "high": 1e8, "source": "measured"}}))
    assert rates(slow)["2x2-local", 4][0] < 0.8 * rates(predicted())["2x2-local", 4][0]
    assert rates(slow)["1x2-local", 4][0] == pytest.approx(rates(predicted())["1x2-local", 4][0])


def test_all_is_marked_as_predicted() -> None:
    tables = predicted().tables
    assert tables.cells["predicted"].all()
    assert tables.runs["predicted"].all()
    assert "simulated" in tables.context["prediction"]
    assert set(tables.cells["interval_method"]) == {DRAWN}


def test_tables_are_read_as_they_were_written(tmp_path: Path) -> None:
    tables = predicted().tables
    write(tables, tmp_path)
    pd.testing.assert_frame_equal(read(tmp_path).draws, tables.draws)


def ratio(tables: Tables, one: str, other: str) -> tuple[float, float, float]:
    cells = tables.cells[tables.cells["batch"] == 4].set_index("configuration")["cell_id"]
    found = comparisons.ratios(cells[[one]], cells[[other]], tables.design)
    assert list(found.tested) == [True]
    assert list(found.method) == [DRAWN]
    value, low, high = (float(bound[0]) for bound in found.of.bounds())
    return value, low, high


def test_a_ratio_is_known_better_than_its_parts() -> None:
    wide = predicted(("system.parameters", {"compute[cpu-rank fp32]": {"low": 0.5, "high": 2, "source": "unknown"}}))
    _, low, high = rates(wide)["1x2-local", 4]
    assert high / low > 2
    of, least, most = ratio(wide.tables, "1x2-local", "1x1-local")
    assert 1 < least < of < most < 2.3


def test_the_same_seed_gives_the_same_prediction() -> None:
    campaign = load(Path(mkdtemp()), CHANGES)
    one, again, other = (predict(campaign, count=50, seed=seed) for seed in (0, 0, 1))
    assert rates(one) == rates(again)
    assert rates(one) != rates(other)


def test_what_was_learned_of_one_cell_moves_others() -> None:
    of = predicted(("system.parameters", {"rate[network]": {"low": 2e8, "high": 2e9, "source": "unknown"}}))
    cells = of.tables.cells[of.tables.cells["batch"] == 4].set_index("configuration")["cell_id"]
    logs = np.log(of.tables.draws.set_index(["cell_id", "draw"])["throughput_per_s"].unstack())
    apart = (logs.loc[cells["2x2-local"]] - logs.loc[cells["1x2-local"]]).to_numpy()
    low = float(np.exp(np.quantile(apart, 0.1)))
    learned = conditioned(of.tables, apart, low * 0.999, low * 1.001)
    before, *_ = ratio(of.tables, "2x2-local", "1x2-local")
    after, *_ = ratio(learned, "2x2-local", "1x2-local")
    assert after < before
    assert abs(np.log(after / low)) < abs(np.log(before / low)) / 2
    assert learned.draws["draw"].nunique() == of.tables.draws["draw"].nunique()


@given(st.floats(0.2, 5.0), st.integers(0, 1000))
@settings(max_examples=20)
def test_nothing_is_learned_from_what_all_draws_fit(width: float, seed: int) -> None:
    of = predicted()
    logs = np.zeros(of.tables.draws["draw"].nunique())
    learned = conditioned(of.tables, logs, 1 / (1 + width), 1 + width, seed)
    order = ["cell_id", "draw"]
    once = of.tables.draws.sort_values(order, kind="stable").reset_index(drop=True)
    pd.testing.assert_frame_equal(learned.draws.sort_values(order, kind="stable").reset_index(drop=True), once)


def test_draws_of_cells_go_together() -> None:
    """Taking a cell's draws in another order makes its ratios as uncertain as if nothing were in common."""
    of = predicted(("system.parameters", {"compute[cpu-rank fp32]": {"low": 0.5, "high": 2, "source": "unknown"}}))
    cells = of.tables.cells[of.tables.cells["batch"] == 4].set_index("configuration")["cell_id"]
    draws = of.tables.draws.copy()
    here = draws["cell_id"] == cells["1x2-local"]
    shuffled = np.random.default_rng(0).permutation(draws.loc[here, "draw"].to_numpy())
    draws.loc[here, "draw"] = shuffled
    _, low, high = ratio(of.tables, "1x2-local", "1x1-local")
    _, least, most = ratio(replace(of.tables, draws=draws), "1x2-local", "1x1-local")
    assert most / least > 2 * high / low


def test_a_recommendation_tells_predicted_configurations_apart() -> None:
    tables = predicted().tables
    document = advise(tables, asked(["throughput"], ["attach == 'local'"], [], [], [])).document
    assert {answer.choice.how for answer in document.answers if answer.choice} == {"predicted"}
    assert "told apart" not in " ".join(sentence for answer in document.answers for sentence in answer.sentences)
