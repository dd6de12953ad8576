"""The figures of many leases: what a lease costs beside a loop in the shell, and what thousands of them cost to plan."""

from __future__ import annotations

import shutil
from collections.abc import Iterable

from tests.benchmarks import floors
from tests.benchmarks.figure import Figure
from tests.benchmarks.project import Project
from tests.benchmarks.timing import Took, least

_RUN = ("sh", "-c", "sleep 0.1; echo rate: 12.5")
_TWICE = 2.0  # of what a loop written by hand takes
_TIMES = 2
_CONFIGURATIONS = 50


def leases(project: Project) -> Iterable[Figure]:
    """Leases of one run of 0.1 s, against the same runs in a loop; the plan and dry run of 10,000."""
    project.command("brief", _RUN)
    start_s = floors.snakemake_s(project)
    for count in (100, 300):
        took = least(lambda count=count: _measured(project, count), _TIMES)  # type: ignore[misc]
        files = sum(path.is_file() for path in (project.directory / "results").rglob("*")) / count
        floor_s = floors.shell_loop_s(project, count, _RUN) + start_s
        loop = "shell loop, snakemake --version"
        yield Figure(f"{count} leases of 0.1 s", took.wall_s, "s", _TWICE * floor_s, floor_s, loop, took.cpu_s)
        yield Figure(f"{count} leases: memory of the largest process", took.peak_mib, "MiB", 250)
        yield Figure(f"{count} leases: files a lease", files, "", 11)
    path = project.campaign("many", 10_000, configurations=_CONFIGURATIONS, lease_per="cell")
    planned = least(lambda: project.run("campaign", "plan", str(path), "--format", "tsv"), _TIMES)
    yield Figure("campaign plan, 10,000 leases", planned.wall_s, "s", 5, cpu_s=planned.cpu_s)
    dry = least(lambda: project.dry_run(path), _TIMES)
    yield Figure("snakemake -n, 10,000 leases", dry.wall_s, "s", 5, start_s, "snakemake --version", dry.cpu_s)
    yield Figure("snakemake -n, memory for 10,000 leases", dry.peak_mib, "MiB", 500)


def _measured(project: Project, count: int) -> Took:
    shutil.rmtree(project.directory / "results", ignore_errors=True)
    path = project.campaign(f"leases-{count}", count, configurations=1, lease_per="cell", workload="brief")
    given = ("--until", "measure", "--config", f"campaign={path}")
    return project.run("snakemake", "--profile", "local", *given)
