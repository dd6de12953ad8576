"""Answers asked for instead of matrices, with planted truth: what they cost, that they hold, and what is said without one."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import replace

import numpy as np
import pytest

from campaign.insight.until import Decision, PricedMatrix, Question, decide
from campaign.insight.until.cell_states import CellStates
from campaign.insight.until.decision import about
from campaign.insight.until.evidence import QuestionEvidence, spent
from campaign.insight.until.rounds import needed
from tests.planted_questions import (
    FORMS,
    KINDS,
    Planted,
    asked,
    asked_all,
    by_devices,
    expecting,
    followed,
    measured_until,
    surface,
    told,
)

SMALL = surface("smooth", 5, (6, 2, 2))
BEST = Question("the best configuration is known within 5 %", "best", 5.0)


@pytest.mark.parametrize("kind", KINDS)
def test_what_one_look_at_the_matrix_decides_is_decided_by_part_of_it(kind: str) -> None:
    """`python -m tests.benchmarks until` asks hundreds."""
    found = asked_all([surface(kind, seed, compositions=5) for seed in range(3)], "best")
    assert found.wrong == 0
    assert found.of_these == found.one_look
    assert found.share("compositions") < 0.6
    assert found.share("hours") < 0.4


@pytest.mark.parametrize("faults", ["once", "memory", "drift"])
def test_faults_and_drift_make_no_statement_false(faults: str) -> None:
    found = asked_all([surface("rough", seed, faults=faults) for seed in range(3)], "best")
    assert found.wrong == 0
    assert found.decided >= 2


def test_what_a_model_expects_leaves_configurations_out_and_a_wrong_model_makes_nothing_false() -> None:
    """`python -m tests.benchmarks until` asks more."""
    planted = [by_devices(surface("smooth", seed, (24, 2, 1))) for seed in range(3)]
    alone = asked_all(planted, "best")
    good = asked_all([expecting(each, seed) for seed, each in enumerate(planted)], "best")
    wrong = asked_all([expecting(each, seed, 0.7 * (-1) ** seed) for seed, each in enumerate(planted)], "best")
    assert alone.wrong == good.wrong == wrong.wrong == 0
    assert good.decided >= alone.decided - 1
    assert good.share("compositions") < 0.8 * alone.share("compositions")
    assert good.share("hours") < 0.95 * alone.share("hours")
    assert wrong.share("compositions") < 1.1 * alone.share("compositions")
    assert any("from the model of a step and cells like them" in each for each in good.campaigns[0].decision.rests_on)


def test_two_configurations_are_told_apart_and_shares_are_of_both() -> None:
    found = asked_all([surface("smooth", seed, compositions=5) for seed in (0, 3)], "comparison")
    assert found.wrong == 0
    assert found.decided == 2
    decision = found.campaigns[0].decision
    assert decision.whole_device_hours is not None
    matrix = surface("smooth", 0, compositions=5).matrix
    question = asked(surface("smooth", 0, compositions=5), "comparison", 0)
    of_both = sum(
        lease.once_h + sum(lease.cells_h)
        for lease in matrix.leases
        if lease.configuration.name in (question.first, question.second)
    )
    assert decision.whole_device_hours == pytest.approx(of_both)


@pytest.mark.parametrize("kind", ["ties", "noisy"])
def test_a_comparison_composes_no_lease_twice_and_no_other_configuration(kind: str) -> None:
    for seed in range(3):
        planted = surface(kind, seed)
        question = asked(planted, "comparison", seed)
        decision, blocks, _ = measured_until(planted, question)
        states = CellStates(question, planted.matrix, planted.tables(blocks))
        assert states.composed <= states.compositions == 6
        assert states.beside == 0
        assert decision.decided or "would decide it" in " ".join(decision.answers)


def test_what_others_took_is_no_part_of_what_a_comparison_took() -> None:
    planted = surface("smooth", 0)
    question = asked(planted, "comparison", 0)
    states = CellStates(question, planted.matrix, planted.tables())
    assert states.spent == pytest.approx(states.whole)
    assert (states.composed, states.beside) == (6, 30)


def test_a_drift_takes_no_freedom_from_what_was_composed_in_the_same_blocks() -> None:
    planted = surface("smooth", 0)
    question = asked(planted, "comparison", 0)
    both = [cell for cell in planted.cells if question.about(cell)]
    alike = {(cell.id, n): n for cell in both for n in (1, 2, 3)}
    evidence = QuestionEvidence(question, planted.matrix, planted.tables(alike))
    assert evidence.estimates.freedom[0] == 4
    one = {(cell.id, n): n for cell in both for n in (1, 2, 3) if n < 3 or cell.configuration.name == question.first}
    assert QuestionEvidence(question, planted.matrix, planted.tables(one)).estimates.freedom[0] == 2


def test_leases_that_hold_no_cell_twice_do_not_tell_how_much_leases_differ() -> None:
    """As after a kill in the first round: the cells of a configuration are on two leases, and none of them on both."""
    once = {cell.id: n for n, cell in enumerate(SMALL.cells)}
    tables = SMALL.tables({(cell, 1): 1 + n % 2 for cell, n in once.items()})
    assert QuestionEvidence(BEST, SMALL.matrix, tables).estimates.freedom[0] == 0
    assert not decide(BEST, SMALL.matrix, tables).stop


def test_a_frontier_is_known_of_part_of_the_matrix() -> None:
    found = asked_all([by_devices(surface("smooth", seed, compositions=5)) for seed in range(2)], "frontier")
    assert found.wrong == 0
    assert found.decided == 2
    assert found.share("compositions") < 0.7


def test_the_same_tables_give_the_same_round() -> None:
    first = decide(BEST, SMALL.matrix, None)
    blocks = {(cell, lease.composition): 1 for lease in first.next for cell in lease.cells}
    second = decide(BEST, SMALL.matrix, SMALL.tables(blocks))
    assert second == decide(BEST, SMALL.matrix, SMALL.tables(blocks))
    assert second.next
    assert not {(cell, lease.composition) for lease in second.next for cell in lease.cells} & blocks.keys()
    assert len(second.reasons) == len(second.next)


def test_a_clear_winner_is_named_with_what_it_rests_on() -> None:
    decision, rounds = followed(surface("smooth", 1, compositions=5), BEST)
    assert decision.stop
    assert decision.decided
    assert decision.statement.startswith("Decided: the best configuration is known within 5 %")
    assert all("95\u202f% interval" in each and "leads" not in each for each in decision.answers)
    assert decision.device_hours is not None
    assert decision.whole_device_hours is not None
    assert decision.device_hours < decision.whole_device_hours
    assert re.search(r"\d+ of 60 compositions made, \d+\u202f% of device-hours with composing", decision.rests_on[0])
    assert rounds > 1


def test_what_cannot_be_decided_names_candidates_and_what_would_decide_it() -> None:
    planted = surface("ties", 6)
    decision, blocks, _ = measured_until(planted, replace(BEST, within_pct=2.0))
    assert decision.stop
    assert not decision.decided
    assert decision.statement.startswith("Not decided")
    said = " ".join(decision.answers)
    assert re.search(
        r"leads\. It is not shown to be as good as .* \(batch \d+\), [\d.]+\u202fsamples/s \(95\u202f% interval", said
    )
    assert re.search(
        r"\d+ more compositions? \(\d+ of each candidate, about [\d.]+ device-hours\) would decide it", said
    )
    assert len({cell for cell, _ in blocks}) < len(planted.cells)


def test_configurations_that_stayed_on_hosts_of_their_own_are_said_to() -> None:
    planted = surface("smooth", 1, (6, 2, 2))
    names = list(dict.fromkeys(cell.configuration.name for cell in planted.cells))
    own = [[f"host{names.index(lease.configuration.name)}"] * 80 for lease in planted.matrix.leases]
    decision, _ = followed(replace(planted, hosts=own), BEST)
    assert not decision.decided
    assert all("Compositions on common hosts would decide it" in each for each in decision.answers)
    assert followed(planted, BEST)[0].decided


def test_what_is_said_to_decide_it_does_where_means_stay() -> None:
    """With as many compositions as named, and the same means, the statement is shown."""
    planted = surface("ties", 6)
    question = replace(BEST, within_pct=2.0)
    _, blocks, _ = measured_until(planted, question)
    evidence = QuestionEvidence(question, planted.matrix, planted.tables(blocks))
    panel = next(panel for panel in evidence.panels if panel.answered < 0)
    more = needed(evidence, panel)
    assert more is not None
    pairs = panel.pairs.take(~panel.pairs.passes)
    margin = pairs.difference - pairs.least
    for each, enough in ((more.each, True), (more.each - 1, False)):
        k = evidence.states.measured[pairs.better] + each, evidence.states.measured[pairs.other]
        own = np.isin(pairs.other, more.cells)
        freedom = (
            evidence.estimates.freedom[more.cells[0]] + each * np.unique(evidence.states.configuration[more.cells]).size
        )
        assert (
            bool((margin > evidence.asked(panel, pairs.better, pairs.other, k[0], k[1] + each * own, freedom)).all())
            == enough
        )


def _failing(planted: Planted, cells: Collection[str], status: str, compositions: int = 99) -> Planted:
    """These cells fail on their first compositions."""
    hit = planted.runs["cell_id"].isin(cells) & (planted.runs["composition"] <= compositions)
    of = planted.runs
    return replace(planted, runs=of.assign(status=of["status"].mask(hit, status), value=of["value"].mask(hit)))


def test_a_campaign_that_fails_everywhere_says_so() -> None:
    decision, _ = followed(_failing(SMALL, [cell.id for cell in SMALL.cells], "oom_device"), BEST)
    assert decision.stop
    assert not decision.decided
    assert "failed or runs out of memory" in decision.statement


def test_the_last_one_of_those_that_fail_is_measured_before_it_is_the_best() -> None:
    cells = SMALL.cells
    but = {cell.id for cell in cells if cell.precision == cells[0].precision} - {cells[0].id}
    failing = _failing(SMALL, but, "crashed")
    blocks = {(cell, n): n for cell in but for n in (1, 2)}
    decision = decide(BEST, failing.matrix, failing.tables(blocks))
    assert not decision.decided
    while not decision.stop:
        blocks |= {(cell, lease.composition): 3 for lease in decision.next for cell in lease.cells}
        decision = decide(BEST, failing.matrix, failing.tables(blocks))
    assert cells[0].id in {cell for cell, _ in blocks}


def test_a_failure_counts_once_another_composition_shows_it() -> None:
    ids = [cell.id for cell in SMALL.cells]
    for status in ("crashed", "oom_device"):
        once = _failing(SMALL, ids, status)
        first = CellStates(BEST, once.matrix, once.tables(dict.fromkeys(((each, 1) for each in ids), 1)))
        assert not first.fails.any()
        decision = decide(BEST, once.matrix, once.tables(dict.fromkeys(((each, 1) for each in ids), 1)))
        assert {lease.composition for lease in decision.next} == {2}
        assert any("failed on one composition, which counts only once another" in each for each in decision.rests_on)
        again = {(each, n): n for each in ids for n in (1, 2)}
        assert CellStates(BEST, once.matrix, once.tables(again)).fails.all()


def test_one_configuration_out_of_memory_says_nothing_of_others() -> None:
    largest = max(SMALL.cells, key=lambda cell: (cell.configuration.ranks, -cell.batch))
    alike = {
        cell.id
        for cell in SMALL.cells
        if (cell.configuration, cell.precision) == (largest.configuration, largest.precision)
    }
    failing = _failing(SMALL, alike, "oom_device")
    tables = failing.tables({(largest.id, 1): 1, (largest.id, 2): 2})
    states = CellStates(BEST, failing.matrix, tables)
    assert {cell.id for cell, fails in zip(states.cells, states.fails, strict=True) if fails} == alike
    assert {cell.id for cell, ran in zip(states.cells, states.ran, strict=True) if ran} == {largest.id}
    said = decide(BEST, failing.matrix, tables).rests_on
    assert "1 cell failed on every composition that was tried, and does not compete." in said
    assert any(" not run, as a smaller batch ran out of memory there" in each for each in said)


@pytest.mark.parametrize("form", FORMS)
def test_every_round_says_what_is_known_of_each_panel(form: str) -> None:
    question = asked(SMALL, form, 21)
    blocks: dict[tuple[str, int], int] = {}
    for number in range(1, 4):
        tables = SMALL.tables(blocks) if blocks else None
        decision = decide(question, SMALL.matrix, tables)
        panels = CellStates(question, SMALL.matrix, tables).panels
        assert {each.partition(": ")[0] for each in decision.answers} == {about(panel) for panel in panels}
        blocks |= {(cell, lease.composition): number for lease in decision.next for cell in lease.cells}


def test_a_bound_is_in_the_units_of_the_tolerance_and_is_of_what_was_measured() -> None:
    decision, _ = followed(surface("rough", 2, compositions=5), BEST)
    bounds = [
        float(found) for each in decision.answers for found in re.findall(r"at most ([0-9.]+)\u202f% below", each)
    ]
    assert bounds
    assert max(bounds) <= BEST.within_pct


def test_one_configuration_is_the_best_of_itself() -> None:
    first = SMALL.matrix.leases[0].configuration
    cell = SMALL.matrix.leases[0].cells[0]
    leases = tuple(
        replace(lease, cells=(cell,), cells_h=lease.cells_h[:1])
        for lease in SMALL.matrix.leases
        if lease.configuration is first
    )
    planted = replace(SMALL, matrix=PricedMatrix(leases), runs=SMALL.runs[SMALL.runs["cell_id"] == cell.id])
    decision, _ = followed(planted, BEST)
    assert decision.decided
    assert "nothing else competes" in decision.answers[0]


def test_unknown_costs_are_no_numbers() -> None:
    unknown = tuple(
        replace(lease, once_h=float("nan"), cells_h=(float("nan"),) * len(lease.cells)) for lease in SMALL.matrix.leases
    )
    decision, _ = followed(replace(SMALL, matrix=PricedMatrix(unknown)), BEST)
    assert decision.stop
    assert decision.device_hours is None
    assert decision.whole_device_hours is None
    assert any("Durations are unknown" in each for each in decision.rests_on)
    assert not any("device-hours" in each for each in (*decision.rests_on, *decision.answers))


def test_compositions_that_differ_by_nothing_known_decide_nothing() -> None:
    decision, _ = followed(surface("smooth", 5, (6, 2, 2), compositions=1), replace(BEST, within_pct=1.0))
    assert decision.stop
    assert not decision.decided


def test_a_pair_asks_for_both_first() -> None:
    question = asked(SMALL, "comparison", 7)
    first: Decision = decide(question, SMALL.matrix, None)
    assert {lease.configuration for lease in first.next} == {question.first, question.second}
    decision, _ = followed(SMALL, question)
    assert all(question.first in each and question.second in each for each in decision.answers)


@pytest.mark.parametrize("planned", [1, 2, 3, 5, 9])
def test_looks_spend_the_error_of_a_pair_and_leave_most_for_the_last(planned: int) -> None:
    parts = spent(np.arange(1, planned + 1), *[np.full(planned, planned)] * 2)
    assert parts.sum() == pytest.approx(1.0)
    assert (np.diff(parts) > -0.1).all()
    if planned in (3, 5):
        assert parts[-1] > 0.4
        assert parts[0] < 0.02


def test_a_composition_that_failed_leaves_its_part_of_the_error_to_the_last_that_is_possible() -> None:
    """At most the whole error is spent, also where looks before the failure spent as planned."""
    planned, possible = np.full(2, 3), np.full(2, 2)
    parts = spent(np.array([1, 2]), planned, possible)
    as_planned = spent(np.array([1, 2]), planned, planned)
    assert parts[1] > 0.7
    assert as_planned.sum() + parts[1] == pytest.approx(1.0)
    assert parts.sum() <= 1.0


def test_panels_that_are_shown_together_are_answered_together() -> None:
    """None of them is shown at its part of the error, and all are at the whole of it."""
    planted = surface("noisy", 133)
    question = asked(planted, "comparison", 133)
    both = {(cell.id, n): n for cell in planted.cells if question.about(cell) for n in (1, 2, 3)}
    evidence = QuestionEvidence(question, planted.matrix, planted.tables(both))
    needs = [panel.pairs.needs[:2].min() for panel in evidence.panels]
    assert len(needs) == 6
    assert min(needs) > 0.05 / (2 * 6)
    assert max(needs) < 0.05 / 2
    assert evidence.decided


def test_two_that_were_composed_once_are_composed_again() -> None:
    """Their next compositions tell as many degrees of freedom."""
    planted = surface("cliff", 1)
    assert told(planted, asked(planted, "comparison", 1)).decided


def test_what_another_model_predicts_spares_configurations() -> None:
    """Expectations of configurations that were not composed rest on the prior, and only on one that turns out to be right."""
    planted = surface("smooth", 3, (40, 3, 1))
    right = {name: float(np.log(rate)) for name, rate in planted.rate.items()}
    seen: dict[str, int] = {}
    for name, prior in (("right", right), ("none", None)):
        blocks: dict[tuple[str, int], int] = {}
        for number in range(1, 3):
            decision = decide(BEST, planted.matrix, planted.tables(blocks) if blocks else None, prior)
            blocks |= {(cell, lease.composition): number for lease in decision.next for cell in lease.cells}
        seen[name] = len({cell.rpartition("-p")[0] for cell, _ in blocks})
    assert seen["right"] < seen["none"] == 40


def test_a_batch_that_few_configurations_measured_leaves_no_cell_out() -> None:
    """The largest batch of the first configurations fell off a cliff or ran out of memory: of others, it is the best."""
    planted = surface("cliff", 2000, compositions=5, faults="memory")
    assert not told(planted, BEST).wrong


def test_told_counts_compositions_of_every_round() -> None:
    found = told(SMALL, BEST)
    assert found.compositions > 0
    assert found.hours > 0
