"""Three published studies, predicted: how long that takes, how far it is from public rows, and from replays of real steps."""

from __future__ import annotations

import json
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
    errors = Errors.of(held_out(list(rows())))
    yield Figure("study, mean error of public rows that were not used", 100 * errors.mean, "%", 8.0)
    yield Figure("study, bias of them", 100 * abs(errors.bias), "%", 2.0)
    if not all(map(shutil.which, ("ip", "tc"))):
        raise Skipped("links cannot be emulated here: ip and tc are missing")
    off = [100 * abs(each - 1) for each in replayed(project.directory / "results")]
    yield Figure(f"study, median difference of {len(off)} cells from their replay", median(off), "%", 3.0)


def replayed(results: Path) -> list[float]:
    """Throughput that is predicted of a replay over that of the replay, by cell."""
    found = []
    for name, where in REPLAYED.items():
        chosen = [str(ROOT / "config" / "campaigns" / f"{name}.yaml"), "--results", str(results), "--where", where]
        subprocess.run(["campaign", "run", *chosen, "--", "--quiet", "host", "reason"], check=True, stdout=sys.stderr)
        said = json.loads(_output(["campaign", "predict", *chosen, "--as-replay", "--no-report", "--format", "json"]))
        query = "select cell_id, mean from cells where n_ok > 0"
        measured = json.loads(_output(["campaign", "sql", query, str(results / name), "--format", "json"]))
        means = {row["cell_id"]: row["mean"] for row in measured}
        found += [
            each["throughput_per_s"] / means[each["cell_id"]] for each in said["cells"] if each["cell_id"] in means
        ]
    return found


def _output(command: list[str]) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
