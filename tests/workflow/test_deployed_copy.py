"""A copy as `snakedeploy deploy-workflow` makes it: config/, profiles/ and a Snakefile that uses the workflow as a module."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import venv
from pathlib import Path

import pytest
import yaml

from campaign.common.paths import ROOT, SNAKEFILE
from tests.workflow.test_as_module import snakemake, write_project

SNAKEFILE_OF_A_COPY = """
configfile: "config/config.yaml"


module composable_campaign:
    snakefile:
        "{snakefile}"
    config:
        config


use rule * from composable_campaign
"""


@pytest.fixture
def deployed(tmp_path: Path) -> Path:
    """The files that snakedeploy 0.17 copies and writes, with a small default campaign."""
    copy = tmp_path / "deployed"
    for name in ("config", "profiles"):
        shutil.copytree(ROOT / name, copy / name)
    write_project(copy)
    (copy / "workflow").mkdir()
    relative = os.path.relpath(SNAKEFILE, copy / "workflow")
    (copy / "workflow" / "Snakefile").write_text(SNAKEFILE_OF_A_COPY.format(snakefile=relative))
    return copy


def documented_flags() -> list[str]:
    catalog = yaml.safe_load((ROOT / ".snakemake-workflow-catalog.yml").read_text())
    return str(catalog["usage"]["mandatory-flags"]["flags"]).split()


def test_a_copy_measures_by_the_flags_of_the_catalog(deployed: Path) -> None:
    snakemake(deployed, *documented_flags(), "--until", "measured")
    assert len(list(deployed.glob("results/small/records/*/*.json"))) == 4
    assert re.search(r"^total +0$", snakemake(deployed, *documented_flags(), "--until", "measured"), re.MULTILINE)


def test_a_campaign_on_the_command_line_is_used_instead_of_the_one_in_the_config_file(deployed: Path) -> None:
    by_file = ["--configfile", "config/other.yaml"]
    for given in (by_file, ["--config", "campaign=config/other.yaml"]):
        assert "results/other/report.html" in snakemake(deployed, *documented_flags(), "-n", *given)
    said = snakemake(deployed, *documented_flags(), "-n", *by_file, "--config", "campaign=config/third.yaml", expect=1)
    assert "config/other.yaml is a campaign as well" in said


def test_snakemake_alone_lints_a_copy_and_says_what_to_install(deployed: Path, tmp_path: Path) -> None:
    """An environment in which only Snakemake and what it requires can be imported."""
    packages = tmp_path / "packages"
    packages.mkdir()
    for name in required("snakemake"):
        for path in files_of(name):
            if not (packages / path.name).exists():
                (packages / path.name).symlink_to(path)
    venv.create(tmp_path / "alone")
    python = tmp_path / "alone" / "bin" / "python"
    environment = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "PYTHONPATH": str(packages)}

    def alone(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [str(python), "-m", "snakemake", *arguments]
        return subprocess.run(command, cwd=deployed, env=environment, capture_output=True, text=True, check=False)

    linted = alone("--lint")
    assert linted.returncode == 0, linted.stderr
    assert "your workflow is in a good condition" in linted.stderr
    planned = alone(*documented_flags(), "-n")
    assert planned.returncode != 0
    assert "argument --scheduler: invalid choice: 'campaign'" in planned.stderr
    planned = alone("-n")
    assert planned.returncode == 1
    assert (
        "error: No module named 'click'; install the workflow's package into Snakemake's environment" in planned.stderr
    )
    assert "Traceback" not in planned.stderr


def required(name: str) -> set[str]:
    """A distribution and all that it requires here, without extras."""
    from importlib.metadata import PackageNotFoundError, requires

    from packaging.requirements import Requirement

    found, new = set[str](), {name}
    while new:
        found |= new
        after = set[str]()
        for each in new:
            try:
                wanted = map(Requirement, requires(each) or ())
            except PackageNotFoundError:
                continue
            after |= {one.name for one in wanted if one.marker is None or one.marker.evaluate({"extra": ""})}
        new = after - found
    return found


def files_of(name: str) -> set[Path]:
    """Top-level files and directories of an installed distribution."""
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        one = distribution(name)
    except PackageNotFoundError:
        return set()
    tops = {
        Path(str(path)).parts[0] for path in one.files or () if Path(str(path)).parts[0] not in ("..", "__pycache__")
    }
    return {Path(str(one.locate_file(top))) for top in tops}
