"""The rounds of a question: those that were begun and, where these are measured, the next one, chosen by what is known. Pure.

Two processes that read the same records choose the same round, so nothing is written here: whoever measures a round writes it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING

from campaign.documents.record import Store
from campaign.documents.rounds import CellIn, ChosenLease, RoundDocument, Rounds, kept_rounds
from campaign.errors import ConfigError
from campaign.files import content_hash
from campaign.insight.until import Decision, Question, decide, parse_question, priced_matrix
from campaign.paths import Results
from campaign.plan.cost.budget import Budget, matrix_digest
from campaign.plan.cost.history import read_costs
from campaign.plan.dag import forecaster_of, read_plan
from campaign.plan.plan import Plan
from campaign.plan.request import PlanRequest
from campaign.plan.selection import host_expression
from campaign.tables.collect import gather, tables_of

if TYPE_CHECKING:  # it brings pandas
    from campaign.tables.io import Tables


def next_rounds(asked: PlanRequest, *, allow_unfit: bool = False) -> Rounds:
    """The rounds of the question that is asked, up to the one to be measured now, or to the one that ends it.

    ConfigError: the question cannot be read, or nothing can answer it.
    """
    if asked.where and host_expression(asked.load(), asked.where):
        raise ConfigError("--where: with --until, it selects cells by their axes, not by the hosts of earlier runs")
    plan = read_plan(replace(asked, until=None, budget=None), allow_unfit=allow_unfit)
    campaign, results = plan.campaign, Results(asked.results, plan.campaign.name)
    question = parse_question(asked.until or "", campaign)
    _check(question, asked, plan)
    digest = matrix_digest(plan.matrix)
    kept = kept_rounds(results, question.text, asked.where, digest)
    missing = {(cell.id, lease.composition) for lease, cell in plan.cells if cell.id in lease.cells_missing}
    if not missing.isdisjoint(kept.chosen):
        return kept
    tables = _tables(asked, plan, results)
    known = _known(tables)
    budget = str(asked.budget or "")
    if kept and kept[-1].end and kept[-1].known == known and (kept[-1].end != "budget" or kept[-1].budget == budget):
        return kept
    costs = read_costs(results, asked.learn_from, campaign.path)
    matrix = priced_matrix(plan, forecaster_of(campaign, costs, asked.assumed))
    decision = decide(question, matrix, tables)
    leases = _chosen(decision, missing)
    document = RoundDocument(
        question=question.text,
        where=asked.where,
        matrix=digest,
        number=len(kept) + 1,
        after=kept[-1].digest if kept else "",
        seed=campaign.protocol.seed,
        known=known,
        runs_known=0 if tables is None else len(tables.runs),
        end="answered" if decision.decided else "" if leases else "undecided",
        statement=decision.statement or ("Not decided." if decision.stop else "Not known yet."),
        answers=decision.answers,
        rests_on=decision.rests_on,
        leases=leases,
        reasons=decision.reasons if leases else (),
        budget=budget,
        device_hours=decision.device_hours,
        device_hours_matrix=decision.whole_device_hours,
        leases_measured=sum(lease.missing < lease.runs for lease in plan.leases),
        leases_matrix=len(plan.leases),
    )
    return Rounds((*kept, _paid(document, kept, asked)))


def _check(question: Question, asked: PlanRequest, plan: Plan) -> None:
    """ConfigError where nothing that could be measured would answer it."""
    about = [cell for cell in plan.matrix if question.about(cell)]
    if not about:
        raise ConfigError(f"--where {asked.where}: leaves no cell that '{question.text}' is about")
    if max(cell.settings.compositions for cell in about) < 2 and not plan.earlier:
        place = plan.campaign.place("protocol", "compositions")
        raise ConfigError(
            f"{place}: every configuration is composed once, so nothing tells how much compositions differ, and no difference "
            "between configurations can be decided; set `compositions: 3` or more"
        )


def _tables(asked: PlanRequest, plan: Plan, results: Results) -> Tables | None:
    """The tables of the records as they are now; None where there is none."""
    store = Store(results.directory)
    collected = gather(plan.campaign, results.directory, asked.where, store)
    return tables_of(collected) if collected.records else None


def _known(tables: Tables | None) -> str:
    """Hash of what the runs say."""
    if tables is None:
        return content_hash([])
    rows = tables.runs[["cell_id", "repetition", "status", "value"]]
    return content_hash(sorted(map(repr, rows.itertuples(index=False, name=None))))


def _chosen(decision: Decision, missing: Collection[CellIn]) -> tuple[ChosenLease, ...]:
    """Leases of the next round, with those of their cells of which a run has no record."""
    if decision.stop:
        return ()
    found = (
        each.model_copy(update={"cells": tuple(cell for cell in each.cells if (cell, each.composition) in missing)})
        for each in decision.next
    )
    return tuple(each for each in found if each.cells)


def _paid(document: RoundDocument, kept: Rounds, asked: PlanRequest) -> RoundDocument:
    """The round with what it costs; with a budget, only the first of its leases that what is left of it pays for."""

    def of(count: int) -> RoundDocument:
        part = document.model_copy(update={"leases": document.leases[:count]})
        if not count:
            return part
        plan = read_plan(asked, rounds=Rounds((*kept, part)), allow_unfit=True)
        if asked.budget and (unknown := plan.forecast.unknown):
            raise ConfigError(
                f"--budget {asked.budget}: {unknown.words()}, so what it pays for cannot be said; {unknown.advice()}"
            )
        hours = None if plan.wall_s is None else plan.wall_s / 3600
        return part.model_copy(update={"round_device_hours": plan.device_hours, "round_hours": hours})

    whole = of(len(document.leases))
    if asked.budget is None or document.end:
        return whole
    left = asked.budget.amount - sum(_cost(each, asked.budget) for each in kept)
    if _cost(whole, asked.budget) <= left:
        return whole
    most = bisect_right(range(1, len(document.leases)), left, key=lambda count: _cost(of(count), asked.budget))
    if most:
        return of(most)
    said = f"{document.statement} The budget of {asked.budget} pays for no further lease."
    return document.model_copy(update={"leases": (), "reasons": (), "end": "budget", "statement": said})


def _cost(document: RoundDocument, budget: Budget | None) -> float:
    """The cost of a round in the budget's unit; what was unknown counts as nothing."""
    by_devices = budget is not None and budget.unit == "device-hours"
    return (document.round_device_hours if by_devices else document.round_hours) or 0.0
