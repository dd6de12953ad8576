"""Options of Snakemake hold for the campaign, or are refused in one sentence."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from snakemake.cli import get_argument_parser, parse_config

from campaign import __version__
from campaign.common.errors import ConfigError
from campaign.common.paths import ROOT
from campaign.spec.snakemake_config import (
    build_command_function,
    read_launcher,
    refuse_allocation_resources,
    restore_typed_texts,
)


def launcher_of_options(options: str) -> dict[str, str]:
    """Read the launcher from options as Snakemake parses them."""
    arguments = get_argument_parser().parse_args(options.split())
    resources = {"default_resources": arguments.default_resources, "overwrite_resources": arguments.set_resources}
    settings = SimpleNamespace(**resources)
    refuse_allocation_resources(settings)
    return read_launcher(settings)


def test_the_launcher_is_a_default_resource() -> None:
    assert launcher_of_options("") == {}
    assert launcher_of_options("--default-resources launcher=slurm") == {"launcher": "slurm"}
    assert launcher_of_options("--default-resources launcher=slurm tmpdir=/scratch") == {"launcher": "slurm"}
    assert launcher_of_options("--set-resources tables:my_own=3 measure:at_once=2") == {}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            "--default-resources slurm_account=abc",
            "--default-resources slurm_account: the campaign requests allocations",
        ),
        ("--default-resources launcher=slurm gres=x", "--default-resources gres: the campaign requests allocations"),
        ("--default-resources mem_mb=4000", "--default-resources replaces the default resources of the profile"),
        ("--default-resources", "--default-resources replaces the default resources of the profile"),
        ("--set-resources tables:slurm_partition=x", "--set-resources tables:slurm_partition: the campaign requests"),
        ("--set-resources one_measure:nodes=2", "--set-resources one_measure:nodes: the campaign requests"),
        ("--set-resources measure:runtime=90", "--set-resources measure:runtime: the campaign requests"),
    ],
)
def test_what_would_be_ignored_is_refused_in_one_sentence(options: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        launcher_of_options(options)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text", ["535_104", "010", "007", "1_0.5", "1e3", "nan", "True", "580", "driver-580.10", "a=b"]
)
def test_a_value_of_config_is_what_was_typed(text: str) -> None:
    """Snakemake reads 010 as 10."""
    entries = get_argument_parser().parse_args(["--config", f"version={text}", "where=batch == 1"]).config
    assert restore_typed_texts(parse_config(entries), entries) == {"version": text, "where": "batch == 1"}
    # A workflow that has this one as a module may give another value.
    assert restore_typed_texts({"version": 3}, entries) == {"version": 3}
    assert restore_typed_texts({"version": 3}, None) == {"version": 3}


@pytest.mark.parametrize("methods", [set(), {"conda"}])
def test_the_command_runs_this_package_whatever_path_finds(methods: set[str], tmp_path: Path) -> None:
    """With `--sdm conda`, the Python is that of the environment, which is the first on PATH and lacks the package."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\necho conda $PYTHONPATH\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    workflow = SimpleNamespace(deployment_settings=SimpleNamespace(deployment_method=methods))
    script = build_command_function(workflow).format() + "campaign --version"
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin"} | ({} if methods else {"PYTHONPATH": str(ROOT / "workflow")})
    done = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert __version__ in done.stdout
    assert done.stdout.startswith(f"conda {ROOT}/workflow\n") == bool(methods)
