"""Job tables of dry runs: a job of `measure` is a lease. Kept in tests/golden/job_tables.txt."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import yaml

from campaign.common.paths import ROOT, SNAKEFILE
from tests.workflow.test_as_module import CAMPAIGN, SYSTEM, WORKLOAD, snakemake, write_project

GOLDEN = Path(__file__).parents[1] / "golden" / "job_tables.txt"
CASES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "a lease for each workload": ({"protocol": {"lease_per": "workload"}}, []),
    "a lease for each cell": ({"protocol": {"lease_per": "cell"}}, []),
    "two systems": ({"systems": ["bench", "other"]}, []),
    "Slurm": ({}, ["--profile", str(ROOT / "profiles" / "slurm")]),
}


def test_a_dry_run_counts_leases(tmp_path: Path) -> None:
    readme = re.search(r"```yaml campaign\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert readme
    project = write_project(tmp_path)
    (project / "config" / "systems" / "other.yaml").write_text(yaml.safe_dump({**SYSTEM, "name": "other"}))
    (project / "config" / "workloads" / "second.yaml").write_text(yaml.safe_dump({**WORKLOAD, "name": "second"}))
    (project / "config" / "campaign.yaml").write_text(readme[1])
    tables = [f"README\n{job_table(project)}"]
    for name, (keys, options) in CASES.items():
        protocol = {**CAMPAIGN["protocol"], "compositions": 2, **keys.get("protocol", {})}
        axes = {"workload": ["model", "second"], "batch": [1, 2]}
        document = {**CAMPAIGN, "axes": axes, **keys, "protocol": protocol}
        if "systems" in document:
            del document["system"]
        (project / "config" / "campaign.yaml").write_text(yaml.safe_dump(document, sort_keys=False))
        tables.append(f"{name}\n{job_table(project, *options)}")
    shown = "\n".join(tables)
    if os.environ.get("REFRESH_GOLDEN"):
        GOLDEN.write_text(shown)
    assert shown == GOLDEN.read_text(), f"if this is meant: REFRESH_GOLDEN=1 pytest {__file__}"


def job_table(project: Path, *options: str) -> str:
    said = snakemake(project, "-s", str(SNAKEFILE), "-n", "--quiet", "rules", "host", *options)
    found = re.search(r"^job +count\n.*?^total .*?\n", said, re.MULTILINE | re.DOTALL)
    assert found, said
    return found[0]
