"""Questions asked of campaigns with a planted truth: how often the answer of the whole matrix is reached, and for which part."""

from __future__ import annotations

import math
from collections.abc import Iterable

from tests.benchmarks.figure import Figure
from tests.benchmarks.project import Project
from tests.planted_questions import FORMS, count

CAMPAIGNS = range(400, 500)
"""None of those that the engine was made with."""


def until(project: Project) -> Iterable[Figure]:
    """Questions of three forms, each asked of 100 campaigns of 50 to 500 cells."""
    del project  # nothing is measured
    for form in FORMS:
        found = count(form, CAMPAIGNS)
        each = found.campaigns
        panels = sum(one.panels for one in each)
        decided, by_all = (
            sum(getattr(one, name) for one in each) for name in ("panels_decided", "panels_decided_by_all")
        )
        yield Figure(f"{form}: campaigns that are decided", found.decided, "of 100", math.inf)
        yield Figure(f"{form}: decided, and wrong", found.wrong, "of 100", 5)
        yield Figure(f"{form}: campaigns with a false statement", found.false, "of 100", 5)
        yield Figure(f"{form}: campaigns that name what the matrix names, or as good", found.same, "of 100", math.inf)
        yield Figure(
            f"{form}: of these, for at most 40 % of device-hours (goal: 95)", found.reached, "of 100", math.inf
        )
        if form == "comparison":
            yield Figure(
                f"{form}: decided in each panel that the matrix decides", found.same_panels, "of 100", math.inf
            )
        yield Figure(f"{form}: mean share of device-hours", 100 * found.share, "%", 40)
        yield Figure(f"{form}: compositions made, over those of the matrix", found.composed, "", math.inf)
        yield Figure(f"{form}: panels decided, of {panels}; by the whole matrix {by_all}", decided, "", math.inf)
