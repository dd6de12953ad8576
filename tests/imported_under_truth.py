"""Campaigns whose truth is known, as logs that `campaign import` reads: statements are made of what an import makes of them."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import yaml
from click.testing import CliRunner

from campaign.analysis.tables.io import Tables
from campaign.cli.main import main
from campaign.report.sources import load_tables
from tests.planted_campaigns import Truth, noise


def write_logs(truth: Truth, random: np.random.Generator, directory: Path) -> None:
    """A log a run, in the directory of its lease; runs take turns over the compositions of their configuration."""
    composed, times = truth.composed(), truth.times()[0]
    for i, k in enumerate(composed):
        leases = truth.lease * noise(truth.of_leases, random, k)
        for n in range(truth.runs):
            log = leases[n % k] + truth.run * noise(truth.noise, random, 1)[0]
            slow = 0.7 if random.random() < truth.slow else 1.0
            minute = (n % k) * 500 + i * 30 + n // k
            path = directory / f"c{i + 1}" / f"lease{n % k + 1}" / f"solver-r{n // k + 1}.log"
            path.parent.mkdir(parents=True, exist_ok=True)
            at = f"2022-05-{1 + minute // 1440:02} {minute // 60 % 24:02}:{minute % 60:02}"
            path.write_text(f"started {at}:00\nrate {100 * slow / times[i] / np.exp(log):.6f}\nended {at}:30\n")


def described(configurations: int, name: str) -> dict[str, Any]:
    """The map of these logs."""
    return {
        "name": name,
        "system": {
            "name": "planted",
            "hosts": [{"name": "n[1-4]", "cores": 8, "memory_gib": 64, "devices": [{"model": "a100", "count": 12}]}],
        },
        "configurations": [{"name": f"c{n}", "devices_per_host": n} for n in range(1, configurations + 1)],
        "workloads": {"solver": {"parsers": [{"metric": "throughput_per_s", "regex": "rate (.*)"}]}},
        "logs": [
            {
                "path": "{configuration}/{lease}/{workload}-r{repetition}.log",
                "values": {"batch": 1, "precision": "fp32"},
                "times": {"start": "^started (.*)", "end": "^ended (.*)"},
            }
        ],
        "protocol": {"warmup_steps": 1, "measured_steps": 3},
    }


def imported(truth: Truth, random: np.random.Generator, name: str, place: Path) -> Path:
    """Logs and map below a directory, imported into `place`/results; gives the campaign file."""
    logs, described_by = place / name, place / f"{name}.yaml"
    write_logs(truth, random, logs)
    described_by.write_text(yaml.safe_dump(described(truth.configurations, name)))
    words = ["import", str(logs), "--map", str(described_by), "--results", str(place / "results")]
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 0, result.output
    return place / "results" / name / "config" / "campaign.yaml"


def tables(truth: Truth, random: np.random.Generator, name: str = "planted") -> Tables:
    """Of one campaign, as `tests.planted_campaigns.tables` makes it from records."""
    with TemporaryDirectory(prefix="imported-") as place:
        file = imported(truth, random, name, Path(place))
        return load_tables(file, Path(place) / "results")
