"""The figures of speed, one function a benchmark. Each works in a project of its own and gives figures with limits and floors."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence

from tests.benchmarks import floors
from tests.benchmarks.fabric import fabric
from tests.benchmarks.falcon import falcon
from tests.benchmarks.figure import Figure
from tests.benchmarks.knowledge import knowledge
from tests.benchmarks.leases import leases
from tests.benchmarks.measured import pretend_measured
from tests.benchmarks.parsing import parsing
from tests.benchmarks.project import Project
from tests.benchmarks.site import site
from tests.benchmarks.slurm import slurm
from tests.benchmarks.telemetry import telemetry
from tests.benchmarks.timing import Took, least
from tests.benchmarks.train import train

_TIMES = 3
_LINEAR = 1.15  # the most that noise makes of an exponent of 1


def plan(project: Project) -> Iterable[Figure]:
    """`campaign plan` by the number of cells."""
    took: dict[int, Took] = {}
    for cells in (200, 1_000, 10_000, 30_000, 100_000):
        path = project.campaign(f"plan-{cells}", cells, repetitions=3)
        took[cells] = least(lambda path=path: project.run("campaign", "plan", str(path)), _TIMES)  # type: ignore[misc]
    floor = floors.import_pydantic_s(project)
    yield _wall("campaign plan, 10,000 cells", took[10_000], 0.8, floor, "import pydantic")
    yield _wall("campaign plan, 100,000 cells", took[100_000], 7, floor, "import pydantic")
    yield Figure("campaign plan, memory for 100,000 cells", took[100_000].peak_mib, "MiB", 300)
    # Above what an interpreter with its imports takes, which 200 cells show.
    beyond = {cells: one.cpu_s - took[200].cpu_s for cells, one in took.items() if cells > 1_000}
    yield Figure("campaign plan, exponent of its cost in the cells", exponent(beyond), "", _LINEAR, 1.0, "linear")


def dag(project: Project) -> Iterable[Figure]:
    """Snakemake on a campaign of 50 configurations: a dry run, and a second invocation that has nothing to do."""
    floor = floors.snakemake_s(project)
    for cells, limit_s, memory_mib in ((10_000, 3.0, None), (100_000, 10.0, 500)):
        path = project.campaign(f"dag-{cells}", cells)
        dry = least(lambda path=path: project.dry_run(path), _TIMES)  # type: ignore[misc]
        pretend_measured(path, project.directory / "results")
        project.snakemake(path, "tables")
        second = least(lambda path=path: project.snakemake(path, "tables"), _TIMES)  # type: ignore[misc]
        yield _wall(f"snakemake -n, {cells:,} cells", dry, limit_s, floor, "snakemake --version")
        yield _wall(f"second invocation, {cells:,} cells", second, limit_s, floor, "snakemake --version")
        if memory_mib:
            peak = max(dry.peak_mib, second.peak_mib)
            yield Figure(f"snakemake, memory for {cells:,} cells", peak, "MiB", memory_mib)


def runs(project: Project) -> Iterable[Figure]:
    """Isolated runs of a command that does nothing, from `snakemake` to the tables."""

    def measure(name: str, cells: int, repetitions: int) -> Took:
        path = project.campaign(name, cells, configurations=1, repetitions=repetitions)
        shutil.rmtree(project.directory / "results" / name, ignore_errors=True)
        return project.snakemake(path, "tables")

    few = least(lambda: measure("runs-200", 20, 10), _TIMES)
    many = {count: measure(f"runs-{count}", count // 10, 10) for count in (1_000, 5_000)}
    loop = floors.shell_loop_s(project, 1_000) / 1_000 + floors.written_once_s(project, 1_000) / 1_000
    start = floors.snakemake_s(project) + floors.import_pandas_s(project)
    yield _wall("200 runs", few, 4.0, start + 200 * loop, "snakemake --version, import pandas, and per run:")
    yield Figure(
        "5,000 runs, each",
        (many[5_000].wall_s - few.wall_s) / 4_800 * 1e3,
        "ms",
        8,
        loop * 1e3,
        "shell loop, fsync and rename",
        (many[5_000].cpu_s - few.cpu_s) / 4.8,
    )
    beyond = {count: took.wall_s - few.wall_s for count, took in many.items()}
    yield Figure("runs, exponent of their cost in their number", exponent(beyond, less=200), "", _LINEAR, 1.0, "linear")


def archive(project: Project) -> Iterable[Figure]:
    """Tables, figures and page from an archive of 10,000 records."""
    path = project.campaign("archived", 2_000, repetitions=5)
    pretend_measured(path, project.directory / "results")
    project.run("campaign", "archive", str(path), "--output", "archived.zip")
    took = project.run("campaign", "report", "archived.zip", "--output", "page.html")
    floor = floors.import_matplotlib_s(project)
    yield _wall("report from 10,000 archived records", took, 20, floor, "import pandas, matplotlib")
    yield Figure("report from 10,000 archived records, memory", took.peak_mib, "MiB", 500)


BENCHMARKS: Mapping[str, Callable[[Project], Iterable[Figure]]] = {
    "plan": plan,
    "dag": dag,
    "runs": runs,
    "leases": leases,
    "archive": archive,
    "knowledge": knowledge,
    "slurm": slurm,
    "fabric": fabric,
    "falcon": falcon,
    "telemetry": telemetry,
    "parsing": parsing,
    "train": train,
    "site": site,
}


def exponent(cost: Mapping[int, float], less: int = 0) -> float:
    """Least-squares slope of log(cost) over log(count - less): 1 where the cost is linear."""
    points = [(math.log(count - less), math.log(max(value, 1e-9))) for count, value in cost.items()]
    mean_x, mean_y = (_mean([point[axis] for point in points]) for axis in (0, 1))
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / sum((x - mean_x) ** 2 for x, _ in points)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _wall(name: str, took: Took, limit_s: float, floor_s: float, floor_of: str) -> Figure:
    return Figure(name, took.wall_s, "s", limit_s, floor_s, floor_of, took.cpu_s)
