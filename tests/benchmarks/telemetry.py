"""The figures of telemetry: what sampling takes of a core, and what it costs a run that is too short to be sampled."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from campaign.observe.telemetry.run_telemetry import Telemetry
from tests.benchmarks.figure import Figure
from tests.benchmarks.project import Project
from tests.unit.run.launch.compositions import composition

_SAMPLES = {1.0: 12, 0.1: 60}
_KEPT = 50


def telemetry(project: Project) -> Iterable[Figure]:
    """The processor time of a sampler, by its interval, and of keeping nothing."""
    for interval_s, count in _SAMPLES.items():
        share = _sampled(project.directory, interval_s, count)
        yield Figure(f"sampler every {interval_s:g} s, of a core", share, "%", 1.0)
    yield Figure("telemetry of a run without samples", _keep_ms(project.directory), "ms", 5)


def _sampled(directory: Path, interval_s: float, count: int) -> float:
    """Share of a core between the first sample and the last of so many, in percent."""
    out = directory / f"sampled-{interval_s:g}.jsonl"
    argv = [
        sys.executable,
        "-m",
        "campaign.observe.telemetry.sampler",
        "--host",
        "here",
        "--interval",
        f"{interval_s:g}",
    ]
    with subprocess.Popen([*argv, "--out", str(out)]) as sampler:
        time.sleep(interval_s * (count + 1) + 0.5)
        sampler.terminate()
    own = [tick for line in out.read_bytes().splitlines()[1:] if "sampler" in (tick := json.loads(line))["read"]]
    used_s = [tick["read"]["sampler"]["cpu_used_s"] for tick in (own[0], own[-1])]
    passed_s = own[-1]["monotonic"] - own[0]["monotonic"]
    return 100 * (used_s[1] - used_s[0]) / passed_s


class _Nobody:
    """A launcher that starts nothing."""

    @contextmanager
    def sidecar(self, argv: object, directory: Path) -> Iterator[tuple[str, ...]]:
        (directory / "host1.jsonl").write_text("")
        yield ("host1",)


def _keep_ms(directory: Path) -> float:
    with Telemetry(_Nobody(), composition((4, 0)), 1.0, directory / "nothing") as kept:  # type: ignore[arg-type]
        started = time.perf_counter()
        for _ in range(_KEPT):
            now = time.time()
            kept.store_run(now - 0.02, now, None, None, directory / "none.parquet")
        return (time.perf_counter() - started) / _KEPT * 1e3
