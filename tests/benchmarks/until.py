"""Questions asked of campaigns with a planted truth: how often what one look at all decides is decided, and by which part."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterable
from dataclasses import replace

from campaign.config.resolve import load_campaign
from campaign.insight.until import decide, expected_rates
from campaign.plan.matrix import expand
from tests.benchmarks.figure import Figure
from tests.benchmarks.project import ROOT, Project
from tests.planted_questions import (
    KINDS,
    WITHIN,
    Counted,
    Planted,
    asked,
    asked_all,
    by_devices,
    expecting,
    plant,
    surface,
)

CAMPAIGNS = range(1000, 1012)
"""None of those that the engine was made with."""
MODEL_OFF = 0.26
"""By how much a wrong model is off, as a logarithm: 30 %."""


def until(project: Project) -> Iterable[Figure]:
    """Questions asked of 1,000 campaigns with a planted truth."""
    del project  # nothing is measured
    yield Figure("until, the longest round of 1,920 cells", _longest_round_s(), "s", 1.0)
    whole: list[Counted] = []
    for name, form, planted in _rows():
        found = asked_all(planted, form)
        count = len(found.campaigns)
        whole += [found] if form == "best" and "model" not in name else []
        of = f"{form}, {name}"
        yield Figure(f"{of}: decided, of {found.one_look} that one look decides", found.of_these, "", math.inf)
        yield Figure(f"{of}: decided", found.decided, f"of {count}", math.inf)
        yield Figure(f"{of}: wrong", found.wrong, f"of {count}", 0.02 * count + 1)
        yield Figure(f"{of}: compositions, where one look decides", 100 * found.share("compositions"), "%", math.inf)
        yield Figure(f"{of}: device-hours, where one look decides", 100 * found.share("hours"), "%", math.inf)
    every = Counted(tuple(each for found in whole for each in found.campaigns))
    yield Figure(
        "best, all: not decided, of 100 that one look decides", 100 - 100 * every.of_these / every.one_look, "", 10
    )
    yield Figure("best, all: wrong, of 100", 100 * every.wrong / len(every.campaigns), "", 2)
    yield Figure("best, all: compositions, where one look decides", 100 * every.share("compositions"), "%", 60)
    yield Figure("best, all: device-hours, where one look decides", 100 * every.share("hours"), "%", 40)


def _longest_round_s() -> float:
    """Seconds of a core that choosing a round takes, with what the model of a step expects of as many cells."""
    campaign = load_campaign(ROOT / "config" / "campaigns" / "falcon-predicted.yaml")
    cells = [replace(cell, id=f"{cell.id}-{n}") for n in range(50) for cell in expand(campaign).cells][:1920]
    started_s = time.process_time()
    expected_rates(campaign, cells)
    expecting_s = time.process_time() - started_s
    planted = surface("rough", 5, (40, 4, 12))
    question, blocks, longest_s = asked(planted, "best", 1), dict[tuple[str, int], int](), 0.0
    for number in itertools.count(1):
        tables = planted.tables(blocks) if blocks else None
        started_s = time.process_time()
        decision = decide(question, planted.matrix, tables)
        longest_s = max(longest_s, time.process_time() - started_s)
        if decision.stop:
            break
        blocks |= {(cell, lease.composition): number for lease in decision.next for cell in lease.cells}
    return expecting_s + longest_s


def _rows() -> Iterable[tuple[str, str, Iterable[Planted]]]:
    for compositions in (3, 5):
        for kind in KINDS:
            for faults in ("", "once", "memory", "drift"):
                name = f"{kind}{' with ' if faults else ''}{faults}, {compositions} compositions"
                yield name, "best", (surface(kind, n, compositions=compositions, faults=faults) for n in CAMPAIGNS)
            name = f"{kind}, {compositions} compositions"
            for form in ("comparison", "frontier"):
                yield name, form, (surface(kind, n, compositions=compositions) for n in CAMPAIGNS)
        many = [by_devices(surface(KINDS[n % 5], n, compositions=compositions)) for n in CAMPAIGNS]
        yield f"throughput by devices, {compositions} compositions", "frontier", many
    for kind in KINDS:
        yield f"{kind}, 40 x 4 x 3", "best", (surface(kind, n, (40, 4, 3)) for n in CAMPAIGNS)
    for size in ((12, 3, 2), (24, 2, 1), (40, 4, 3)):
        many = [by_devices(surface(KINDS[n % 5], n, size)) for n in CAMPAIGNS]
        name = f"throughput by devices, {' x '.join(map(str, size))}"
        yield name, "best", many
        yield f"{name}, model", "best", (expecting(each, n) for n, each in enumerate(many))
        off = (expecting(each, n, MODEL_OFF * (-1) ** n) for n, each in enumerate(many))
        yield f"{name}, model with wrong fabric", "best", off
    for form in WITHIN:
        yield "steps by a formula", form, (plant(n, (50, 120)) for n in CAMPAIGNS)
