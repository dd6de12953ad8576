"""The site: what 200 campaigns take."""

from __future__ import annotations

from collections.abc import Iterable

from tests.unit.insight.test_demo_choice import default_campaign

from tests.benchmarks import floors
from tests.benchmarks.figure import Figure
from tests.benchmarks.project import Project
from tests.measured_again import measured, results

CAMPAIGNS = 200


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
