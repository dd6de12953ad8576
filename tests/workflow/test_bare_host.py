"""A host without a registry: torch and the packages of the extra `measure` are enough to measure a lease, and nothing is lost."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from packaging.requirements import Requirement

from campaign.cli.main import main
from campaign.common.paths import ROOT
from campaign.report.sources import load_tables
from tests import bare_environment

_EXTRA = [
    Requirement(each)
    for each in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["measure"]
]
_ABSENT = (
    "h11",
    "httpcore",
    "matplotlib",
    "numpy",
    "pandas",
    "pyarrow",
    "rich",
    "scipy",
    "snakemake",
    "submitit",
)
_FILES: dict[str, Any] = {
    "c.yaml": {
        "name": "c",
        "system": "bench",
        "configurations": [{"devices_per_host": [1, 2]}],
        "axes": {"workload": "nano", "batch": 2, "precision": "fp32"},
        "protocol": {"repetitions": 1, "compositions": 1, "warmup_steps": 1, "measured_steps": 150, "telemetry_s": 0.1},
    },
    "systems/bench.yaml": {
        "name": "bench",
        "fabric": {"kind": "static"},
        "hosts": [{"name": "host1", "cores": 4, "devices": [{"model": "cpu-rank", "count": 2}]}],
        "devices": {"cpu-rank": {"runs_on": "cpu"}},
    },
    "workloads/nano.yaml": {"name": "nano", "kind": "train", "model": "bert-nano", "precisions": ["fp32"]},
}


def run(*arguments: object) -> str:
    result = CliRunner().invoke(main, [str(each) for each in arguments])
    assert result.exit_code == 0, result.output
    return result.output


def test_a_lease_is_measured_with_torch_and_four_packages_and_its_records_come_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, away = tmp_path / "home", tmp_path / "away"
    for name, document in _FILES.items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(yaml.safe_dump(document))
    monkeypatch.chdir(home)
    run("plan", "c.yaml", "--write")
    here, there = sorted((home / "results/c/plan/leases").iterdir())

    python = bare_environment.make(tmp_path / "bare", ["torch", *(each.name for each in _EXTRA)])
    bare = {"PATH": f"{python.parent}{os.pathsep}/usr/bin:/bin", "HOME": str(away)}
    look = f"import importlib.util as u; print([n for n in {_ABSENT} if u.find_spec(n)])"
    found = subprocess.run([python, "-c", look], env=bare, capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n", "the environment is no bare one"
    away.mkdir()
    shutil.copy(there, away)
    command = [str(python.with_name("campaign")), "measure", there.name]
    done = subprocess.run(command, cwd=away, env=bare, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    (manifest,) = (away / "results/c/manifests").iterdir()
    assert json.loads(manifest.read_text())["missing"] == []

    run("measure", here)
    own = {path: path.read_bytes() for path in (home / "results/c").rglob("*") if path.is_file()}
    subprocess.run(["cp", "-rn", f"{away}/results/c/.", "results/c/"], check=True)  # as the page on such hosts says
    assert (
        own.items() <= {path: path.read_bytes() for path in (home / "results/c").rglob("*") if path.is_file()}.items()
    )
    run("verify", "results/c")
    assert "2 runs, 0 without a record" in run("plan", "c.yaml")
    tables = load_tables(home / "c.yaml")
    assert sorted(tables.runs["configuration"]) == ["1x1-local", "1x2-local"]
    assert set(tables.runs["status"]) == {"ok"}
    of_both = tables.telemetry.groupby("cell_id")["quantity"].nunique()
    assert len(of_both) == 2, "the samples of the host without pyarrow are in the table, too"
