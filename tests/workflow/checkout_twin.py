"""A project in a temporary directory: the checkout's own rules and scripts, a system, campaigns and results of its own."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from campaign.common.paths import Results
from campaign.report.write import draw_figures, render_report
from campaign.run.local_submitter import PROCESS_NAME as DRIVER
from campaign.spec.record import Record, RecordStore
from tests.warm_start import Started, run, start

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("workflow", "scripts", "reports", "envs", "local", "slurm", "config")
TIME_OUT_S = 120.0

MEASURED = "sleep {sleep_s}; echo rate: 10"


@dataclass(frozen=True)
class Process:
    """A process that the project started, whatever became of its parents. kind: its part in a campaign."""

    pid: int
    kind: str


@dataclass(frozen=True)
class Start:
    """One line of starts.log: a run that was started. run: `<cell id>.<repetition>`."""

    lease: str
    run: str
    time_s: float


class Project:
    """One directory in which `snakemake` works as in a checkout; nothing of it is shared with other tests."""

    def __init__(self, directory: Path, *, copied: Sequence[str] = ()) -> None:
        self.directory = directory
        self.results_root = directory / "results"
        self.campaigns = directory / "campaigns"
        self.home = directory / "home"
        self.temporary = directory / "tmp"
        for folder in (self.campaigns / "systems", self.campaigns / "workloads", self.home, self.temporary):
            folder.mkdir(parents=True)
        for room in ROOMS:
            if room in copied:
                shutil.copytree(ROOT / room, directory / room)
            else:
                (directory / room).symlink_to(ROOT / room)
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("XDG_", "MPL", "SNAKEMAKE"))},
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            # The code under test, also where another checkout is installed.
            "PYTHONPATH": str((directory if "workflow" in copied else ROOT) / "workflow"),
            "HOME": str(self.home),
            "TMPDIR": str(self.temporary),
            "PROJECT_UNDER_TEST": str(directory),
            "STARTS": str(directory / "starts.log"),
        }
        self._started: list[Started] = []
        self.workload("logged")
        self.system()

    def write(self, path: str, document: Any) -> Path:
        target = self.campaigns / path
        if target.parent.name == "systems":  # no other test waits for this one
            document = {"machine_lock": str(self.temporary / "machine.lock"), **document}
        target.write_text(yaml.safe_dump(document, sort_keys=False))
        return target

    def system(self, name: str = "bench", *, pool: int = 2, hosts: int = 2, slurm: Any = None, **fabric: Any) -> Path:
        """A system with a simulated fabric; `fabric`: its options."""
        document = {
            "name": name,
            "launcher": "local",
            "fabric": {"kind": "simulated", **fabric},
            "hosts": [{"name": f"host[1-{hosts}]", "devices": [{"kind": "gpu", "model": "cpu-rank", "count": 2}]}],
            "pool": [{"kind": "gpu", "model": "cpu-rank", "count": pool}],
            "devices": {"cpu-rank": {"runs_on": "cpu"}},
        }
        return self.write(f"systems/{name}.yaml", document | ({"slurm": slurm} if slurm else {}))

    def workload(self, name: str, *, sleep_s: float = 0.05, body: str | None = None) -> Path:
        """A command that writes down every start of it, and then does `body`."""
        body = body or MEASURED.format(sleep_s=sleep_s)
        return self.write(
            f"workloads/{name}.yaml",
            {
                "name": name,
                "kind": "command",
                "command": ["sh", "-c", f'echo "$CAMPAIGN_RUN $(date +%s.%N)" >> "$STARTS"; {body}'],
                "precisions": ["fp32"],
                "parsers": [{"metric": "throughput_per_s", "regex": r"rate: (\S+)"}],
            },
        )

    def synthetic(self, name: str, **keys: Any) -> Path:
        return self.write(
            f"workloads/{name}.yaml",
            {"name": name, "kind": "synthetic", "precisions": ["fp32"], "real_time": False, **keys},
        )

    def campaign(
        self,
        name: str = "c",
        *,
        attach: Sequence[str] = ("local",),
        devices: Sequence[int] = (1,),
        hosts: Sequence[int] = (1,),
        workload: Any = "logged",
        batch: Any = 1,
        system: str = "bench",
        exclude: Any = None,
        **protocol: Any,
    ) -> Path:
        document = {
            "name": name,
            "system": system,
            "configurations": [{"hosts": list(hosts), "devices_per_host": list(devices), "attach": list(attach)}],
            "axes": {"workload": workload, "batch": batch},
            # One composition, unwatched: tests of more ask for more.
            "protocol": {"repetitions": 1, "compositions": 1, "telemetry_s": None, **protocol},
        }
        return self.write(f"{name}.yaml", document | ({"exclude": exclude} if exclude else {}))

    def command(self, *arguments: str, campaign: str = "c", profile: str = "local", **config: str) -> list[str]:
        given = {"campaign": f"campaigns/{campaign}.yaml", "results": str(self.results_root), **config}
        pairs = [f"{key}={value}" for key, value in given.items()]
        return ["snakemake", "--profile", profile, *arguments, "--config", *pairs]

    def start(self, *arguments: str, **keys: str) -> Started:
        """Snakemake in the background, in a process group of its own, as a terminal would start it."""
        return self.start_command(*self.command(*arguments, **keys))

    def start_command(self, *command: str) -> Started:
        """Any command in the same way."""
        with (self.directory / "snakemake.log").open("a") as log:
            started = start(list(command), self.directory, self.environment, log.fileno())
        self._started.append(started)
        return started

    def run(self, *arguments: str, expect: int | None = 0, time_out_s: float = TIME_OUT_S, **keys: str) -> str:
        """Snakemake from start to end; gives all that it said."""
        return self._run(self.command(*arguments, **keys), expect, time_out_s)

    def run_campaign(self, *arguments: str, expect: int = 0) -> str:
        """The command `campaign` from start to end; gives all that it said."""
        return self._run(["campaign", *arguments], expect, TIME_OUT_S)

    def _run(self, command: list[str], expect: int | None, time_out_s: float) -> str:
        code, said = run(command, self.directory, self.environment, time_out_s, self._started.append)
        assert expect in (code, None), said
        return said

    def page(self, *figures: str, campaign: str = "c") -> str:
        """The report of the tables, of all figures with these alone: drawing takes longer than all else."""
        scripts, results = self.temporary / "scripts", self.results(campaign)
        shutil.rmtree(scripts, ignore_errors=True)
        (scripts / "figures").mkdir(parents=True)
        for name in figures:
            (scripts / "figures" / f"{name}.py").symlink_to(ROOT / "scripts" / "figures" / f"{name}.py")
        draw_figures(results.tables, results.figures, scripts)
        render_report(results.tables, results.figures, results.report_file, scripts)
        return results.report_file.read_text()

    def measure(self, *arguments: str, **keys: Any) -> str:
        """Only the measuring part of the DAG: what most of these tests are about."""
        return self.run("--until", "measure", *arguments, **keys)

    def measure_leases(self, campaign: str = "c") -> str:
        """Measure all leases by their commands, one after the other; return what these printed.

        Snakemake and a new interpreter for each lease take most of the time of a small campaign.
        """
        self.run_campaign("plan", f"campaigns/{campaign}.yaml", f"--results={self.results_root}", "--write")
        return "".join(
            self.run_campaign("measure", str(lease)) for lease in sorted(self.results(campaign).lease_plans.iterdir())
        )

    def write_tables(self, campaign: str = "c") -> str:
        """Measure all leases as `measure_leases` does, and collect the tables; return what the commands printed."""
        said = self.measure_leases(campaign)
        return said + self.run_campaign("collect", str(self.results(campaign).lease_plans.with_name("plan.json")))

    def said(self) -> str:
        return (self.directory / "snakemake.log").read_text()

    def results(self, campaign: str = "c") -> Results:
        return Results(self.results_root, campaign)

    def records(self, campaign: str = "c") -> list[Record]:
        return list(RecordStore(self.results(campaign).directory))

    def record_files(self, campaign: str = "c") -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in self.results(campaign).directory.glob("records/*/[0-9a-f]*.json")}

    def leases(self, campaign: str = "c") -> list[dict[str, Any]]:
        """Documents of all uses of leases, in the order of their requests."""
        documents = [json.loads(path.read_text()) for path in self.results(campaign).leases.glob("*.json")]
        return sorted(documents, key=lambda document: document["requested_s"])

    def starts(self) -> list[Start]:
        path = self.directory / "starts.log"
        lines = path.read_text().splitlines() if path.exists() else []
        found = []
        for line in lines:
            mark, time_s = line.split()
            _, lease, run = mark.split("/")
            found.append(Start(lease, run, float(time_s)))
        return found

    def started(self) -> Counter[str]:
        """How often each run was started."""
        return Counter(start.run for start in self.starts())

    def held(self, system: str = "bench") -> dict[str, Any]:
        """Leases and devices that are taken, as the simulated fabric knows them."""
        path = self.results_root / ".systems" / system / "simulated.json"
        if not path.exists():
            return {}
        state = json.loads(path.read_text())
        devices = {name: slot for name, slot in state["devices"].items() if slot["lease"] is not None}
        return {**state["leases"], **devices}

    def processes(self) -> list[Process]:
        """Everything alive that descends from this project, also when its parents are dead."""
        mark = f"PROJECT_UNDER_TEST={self.directory}".encode()
        # A forked process keeps the variables of the one that it was forked from, as far as others can see.
        own = {process.pid for process in self._started if process.poll() is None}
        sessions = {process.pid for process in self._started}
        found = []
        for entry in os.scandir("/proc"):
            if not entry.name.isdigit() or int(entry.name) == os.getpid():
                continue
            try:
                variables = Path(entry.path, "environ").read_bytes().split(b"\0")
                arguments = Path(entry.path, "cmdline").read_bytes().decode()
                name = Path(entry.path, "comm").read_text().strip()
                session = os.getsid(int(entry.name))
            except OSError:
                continue
            if int(entry.name) in own:
                found.append(Process(int(entry.name), "snakemake"))
            elif mark in variables:
                kind = "driver" if name == DRIVER else _kind(arguments, variables)
                found.append(Process(int(entry.name), kind))
            elif session in sessions and arguments:  # forked by a `campaign measure` that was started without Snakemake
                found.append(Process(int(entry.name), "measure"))
        return found

    def pids(self, *kinds: str) -> list[int]:
        return [process.pid for process in self.processes() if process.kind in kinds]

    def kill(self, *kinds: str, number: int = signal.SIGKILL) -> int:
        """Signal every process of these kinds (of all kinds when none is named); gives how many."""
        hit = 0
        for process in self.processes():
            if not kinds or process.kind in kinds:
                try:
                    os.kill(process.pid, number)
                    hit += 1
                except ProcessLookupError:
                    continue
        return hit

    def await_quiet(self, seconds: float = 30.0) -> None:
        """Wait until no process of the project is left."""
        until(lambda: not self.processes(), seconds, lambda: f"still alive: {self.processes()}")


def _kind(arguments: str, variables: list[bytes]) -> str:
    if any(variable.startswith(b"CAMPAIGN_RUN=") for variable in variables):
        return "run"
    for part, kind in (
        ("submitit.core._submit", "driver"),
        ("campaign.cli\0measure", "measure"),
        ("bin/campaign\0measure", "measure"),
        ("bin/snakemake", "snakemake"),
    ):
        if part in arguments:
            return kind
    return "other"


def until(condition: Callable[[], Any], seconds: float, told: Callable[[], str] = lambda: "it did not happen") -> None:
    """Wait for a condition; the test fails with `told` when it does not come true."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, told()
        time.sleep(0.1)  # a condition may look at all processes
