"""Temporary project directories with the workflow of the checkout, for campaigns of any size."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import yaml

from tests.benchmarks.timing import Took, run_timed

ROOT = Path(__file__).parents[2]
_LINKED = ("workflow", "scripts", "reports", "local", "slurm", "config")
_CONFIGURATIONS = 50
_PRECISIONS = ["fp32", "tf32", "fp16", "bf16"]
_SYSTEM = {
    "name": "benchmark",
    "launcher": "local",
    "fabric": {"kind": "simulated"},
    "hosts": [
        {"name": "host[1-10]", "cores": 8, "memory_gib": 64, "devices": [{"model": "cpu-rank", "count": 5}]},
    ],
    "devices": {"cpu-rank": {"runs_on": "cpu"}},
}
COMMAND = ["echo", "rate: 12.5"]


@dataclass(frozen=True)
class Project:
    """A directory in which `snakemake --profile local` works."""

    directory: Path

    def campaign(
        self,
        name: str,
        cells: int,
        *,
        configurations: int = _CONFIGURATIONS,
        repetitions: int = 1,
        lease_per: str = "configuration",
        workload: str = "nothing",
        system: str = "benchmark",
    ) -> Path:
        """Write a campaign and return its file. `cells` is a multiple of the configurations times the four precisions."""
        batches = cells // (configurations * len(_PRECISIONS))
        if batches * configurations * len(_PRECISIONS) != cells:
            raise ValueError(f"{cells} cells are no multiple of {configurations} configurations x {len(_PRECISIONS)}")
        return self.write(
            f"campaigns/{name}.yaml",
            {
                "name": name,
                "system": system,
                "configurations": [
                    {
                        "device": "cpu-rank",
                        **(
                            {"hosts": list(range(1, 11)), "devices_per_host": list(range(1, configurations // 10 + 1))}
                            if configurations > 1
                            else {"devices_per_host": 1}
                        ),
                    }
                ],
                "axes": {"workload": workload, "batch": list(range(1, batches + 1)), "precision": _PRECISIONS},
                "protocol": {"repetitions": repetitions, "compositions": 1, "lease_per": lease_per},
            },
        )

    def system(self, name: str, **keys: object) -> None:
        """Write a system with other values for these keys. Its machine lock is its own, so that a benchmark never waits."""
        lock = str(self.directory / "machine.lock")
        self.write(f"systems/{name}.yaml", {**_SYSTEM, "machine_lock": lock, "name": name, **keys})

    def command(self, name: str, command: Sequence[str], run_s: float | None = None) -> None:
        """Write a workload that runs a command."""
        parsers = [{"metric": "throughput_per_s", "regex": r"rate: (\S+)"}]
        document = {
            "name": name,
            "kind": "command",
            "command": list(command),
            "precisions": _PRECISIONS,
            "run_s": run_s,
        }
        self.write(f"workloads/{name}.yaml", {**document, "parsers": parsers})

    def run(self, *command: str) -> Took:
        """Run a command in the directory of the project."""
        return run_timed(command, self.directory, self.environment)

    def snakemake(self, campaign: Path, *arguments: str) -> Took:
        """Run `snakemake --profile local` on a campaign."""
        return self.run("snakemake", "--profile", "local", "--config", f"campaign={campaign}", "--", *arguments)

    def dry_run(self, campaign: Path) -> Took:
        """Run `snakemake -n`."""
        return self.run("snakemake", "--profile", "local", "-n", "--config", f"campaign={campaign}")

    @property
    def environment(self) -> Mapping[str, str]:
        inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        path = f"{Path(sys.executable).parent}{os.pathsep}{inherited['PATH']}"
        return {**inherited, "PATH": path}

    def write(self, name: str, document: Mapping[str, object]) -> Path:
        """Write a YAML document into the project and return its file."""
        path = self.directory / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(yaml.safe_dump(document, sort_keys=False))
        return path

    @classmethod
    def at(cls, directory: Path) -> Project:
        """Make a project of an empty directory."""
        for name in _LINKED:
            (directory / name).symlink_to(ROOT / name)
        project = cls(directory)
        project.system("benchmark")
        project.command("nothing", COMMAND)
        return project


@contextmanager
def temporary_project() -> Iterator[Project]:
    """Yield a project, and delete it afterwards."""
    with TemporaryDirectory(prefix="campaign-benchmark-") as directory:
        yield Project.at(Path(directory))
