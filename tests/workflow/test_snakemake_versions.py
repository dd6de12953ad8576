"""Versions of Snakemake: its internals that the workflow uses, and a campaign with the oldest one."""

from __future__ import annotations

import importlib
import inspect
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from campaign.common.paths import ROOT, SNAKEFILE
from tests.workflow.test_as_module import write_project

PAGE = ROOT / "docs" / "reference" / "snakemake-internals.md"
ATTRIBUTES = re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`.*?) \|", PAGE.read_text(), re.MULTILINE)))
INTERNALS = [
    *(f"snakemake.workflow.Workflow.{name}" for name in ATTRIBUTES),
    *re.findall(r"`(snakemake\.[\w.]+)`", PAGE.read_text()),
]


def oldest() -> str:
    dependencies = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    (minor,) = (found[1] for each in dependencies if (found := re.match(r"snakemake>=([\d.]+),", each)))
    assert f'min_version("{minor}")' in SNAKEFILE.read_text()
    return f"{minor}.0"


@pytest.mark.parametrize("name", INTERNALS)
def test_an_internal_of_snakemake_exists(name: str) -> None:
    importlib.import_module("snakemake.api")  # its modules import each other
    module, _, attribute = name.rpartition(".")
    try:
        owner = importlib.import_module(module)
    except ModuleNotFoundError:
        package, _, of_class = module.rpartition(".")
        owner = getattr(importlib.import_module(package), of_class)
    # Attributes that only instances have are in the text of the class.
    assert hasattr(owner, attribute) or re.search(rf"\b(self\.)?{attribute}:? ", inspect.getsource(owner))


def test_every_attribute_of_the_workflow_that_rules_use_is_listed() -> None:
    files = [*(ROOT / "workflow" / "rules").glob("*.smk"), ROOT / "workflow/campaign/spec/snakemake_config.py"]
    used = {name for file in files for name in re.findall(r"\bworkflow\.(\w+)\b(?!/)", file.read_text())}
    assert used == set(ATTRIBUTES)


@pytest.mark.slow
def test_a_campaign_is_planned_and_measured_by_the_oldest_version(tmp_path: Path) -> None:
    """With the installed one all other tests do."""
    packages = tmp_path / "packages"
    # What it requires is there; newer versions have another package in the place of appdirs.
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(packages)]
    done = subprocess.run([*pip, f"snakemake=={oldest()}", "appdirs"], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"snakemake=={oldest()} cannot be installed: {done.stderr.strip()[-200:]}")
    directory = write_project(tmp_path / "project")
    path = os.pathsep.join([str(packages), str(ROOT / "workflow")])
    profile = str(ROOT / "profiles" / "local")

    def snakemake(*arguments: str) -> str:
        command = [sys.executable, "-m", "snakemake", "-s", str(SNAKEFILE), "--profile", profile, *arguments]
        environment = {**os.environ, "PYTHONPATH": path}
        done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    assert oldest() in snakemake("--version")
    assert re.search(r"^measure +2$", snakemake("-n", "--resources", "hosts=1"), re.MULTILINE)
    snakemake("--until", "tables")
    assert len(list(directory.glob("results/small/records/*/*.json"))) == 4
    assert not re.search(r"^measure ", snakemake("-n", "--until", "tables"), re.MULTILINE)
