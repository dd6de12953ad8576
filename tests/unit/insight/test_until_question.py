"""Questions that a campaign is measured for: what is understood, and what a person is told of what is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from campaign.config.resolve import Campaign
from campaign.errors import ConfigError
from campaign.insight.until import decide, parse_question, priced_matrix
from campaign.plan.cost.assumption import parse_assumption
from campaign.plan.cost.forecast import Forecaster
from campaign.plan.matrix import expand
from campaign.plan.plan import build_plan
from tests.campaign_files import load


@pytest.fixture
def campaign(tmp_path: Path) -> Campaign:
    return load(tmp_path, {"campaign.protocol.repetitions": 3, "campaign.protocol.compositions": 3})


def test_the_three_forms_are_understood(campaign: Campaign) -> None:
    first, second = (each.name for each in campaign.configurations[:2])
    best = parse_question("the best configuration is known within 5 %", campaign)
    assert (best.form, best.within_pct) == ("best", 5.0)
    pair = parse_question(f"{first} against {second} is decided within 3% for batch == 2", campaign)
    assert (pair.form, pair.within_pct, pair.first, pair.second) == ("comparison", 3.0, first, second)
    about = [cell for cell in expand(campaign).cells if pair.about(cell)]
    assert {(cell.configuration.name, cell.batch) for cell in about} == {(first, 2), (second, 2)}
    frontier = parse_question("the frontier of throughput against device-hours is known within 2.5 percent", campaign)
    assert (frontier.form, frontier.within_pct) == ("frontier", 2.5)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("the fastest one", "the best configuration is known within 5 %"),
        ("the best configuration is known", "within 5 %"),
        ("the best configuration is known within 0 %", "above 0 and below 100"),
        ("FIRST against FIRST is decided within 3 %", "compared with itself"),
        ("FIRSTT against FIRST is decided within 3 %", "did you mean 'FIRST'"),
        ("the best configuration is known within 5 % for bach == 2", "did you mean 'batch'"),
        ("the best configuration is known within 5 % for batch == 64", "has no cell"),
    ],
)
def test_what_cannot_be_asked_is_answered_with_what_can(campaign: Campaign, text: str, message: str) -> None:
    first = campaign.configurations[0].name
    with pytest.raises(ConfigError) as refused:
        parse_question(text.replace("FIRST", first), campaign)
    assert message.replace("FIRST", first) in str(refused.value)


def test_a_priced_matrix_is_whole_and_has_its_device_hours(campaign: Campaign) -> None:
    forecaster = Forecaster(assumed=parse_assumption("36 s a run, 72 s to compose"))
    matrix = expand(campaign)
    priced = priced_matrix(build_plan(campaign, matrix, None, forecaster), forecaster)
    assert {(cell.id, lease.composition) for lease in priced.leases for cell in lease.cells} == {
        (cell.id, composition) for cell in matrix.cells for composition in (1, 2, 3)
    }
    assert all(
        each == pytest.approx(0.01 * lease.configuration.devices) for lease in priced.leases for each in lease.cells_h
    )
    runs_h = sum(0.03 * cell.configuration.devices for cell in matrix.cells)
    assert priced.device_hours is not None
    assert priced.device_hours > runs_h
    unknown = priced_matrix(build_plan(campaign, matrix), Forecaster())
    assert unknown.device_hours is None


def test_nothing_measured_is_followed_by_a_first_round(campaign: Campaign) -> None:
    question = parse_question("the best configuration is known within 5 % for batch == 2", campaign)
    forecaster = Forecaster(assumed=parse_assumption("36 s a run, 72 s to compose"))
    matrix = priced_matrix(build_plan(campaign, expand(campaign), None, forecaster), forecaster)
    first = decide(question, matrix, None)
    assert not first.stop
    assert first.next
    assert first.reasons
    assert first.device_hours == 0
    batches = {cell.id: cell.batch for lease in matrix.leases for cell in lease.cells}
    assert {batches[cell] for lease in first.next for cell in lease.cells} == {2}
    assert first == decide(question, matrix, None)
