"""What `train` costs beside a loop that is written by hand: a step of it, and the time until the first step."""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from campaign.run.local_launcher import LocalLauncher
from campaign.spec.hardware import ComposedHost, Composition, Device
from campaign.spec.system_file import SystemFile
from campaign.workloads.launcher import Launcher, StepLimits
from campaign.workloads.protocol import Step
from campaign.workloads.rank_launchers import find_free_port
from campaign.workloads.trainer.rank_interface import read_results
from tests.benchmarks.figure import Figure
from tests.benchmarks.project import ROOT, Project
from tests.benchmarks.side_by_side.forkserver import BLOCKS

_DEVICES = 4
_LAUNCHES = 7
_LAUNCH = 1.2  # of what a fork takes that does nothing else
_LAUNCHED = {"model": "bert-nano", "batch": 4, "warmup_steps": 5, "measured_steps": 2}


@dataclass(frozen=True)
class Compared:
    """A model whose steps are compared; a block is so short that both sides meet the same machine."""

    model: str
    batch: int
    steps: int
    blocks: int


COMPARED = (Compared("bert-nano", 4, 2, 400), Compared("resnet50w16", 4, 1, 300), Compared("mobilenetv2", 1, 1, 100))


def train(project: Project) -> Iterable[Figure]:
    """Steps of `train` beside a bare loop in the same process, with 1 and 2 ranks; from a launch to the first measured step."""
    with launched(project.directory) as launcher:
        for ranks in (1, 2):
            for each in COMPARED:
                ratios = compared(launcher, each, ranks, project.directory / f"{each.model}-{ranks}")
                name = f"train, {each.model} x {ranks}: step time to that of a bare loop"
                yield Figure(name, statistics.median(ratios), "", 1.01, 1.0, "bare loop")
    yield from launches(project.directory)


@contextmanager
def launched(directory: Path) -> Iterator[Launcher]:
    """A launcher on one host of this machine."""
    devices = tuple(Device(f"gpu{n}", "gpu", "cpu-rank", None, f"host1/gpu{n}", True, "host1") for n in range(_DEVICES))
    document = {
        "name": "bench",
        "launcher": "local",
        "fabric": {"kind": "static"},
        "hosts": [{"name": "host1"}],
        "devices": {"cpu-rank": {"runs_on": "cpu"}},
    }
    composition = Composition((ComposedHost("host1", 8, 64.0, devices),))
    launcher = LocalLauncher(SystemFile.model_validate(document), composition)
    try:
        yield launcher
    finally:
        launcher.close()


def run(
    launcher: Launcher, specification: Mapping[str, object], ranks: int, directory: Path, parent: str, **more: str
) -> float:
    """Run a training to its end; gives when it was launched, in Unix seconds."""
    directory.mkdir(parents=True)
    spec, log = directory / "spec.json", directory / "log"
    spec.write_text(json.dumps(specification))
    environment = {"CAMPAIGN_SPEC": str(spec), "CAMPAIGN_OUT": str(directory), **more}
    step = Step((sys.executable, "-m", "campaign.workloads.trainer.rank"), environment, {"host1": ranks}, True, parent)
    ended = launcher.run(step, f"bench/{directory.name}", log, directory, StepLimits(600.0))
    if ended.codes != (0,) * ranks:
        raise RuntimeError(f"{directory}: exit codes {ended.codes}\n{log.read_text(errors='replace')[-3000:]}")
    return ended.started


def compared(launcher: Launcher, each: Compared, ranks: int, directory: Path) -> list[float]:
    """For each block of each rank, the median of our step times to that of the bare ones beside it."""
    specification = {"model": each.model, "batch": each.batch, "warmup_steps": 5, "measured_steps": each.steps}
    run(launcher, specification, ranks, directory, "tests.benchmarks.side_by_side", **{BLOCKS: str(each.blocks)})
    found = []
    for rank in range(ranks):
        blocks = json.loads((directory / f"blocks{rank}.json").read_text())
        pairs = zip(blocks["ours"], blocks["bare"], strict=True)
        found += [statistics.median(ours) / statistics.median(bare) for ours, bare in pairs]
    return found


def launches(directory: Path) -> Iterator[Figure]:
    """From a launch to the first measured step, phase by phase, beside a fork that does the same by hand."""
    program = subprocess.Popen(
        [sys.executable, "-m", "tests.benchmarks.bare"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert program.stdin
    assert program.stdout
    program.stdout.readline()
    with launched(directory) as launcher:
        run(
            launcher, _LAUNCHED, 1, directory / "first", "campaign.workloads.trainer"
        )  # torch is loaded for the first one only
        for ranks in (1, 2, 4):
            ours, bare = [], []
            for number in range(_LAUNCHES):
                place = directory / f"launch-{ranks}-{number}"
                ours.append(phases_s(launcher, ranks, place))
                program.stdin.write(f"{place / 'spec.json'} {ranks} {find_free_port()}\n")
                program.stdin.flush()
                bare.append(json.loads(program.stdout.readline()))
            yield from _phases(ranks, ours, bare)
    program.stdin.close()
    program.wait()


def phases_s(launcher: Launcher, ranks: int, directory: Path) -> dict[str, float]:
    """Phases of the slowest rank; `all`: from the launch to the first measured step; `start`: what is in no phase."""
    launched_s = run(launcher, _LAUNCHED, ranks, directory, "campaign.workloads.trainer")
    results = [result for result in read_results(directory, ranks) if result is not None]
    first_s = max(result.window_started or math.nan for result in results) - launched_s
    phases = {phase: max(result.phases_s[phase] for result in results) for phase in results[0].phases_s}
    return {"all": first_s, "start": first_s - max(sum(result.phases_s.values()) for result in results), **phases}


def _phases(ranks: int, ours: list[dict[str, float]], bare: list[dict[str, float]]) -> Iterator[Figure]:
    for phase in ours[0]:
        took_ms = 1e3 * min(each[phase] for each in ours)
        floor = [1e3 * each[phase] for each in bare if phase in each]
        floor_ms = min(floor) if floor else None
        yield Figure(
            f"train x {ranks}, launch to the first measured step" if phase == "all" else f"  {phase}",
            took_ms,
            "ms",
            round(_LAUNCH * floor_ms) if floor_ms and phase == "all" else math.inf,
            floor_ms,
            "fork and bare loop",
        )
