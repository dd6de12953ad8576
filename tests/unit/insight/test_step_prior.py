"""What the model of a step expects of the cells of a question: where it knows them, how many it simulates, and that it is used."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from campaign.config.resolve import Campaign, load_campaign
from campaign.insight import question_rounds
from campaign.insight.prediction import predict
from campaign.insight.until import expected_rates, step_prior
from campaign.plan.matrix import expand
from tests.campaign_files import load
from tests.measured_rounds import asked, two_configurations

FALCON = Path(__file__).parents[3] / "config" / "campaigns" / "falcon-predicted.yaml"
AXES = {"workload": ["nano", "steps"], "batch": [1, 2, 4], "precision": ["fp32", "bf16"]}


def expected(campaign: Campaign) -> Mapping[str, float]:
    return expected_rates(campaign, expand(campaign).cells)


def test_cells_are_expected_to_be_as_fast_as_they_are_predicted() -> None:
    campaign = load_campaign(FALCON)
    said = {each.cell.id: each.throughput_per_s for each in predict(campaign, replayed=True, count=200).cells}
    found = expected(campaign)
    assert found.keys() == said.keys()
    assert all(found[name] == pytest.approx(np.log(rates[0]), abs=0.05) for name, rates in said.items() if rates)


def test_of_many_cells_some_are_simulated_and_others_are_expected_like_them(monkeypatch: pytest.MonkeyPatch) -> None:
    campaign = load_campaign(FALCON)
    every, simulated = expected(campaign), []
    monkeypatch.setattr(step_prior, "_MOST_SIMULATED", 13)
    simulate = step_prior.simulate
    monkeypatch.setattr(step_prior, "simulate", lambda *of: simulated.append(of) or simulate(*of))
    some = expected(campaign)
    groups = {(cell.workload, cell.configuration.name) for cell in expand(campaign).cells}
    assert 13 <= len(simulated) < 13 + len(groups)
    assert some.keys() == every.keys()
    assert {round(each, 9) for each in some.values()} < {round(each, 9) for each in every.values()}


@pytest.mark.parametrize(
    "changes",
    [
        {"campaign.metric": {"name": "device_utilisation_mean_pct", "better": "higher"}},
        {"campaign.axes": {**AXES, "workload": ["steps"]}},
    ],
    ids=["another metric", "a program of unknown inside"],
)
def test_nothing_is_expected_where_the_model_does_not_know(tmp_path: Path, changes: dict[str, Any]) -> None:
    assert not expected(load(tmp_path, {"campaign.axes": AXES, **changes}))


def test_a_question_is_chosen_for_with_what_the_model_expects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = []

    def chooser(*of: Any) -> Any:
        given.append(of[-1])
        return two_configurations(*of)

    monkeypatch.setattr(question_rounds, "decide", chooser)
    request = asked(tmp_path, {"campaign.axes": AXES})
    question_rounds.next_rounds(request)
    campaign = request.load()
    assert given == [expected(campaign)]
    assert set(given[0]) == {cell.id for cell in expand(campaign).cells if cell.workload == "nano"}
