"""Three published studies, predicted: how long that takes, how far it is from public rows, and from replays of real steps."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from statistics import median

from docs.predicted_studies import CAMPAIGNS
from tests.benchmarks.figure import Figure, Skipped
from tests.benchmarks.project import ROOT, Project
from tests.public_rows import Errors, held_out, rows
from tests.throughput_ratios import RatioErrors, of_results, of_rows

REPLAYED = {
    "bitfusion-predicted": "batch == 32",
    "falcon-predicted": "workload in ['bert-large-v100', 'resnet50-v100'] and batch in [6, 16] and storage == 'local' and "
    "precision == 'fp16-o2' and (batch == 6 or parallel == 'ddp') and not (workload == 'bert-large-v100' and batch == 16)",
    "faster-predicted": "precision == 'tf32' and ranks == 4 and devices_used == devices_per_host",
}
"""About twenty cells: DDP, DP and FSDP, local, hybrid and fabric devices, one to four hosts."""


def study(project: Project) -> Iterable[Figure]:
    """Predictions of the published studies, public rows, and about twenty replayed cells (ten minutes; links need root)."""
    files = [str(ROOT / "config" / "campaigns" / f"{name}.yaml") for name in CAMPAIGNS]
    started_s = time.perf_counter()
    subprocess.run(["campaign", "published", "--predict", *files], check=True, stdout=sys.stderr)
    yield Figure("study, claims of three studies predicted", time.perf_counter() - started_s, "s", 60.0)
    known = list(rows())
    errors = Errors.of(held_out(known))
    yield Figure("study, mean error of public rows that were not used", 100 * errors.mean, "%", 8.0)
    yield Figure("study, bias of them", 100 * abs(errors.bias), "%", 2.0)
    yield from _of_ratios("of them", of_rows(known))
    if not all(map(shutil.which, ("ip", "tc"))):
        raise Skipped("links cannot be emulated here: ip and tc are missing")
    programs = replayed(project.directory / "results")
    off = [100 * abs(each - 1) for program in programs for each in program]
    yield Figure(f"study, median difference of {len(off)} cells from their replay", median(off), "%", 3.0)
    yield from _of_ratios("of replays", RatioErrors.of(programs))


def _of_ratios(of: str, errors: RatioErrors) -> Iterable[Figure]:
    count = f"study, {len(errors.off)} ratios {of} between compositions"
    yield Figure(f"{count}: median error", errors.pct(0.5), "%", 5.0)
    yield Figure(f"{count}: 90th percentile", errors.pct(0.9), "%", 15.0)


def replayed(results: Path) -> list[list[float]]:
    """Throughput that is predicted of a replay over that of the replay, by cell of each program."""
    found = []
    for name, where in REPLAYED.items():
        path = ROOT / "config" / "campaigns" / f"{name}.yaml"
        chosen = [str(path), "--results", str(results), "--where", where]
        subprocess.run(["campaign", "run", *chosen, "--", "--quiet", "host", "reason"], check=True, stdout=sys.stderr)
        found += of_results(path, results / name, where).values()
    return found
