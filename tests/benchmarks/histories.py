"""Sites: what 200 campaigns take, and with a planted history how often a change is said that is none, or found that is one."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from tests.benchmarks import floors
from tests.benchmarks.figure import Figure
from tests.benchmarks.project import Project
from tests.measured_again import measured, results
from tests.planted_histories import Site, false_alarms, found_within
from tests.simulated_campaigns import default_campaign

SITES = 300
CAMPAIGNS = 200
SLOWER = math.log(0.95)
KINDS = {
    "20 cells": Site(),
    **{f"{cells} cells": Site(cells=cells) for cells in (10, 5, 3, 2)},
    "1 cell": Site(cells=1),
    "20 cells, 5 on the same compositions": Site(shared=5),
    "every second cell three times as noisy": Site(noisy=3),
    "heavy tails (t, 3)": Site(heavy=True),
    "one composition": Site(compositions=1),
    "campaigns differ by 0.5 %, each cell alike": Site(campaign=0.005),
    "campaigns differ by 1 %, each cell alike": Site(campaign=0.01),
    "1 cell, campaigns differ by 1 %": Site(cells=1, campaign=0.01),
}


def histories(project: Project) -> Iterable[Figure]:
    """Changes of 5 % in a history, and sites without one: 300 sites of each kind, lease sd 2 %, three compositions a campaign."""
    del project  # nothing is measured
    for name, site in KINDS.items():
        share = 100 * false_alarms(site, SITES, np.random.default_rng(1)) / SITES
        yield Figure(f"{name}: sites of 20 campaigns with a false alarm", share, "of 100", 1)
        for before in (10, 17):
            longer = replace(site, campaigns=before + 3)
            found = found_within(longer, SLOWER, before, 3, SITES, np.random.default_rng(2))
            words = f"{name}: a change of 5 % after {before} found within 3"
            yield Figure(words, 100 * found / SITES, "of 100", math.inf)


def site(project: Project) -> Iterable[Figure]:
    """`campaign site` over 200 campaigns of 29 cells that have tables, figures and a report: all new, and nothing new."""
    demo = default_campaign()
    for number in range(CAMPAIGNS):
        results(measured(demo, number), project.directory / "measured" / f"demo{number}")
    command = ("campaign", "site", "measured", "--output", "site")
    floor = floors.import_pandas_s(project)
    for name, limit_s in (("200 new campaigns", 60), ("200 campaigns that it has", 10)):
        took = project.run(*command)
        yield Figure(f"campaign site, {name}", took.wall_s, "s", limit_s, floor, "import pandas", took.cpu_s)
