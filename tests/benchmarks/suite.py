"""The benchmarks. Each works in a project of its own and yields figures with their floors.

Values are processor time of all processes, where the work is the program's own. Other work on the machine changes it little.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from tests.benchmarks import floors
from tests.benchmarks.figure import Figure
from tests.benchmarks.project import COMMAND, Project
from tests.benchmarks.saved_logs import write_logs
from tests.benchmarks.slurm_schedule import schedule
from tests.benchmarks.synthetic_results import write_results
from tests.benchmarks.timing import Took, measure_minimum
from tests.benchmarks.waiting_leases import waiting

_TIMES = 3
_LEASES = (1_000, 10_000)
_RUNS = (200, 1_000)
_CELLS, _REPETITIONS = 10_000, 5
_LOGS = 10_000
_POOL = [{"kind": "gpu", "model": model, "count": 4} for model in ("a", "b", "c")]
_SIX_RESOURCES = [*_POOL, {"kind": "nvme", "model": "drive", "count": 4}]
"""A pool that makes six resources, together with the hosts and their own devices."""


def dry_run(project: Project) -> Iterable[Figure]:
    """Dry run of 1,000 and 10,000 leases."""
    project.system("six", pool=_SIX_RESOURCES)
    for leases in _LEASES:
        took = project.dry_run(project.campaign(f"dry-{leases}", leases, lease_per="cell", system="six"))
        floor = floors.dry_run_bare_jobs(project, leases)
        name, bare = f"dry run of {leases:,} leases", "snakemake -n of as many bare jobs"
        yield Figure(name, took.cpu_s, "s", floor.cpu_s, bare)
        yield Figure(f"{name}, memory", took.peak_mib, "MiB", floor.peak_mib, bare)


def plan(project: Project) -> Iterable[Figure]:
    """`campaign plan` of 1,000 and 10,000 leases."""
    project.system("six", pool=_SIX_RESOURCES)
    floor = floors.start_interpreter(project, "import pydantic")
    for leases in _LEASES:
        path = project.campaign(f"plan-{leases}", leases, lease_per="cell", system="six")
        took = measure_minimum(lambda path=path: project.run("campaign", "plan", str(path)), _TIMES)  # type: ignore[misc]
        yield Figure(f"campaign plan of {leases:,} leases", took.cpu_s, "s", floor.cpu_s, "import pydantic")


def run(project: Project) -> Iterable[Figure]:
    """Own cost of a run: the difference between 1,000 and 200 runs of a command that does nothing, in one lease."""

    def measure(runs: int) -> Took:
        path = project.campaign(f"runs-{runs}", runs // 10, configurations=1, repetitions=10)
        return project.snakemake(path, "measured")

    few, many = map(measure, _RUNS)
    loops = [floors.run_shell_loop(project, runs, " ".join(COMMAND)) for runs in _RUNS]
    files = floors.write_forced_files(project, _RUNS[1]).cpu_s / _RUNS[1]
    loop = (loops[1].cpu_s - loops[0].cpu_s) / (_RUNS[1] - _RUNS[0])
    cost = (many.cpu_s - few.cpu_s) / (_RUNS[1] - _RUNS[0])
    yield Figure("own cost of a run", 1e3 * cost, "ms", 1e3 * (loop + files), "shell loop, fsync and rename")


def knowledge(project: Project) -> Iterable[Figure]:
    """Tables, report, recommendation and comparison of 10,000 cells x 5 repetitions."""
    results = project.directory / "results"
    for name in ("first", "second"):
        write_results(project.campaign(name, _CELLS, repetitions=_REPETITIONS), results)
    name, imports = "import pandas, matplotlib", "import pandas, pyarrow.parquet, matplotlib.pyplot"
    floor = floors.start_interpreter(project, imports)
    took = project.run("campaign", "report", "campaigns/first.yaml", "--output", "report.html")
    yield Figure("report of 10,000 cells x 5", took.cpu_s, "s", floor.cpu_s, name)
    yield Figure("report of 10,000 cells x 5, memory", took.peak_mib, "MiB", floor.peak_mib, name)
    project.run("campaign", "plan", "campaigns/second.yaml", "--write")
    took = project.run("campaign", "collect", "results/second/plan/plan.json")
    read = floors.read_json_files(project, results / "second" / "records")
    yield Figure(
        f"collect of {_CELLS * _REPETITIONS:,} records", took.cpu_s, "s", read.cpu_s, "json.loads of each file"
    )
    took = project.run("campaign", "recommend", "results/first")
    yield Figure("recommendation from 10,000 cells x 5", took.cpu_s, "s", floor.cpu_s, name)
    took = project.run("campaign", "compare", "results/first", "results/second", "--output", "compared.html")
    yield Figure("comparison of two campaigns of 10,000 cells x 5", took.cpu_s, "s", floor.cpu_s, name)


def logs(project: Project) -> Iterable[Figure]:
    """Import of 10,000 logs of 600 workloads."""
    import_map = write_logs(project, _LOGS)
    took = project.run("campaign", "import", "logs", "--map", str(import_map))
    floor = floors.copy_logs(project, project.directory / "logs")
    yield Figure("import of 10,000 logs, each", took.cpu_s / _LOGS * 1e3, "ms", floor.cpu_s / _LOGS * 1e3,
                 "read, hash and write each file")  # fmt: skip


def start(project: Project) -> Iterable[Figure]:
    """`import campaign` and `campaign --help`."""
    floor = floors.start_interpreter(project)
    took = floors.start_interpreter(project, "import campaign")
    yield Figure("import campaign", took.cpu_s, "s", floor.cpu_s, "python -c pass")
    took = measure_minimum(lambda: project.run("campaign", "--help"), _TIMES)
    yield Figure("campaign --help", took.cpu_s, "s", floor.cpu_s, "python -c pass")


BENCHMARKS: Mapping[str, Callable[[Project], Iterable[Figure]]] = {
    "dry_run": dry_run,
    "plan": plan,
    "run": run,
    "schedule": schedule,
    "waiting": waiting,
    "knowledge": knowledge,
    "logs": logs,
    "start": start,
}
