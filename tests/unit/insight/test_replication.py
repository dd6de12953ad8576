"""What a campaign's own records say of its spread, and what a choice of compositions and runs costs and finds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from campaign.errors import ConfigError
from campaign.insight.replication import ASSUMED_PCT, advise, measured_spread, parse_spread
from campaign.plan.dag import Request, read_plan
from tests.campaign_files import write_files


def planted(composition_pct: float, run_pct: float, compositions: int, runs: int, cells: int = 60) -> pd.DataFrame:
    draw = np.random.default_rng(1)
    cell, lease, _ = np.indices((cells, compositions, runs)).reshape(3, -1)
    deviation = draw.normal(0, composition_pct / 100, (cells, compositions))[cell, lease]
    rate = 100 * np.exp(deviation + draw.normal(0, run_pct / 100, cell.size))
    labels = pd.Series(cell).astype(str)
    return pd.DataFrame({
        "cell_id": labels, "lease_id": labels + "." + pd.Series(lease).astype(str), "status": "ok", "host_names": "a",
        "throughput_per_s": rate, "value": rate, "step_error_pct": 0.0, "measured_steps": 20,
    })  # fmt: skip


def test_the_spread_is_that_of_the_runs() -> None:
    found = measured_spread([("earlier", planted(2.0, 1.0, 4, 3))])
    assert found is not None
    assert found.composition_pct == pytest.approx(2.0, rel=0.25)
    assert found.run_pct == pytest.approx(1.0, rel=0.2)
    assert "earlier" in found.source


def test_where_everything_was_composed_once_the_spread_of_compositions_is_assumed_and_that_is_said() -> None:
    found = measured_spread([("single", planted(2.0, 1.0, 1, 4))])
    assert found is not None
    assert found.composition_pct == ASSUMED_PCT["composition"]
    assert "assumed" in found.source
    assert measured_spread([("one run", planted(2.0, 1.0, 1, 1))]) is None


def test_a_spread_is_read_from_words_and_an_error_says_how_to_write_it() -> None:
    found = parse_spread("composition 2 %, run 0.5")
    assert (found.composition_pct, found.run_pct, found.step_pct) == (2.0, 0.5, ASSUMED_PCT["step"])
    with pytest.raises(
        ConfigError, match="'host 3' is no standard deviation of composition, run or step; write it like"
    ):
        parse_spread("composition 2 %, host 3")


def test_more_is_found_for_more_and_the_campaign_as_it_is_stands_beside(tmp_path: Path) -> None:
    asked = Request(write_files(tmp_path, {"campaign.protocol.compositions": 1}), tmp_path / "results")
    plan = read_plan(asked)
    coarse, fine = (advise(plan, asked, pct, "composition 1 %, run 1 %") for pct in (5.0, 2.0))
    assert coarse.now.detectable_pct == np.inf
    assert coarse.cheapest is not None
    assert fine.cheapest is not None
    assert coarse.cheapest.device_hours < fine.cheapest.device_hours
    assert coarse.cheapest.detectable_pct <= 5.0
    assert advise(plan, asked, 0.01, "composition 9 %").cheapest is None
    assert [each.compositions for each in coarse.usual] == [1, 2, 3, 5]
    found = [each.detectable_pct for each in coarse.usual]
    assert found == sorted(found, reverse=True)


def test_runs_in_each_composition_are_those_of_the_campaign(tmp_path: Path) -> None:
    asked = Request(
        write_files(tmp_path, {"campaign.protocol.compositions": 3, "campaign.protocol.repetitions": 6}), tmp_path
    )
    now = advise(read_plan(asked), asked, 5.0).now
    assert (now.compositions, now.runs) == (3, 2)
