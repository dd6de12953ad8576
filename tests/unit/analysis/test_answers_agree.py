"""The answers of one page held against each other, over planted campaigns: workloads and precisions that share leases, spread of
compositions and runs, cells that crash, run out of memory or were never run."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pandas as pd
import pytest
import yaml

from campaign.analysis.recommend.advise import build_recommendation
from campaign.analysis.recommend.choice import TIE_PCT
from campaign.analysis.recommend.document import RecommendationAnswer, RecommendedChoice
from campaign.analysis.recommend.objectives import parse_request
from campaign.analysis.tables.cells import CellPlan, build_cells_table
from campaign.analysis.tables.io import Tables
from campaign.analysis.tables.runs import build_runs_table
from campaign.spec.run_numbers import compute_run_number
from tests.unit.analysis import planted_shapes
from tests.unit.report import report_data

LEASES, RUNS = 3, 2
OBJECTIVES = ("throughput", "time", "throughput-per-device-hour", "cheapest-within:5%", "mix:big=0.7,small=0.3")


def planted(seed: int, leases: int = LEASES) -> Tables:
    """A campaign of two workloads and two precisions, batch 8 and 16, on six to nine shapes."""
    random = np.random.default_rng(seed)
    some = random.choice(len(planted_shapes.SHAPES), int(random.integers(6, 10)), replace=False)
    shapes = [planted_shapes.SHAPES[n] for n in sorted(some)]
    spread, noise = random.uniform(0.003, 0.04, 2)
    crashes = shapes[int(random.integers(len(shapes)))].name  # of one workload
    largest = max(at.ranks for at in shapes)
    plan, records = [], []
    for at in shapes:
        of_lease = spread * random.standard_normal(leases)
        for workload, batch, precision in itertools.product(("big", "small"), (8, 16), ("fp32", "fp16")):
            cell = report_data.cell(at, workload, batch, precision)
            numbers = [compute_run_number(lease, n) for lease in range(1, leases + 1) for n in range(1, RUNS + 1)]
            missing = random.random() < 0.15
            never = dict.fromkeys(numbers, "left out by --where") if missing else {}
            plan.append(CellPlan(cell, len(numbers), at.name, never))
            status = "crashed" if (at.name, workload) == (crashes, "small") else "ok"
            if (batch, precision, workload) == (16, "fp32", "big") and at.ranks in (2, largest):
                status = "oom_device"
            seconds = planted_shapes.step_s(at, workload, batch, precision)
            for number in [] if missing else numbers:
                lease = numbers.index(number) // RUNS
                failed = status if status != "ok" else "crashed" if random.random() < 0.05 else "ok"
                log = of_lease[lease] + noise * random.standard_normal()
                rate = cell.batch_global / seconds * float(np.exp(log)) if failed == "ok" else None
                bare = {"step_times_s": (), "window_s": (), "lease_id": f"{at.name}.c{lease}"}
                records.append(report_data.record(cell, number, rate, failed, metrics={}, **bare))
    runs = build_runs_table(records)
    context = report_data.context_document()
    context["campaign_yaml"] = yaml.safe_dump({"system": planted_shapes.SYSTEM})
    context["campaign"] = {**context["campaign"], "protocol": {"order": "blocks", "lease_order": "blocks"}}
    return Tables(runs, build_cells_table(plan, runs), [], [], context)


def shown(choice: RecommendedChoice) -> str:
    return f"{choice.configuration}, {choice.batches}: {choice.said}"


def contradictions(tables: Tables) -> Iterator[str]:
    """What two answers of a page, or an answer and the tables, say against each other."""
    answers = build_recommendation(tables, parse_request(OBJECTIVES, [], [], ["big", "small"], [])).answers
    by_objective = {
        name: [each for each in answers if each.objective.startswith(name)] for name in ("throughput", "mix")
    }
    for answer in answers:
        if answer.choice is None:
            continue
        yield from _ties(answer)
        if answer.objective.startswith("mix"):
            yield from _mix(answer, by_objective["throughput"])
        else:
            yield from _cells(answer, tables.cells)
    for one, other in itertools.pairwise(sorted(answers, key=lambda each: each.about)):
        same = one.about == other.about and {one.objective, other.objective} == {"throughput", "time"}
        if same and one.choice.shape != other.choice.shape:
            yield f"the fastest and the shortest: {shown(one.choice)} and {shown(other.choice)}"


def _ties(answer: RecommendationAnswer) -> Iterator[str]:
    higher = answer.objective.startswith("throughput")
    values = [each.value for each in (answer.choice, *answer.tied)]
    best = max(values) if higher else min(values)
    for each in answer.tied:
        if abs(np.log(each.value / best)) > -np.log1p(-TIE_PCT / 100):
            yield f"a tie with a difference of more than {TIE_PCT} %: {shown(each)}"
    if any(each.configuration not in answer.describe_alternatives() for each in answer.alternatives):
        yield f"not all of what is beside it is named: {answer.describe_alternatives()}"


def _cells(answer: RecommendationAnswer, cells: pd.DataFrame) -> Iterator[str]:
    """What is named was measured as it says, and nothing that failed is named."""
    workload, precision = answer.about.split(", ")
    own = cells[(cells["workload"] == workload) & (cells["precision"] == precision)]
    for each in (answer.choice, *answer.alternatives):
        here = own[(own["configuration"] == each.configuration) & ("batch " + own["batch"].astype(str) == each.batches)]
        if not (len(here) and int(here["n_ok"].iloc[0]) > 0):
            yield f"{answer.about}: {shown(each)} of {here['state'].tolist()}"
    if answer.objective == "throughput":
        fastest = own.loc[own["mean"].idxmax()]
        if fastest["configuration"] not in {each.configuration for each in (answer.choice, *answer.alternatives)}:
            yield f"{answer.about}: the fastest, {fastest['configuration']}, is not beside {shown(answer.choice)}"


def _mix(mix: RecommendationAnswer, fastest: list[RecommendationAnswer]) -> Iterator[str]:
    """A shape that is the best for each workload as the mix runs it, is the best for the mix."""
    assert mix.choice is not None
    of = [each for each in fastest if each.objective == "throughput" and each.about in mix.about]
    if len(of) != len(mix.workloads):
        yield f"{mix.about}: names no answer of each workload"
        return
    for each in (mix.choice, *mix.alternatives):
        if not each.evidence:
            yield f"{mix.about}: {shown(each)} rests on nothing"
    leaders = set.intersection(*({each.choice.configuration} for each in of if each.choice and not each.tied))
    if leaders and len([each for each in of if each.tied]) == 0:
        named = {each.configuration for each in (mix.choice, *mix.alternatives)}
        if not leaders <= named:
            yield f"{leaders} wins for each workload, and {shown(mix.choice)} for the mix"


@pytest.mark.parametrize(("seed", "leases"), [(0, 3), (1, 2), (2, 1), (3, 3), (4, 2), (5, 1)])
def test_no_answer_of_a_page_contradicts_another(seed: int, leases: int) -> None:
    """`python -m tests.benchmarks.truth` plants more of them."""
    assert list(contradictions(planted(seed, leases))) == []
