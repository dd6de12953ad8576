"""Answers asked for instead of matrices, with planted truth: what they cost, that they hold, and what is said without one."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from campaign.insight.until import Decision, Offer, Question, decide
from campaign.insight.until.requirements import look_share
from campaign.insight.until.rounds import MOST
from tests.planted_questions import FORMS, Planted, asked, count, followed, plant, told

SMALL = plant(5, (50, 60))
BEST = Question("the best configuration is known within 5 %", "best", 5.0)


@pytest.mark.parametrize("form", FORMS)
def test_a_question_takes_part_of_the_matrix_and_says_nothing_false(form: str) -> None:
    found = count(form, [1], cells=(50, 80))
    assert found.false == 0
    assert found.same == 1
    assert found.share < 0.5


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_of_ten_campaigns_at_most_one_says_anything_false(form: str) -> None:
    """`python -m tests.benchmarks until` asks a hundred, of 50 to 500 cells."""
    found = count(form, range(300, 310), cells=(50, 120))
    assert found.false <= 1
    assert found.reached >= 8
    assert found.share <= 0.4


def test_the_same_tables_give_the_same_round() -> None:
    first = decide(BEST, SMALL.offer, None, 1, 1)
    blocks = {(cell, lease.composition): 1 for lease in first.next for cell in lease.cells}
    second = decide(BEST, SMALL.offer, SMALL.tables(blocks), 1, 2)
    assert second == decide(BEST, SMALL.offer, SMALL.tables(blocks), 1, 2)
    assert second.next
    assert not {(cell, lease.composition) for lease in second.next for cell in lease.cells} & blocks.keys()
    assert len(second.reasons) == len(second.next)


def test_a_clear_winner_is_named_with_what_it_rests_on() -> None:
    planted = plant(21, (50, 60), composition_sd=0.003, run_sd=0.003)
    decision, rounds = followed(planted, BEST)
    assert decision.stop
    assert decision.decided
    assert decision.statement.startswith("Decided: the best configuration is known within 5 %")
    assert "95\u202f% interval" in decision.statement
    assert decision.device_hours is not None
    assert decision.whole_device_hours is not None
    assert decision.device_hours < decision.whole_device_hours
    assert rounds > 1


def test_where_all_tie_nothing_is_called_best_unless_it_is_good_enough() -> None:
    planted = plant(5, (50, 60), tie=True, compositions=3, composition_sd=0.03, run_sd=0.03)
    strict = replace(BEST, within_pct=0.5)
    decision, _ = followed(planted, strict)
    assert decision.stop
    assert not decision.decided
    assert decision.statement.startswith("Not decided")
    assert re.search(r"with \d+ compositions of each \(now \d and \d\) it would be, expected", decision.statement)
    assert decision.device_hours is not None
    assert decision.whole_device_hours is not None
    assert decision.device_hours <= MOST * decision.whole_device_hours
    assert "at most 40\u202f% of the matrix is taken" in decision.statement


def test_two_configurations_are_told_apart_by_the_spread_of_cheap_others() -> None:
    planted = plant(34)
    found = told(planted, asked(planted, "comparison", 34))
    assert found.decided_by_all
    assert found.decided
    assert found.share <= MOST


def _all_failing(planted: Planted) -> Planted:
    return replace(planted, runs=planted.runs.assign(status="oom_device", value=np.nan))


def test_a_campaign_that_fails_everywhere_says_so() -> None:
    decision, _ = followed(_all_failing(SMALL), BEST)
    assert decision.stop
    assert not decision.decided
    assert "failed or runs out of memory" in decision.statement


def test_the_last_one_of_those_that_fail_is_measured_before_it_is_the_best() -> None:
    cells = SMALL.cells
    but = {cell.id for cell in cells if cell.workload == cells[0].workload and cell.precision == cells[0].precision} - {
        cells[0].id
    }
    failing = replace(
        SMALL,
        runs=SMALL.runs.assign(
            status=SMALL.runs["status"].where(~SMALL.runs["cell_id"].isin(but), "crashed"),
            value=SMALL.runs["value"].where(~SMALL.runs["cell_id"].isin(but)),
        ),
    )
    blocks = {(cell, 1): 1 for cell in but}
    decision = decide(BEST, failing.offer, failing.tables(blocks), 1, 2)
    assert not decision.decided
    assert cells[0].id in {cell for lease in decision.next for cell in lease.cells}


def test_one_configuration_is_the_best_of_itself() -> None:
    first = SMALL.offer.leases[0].configuration
    cell = SMALL.offer.leases[0].cells[0]
    leases = tuple(
        replace(lease, cells=(cell,), cells_h=lease.cells_h[:1])
        for lease in SMALL.offer.leases
        if lease.configuration is first
    )
    decision = decide(BEST, Offer(leases), None, 1, 1)
    assert decision.stop
    assert decision.decided
    assert "nothing else competes" in decision.statement


def test_unknown_costs_are_no_numbers() -> None:
    unknown = tuple(
        replace(lease, once_h=float("nan"), cells_h=(float("nan"),) * len(lease.cells)) for lease in SMALL.offer.leases
    )
    decision, _ = followed(replace(SMALL, offer=Offer(unknown)), BEST)
    assert decision.stop
    assert decision.device_hours is None
    assert decision.whole_device_hours is None
    assert any("Durations are unknown" in each for each in decision.rests_on)


def test_compositions_that_differ_by_nothing_known_decide_nothing() -> None:
    planted = plant(5, (50, 60), compositions=1)
    decision, _ = followed(planted, replace(BEST, within_pct=1.0))
    assert decision.stop
    assert not decision.decided


def test_a_pair_asks_for_both_and_for_cheap_cells_beside_them() -> None:
    planted = plant(7, (50, 60))
    question = asked(planted, "comparison", 7)
    first: Decision = decide(question, planted.offer, None, 1, 1)
    assert {lease.configuration for lease in first.next} == {question.first, question.second}
    decision, _ = followed(planted, question)
    assert question.first in decision.statement
    assert question.second in decision.statement


def test_looks_share_the_error_of_a_pair() -> None:
    states = {(min(a, b), max(a, b)) for a in range(1, 6) for b in range(1, 6)}
    shares: dict[float, float] = {}
    for a, b in states:
        information = round(2 / (1 / a + 1 / b), 9)
        shares[information] = float(look_share(np.array([a]), np.array([b]), np.array([5]))[0])
    assert sum(shares.values()) == pytest.approx(1.0)
    assert min(shares.values()) > 0
