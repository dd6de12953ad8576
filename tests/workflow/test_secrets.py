"""A secret that a program needs and prints stands in no file but the program's own log."""

from __future__ import annotations

import os
from pathlib import Path

from tests.campaign_files import write_files
from tests.warm_start import run

ROOT = Path(__file__).resolve().parents[2]
# One is known by its name alone, as nothing in its shape tells.
SECRETS = {"HF_TOKEN": "correct-horse", "LICENCE": "battery.staple"}


def test_what_a_failing_program_prints_of_its_secrets_is_masked(tmp_path: Path) -> None:
    for name in ("workflow", "scripts", "reports", "local", "config"):
        (tmp_path / name).symlink_to(ROOT / name)
    write_files(
        tmp_path / "mine",
        {
            "campaign.configurations": [{"devices_per_host": 1}],
            "campaign.axes": {"workload": ["program"], "batch": [1], "precision": ["fp32"]},
            "workloads.program.command": ["sh", "-c", 'echo "RuntimeError: 401 for $HF_TOKEN, $LICENCE"; exit 1'],
            "workloads.program.environment": {name: {"from": "environment"} for name in SECRETS},
        },
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "workflow"), "TMPDIR": str(tmp_path)}
    command = ["snakemake", "--profile", "local", "--config", "campaign=mine/campaign.yaml"]
    code, said = run(command, tmp_path, {**environment, **SECRETS}, 120)

    assert code == 0, said
    results = tmp_path / "results"
    assert "401 for ***, ***" in next(results.glob("small/records/*/*.json")).read_text()
    written = {path for path in results.rglob("*") if path.is_file() and not path.is_symlink()}
    assert len(written) > 10
    shown = {path for path in written for secret in SECRETS.values() if secret.encode() in path.read_bytes()}
    assert {path.relative_to(results).parts[1] for path in shown} == {"logs"}
    assert not any(secret in said for secret in SECRETS.values())
