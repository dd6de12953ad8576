"""A directory of logs of one line each, and the import map that describes it."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from random import Random

from tests.benchmarks.project import Project

_WORKLOADS = 600
_CONFIGURATIONS = 4


def write_logs(project: Project, count: int) -> Path:
    """Write logs below `logs/` and return the file of their map. Each cell has one log."""
    random = Random(0)
    batches = -(-count // (_WORKLOADS * _CONFIGURATIONS))
    shapes = [f"shape{number}" for number in range(1, _CONFIGURATIONS + 1)]
    for shape in shapes:
        (project.directory / "logs" / shape).mkdir(parents=True)
    cells = product(range(1, batches + 1), shapes, range(_WORKLOADS))
    for _, (batch, shape, workload) in zip(range(count), cells, strict=False):
        path = project.directory / "logs" / shape / f"w{workload}-b{batch}-fp32-r1.log"
        path.write_text(f"rate: {random.gauss(100, 1):.3f}\n")
    parsers = [{"metric": "throughput_per_s", "regex": r"rate: (\S+)"}]
    hosts = {
        "name": "host[1-4]",
        "cores": 8,
        "memory_gib": 64,
        "devices": [{"model": "a100", "count": _CONFIGURATIONS}],
    }
    return project.write(
        "map.yaml",
        {
            "name": "old",
            "system": {"name": "old-cluster", "hosts": [hosts]},
            "configurations": [{"name": shape, "devices_per_host": number} for number, shape in enumerate(shapes, 1)],
            "workloads": {f"w{number}": {"parsers": parsers} for number in range(_WORKLOADS)},
            "logs": {"path": "{configuration}/{workload}-b{batch}-{precision}-r{repetition}.log"},
            "protocol": {"warmup_steps": 0, "measured_steps": 10},
        },
    )
