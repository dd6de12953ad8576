"""The workflow as others use it: as a module, with its own config file, from elsewhere, and what Snakemake can say of it."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from pathlib import Path

import pytest
import yaml

from campaign.common.paths import ROOT, SNAKEFILE
from tests.warm_start import run
from tests.workflow.checkout_twin import TIME_OUT_S, Project, until

DATA = Path(__file__).parents[1] / "data"
GOLDEN = Path(__file__).parents[1] / "golden" / "commands.txt"
SYSTEM = {
    "name": "bench",
    "launcher": "local",
    "fabric": {"kind": "simulated"},
    "hosts": [{"name": "host1", "devices": [{"kind": "gpu", "model": "cpu-rank", "count": 2}]}],
    "pool": [{"kind": "gpu", "model": "cpu-rank", "count": 1}],
    "devices": {"cpu-rank": {"runs_on": "cpu"}},
}
WORKLOAD = {"name": "model", "kind": "synthetic", "precisions": ["fp32"], "real_time": False}
CAMPAIGN = {
    "name": "small",
    "system": "bench",
    "configurations": [{"devices_per_host": 1, "attach": ["local", "fabric"]}],
    "axes": {"workload": "model", "batch": 1},
    "protocol": {"repetitions": 2, "compositions": 1},
}
CONDA = {
    "platform": "linux-64",
    "conda_version": "24.7.1",
    "conda_prefix": "/opt/conda",
    "get": {"channel_priority": "strict"},
}
"""What Snakemake asks of a conda; here there is none."""
OUTER = """
module one:
    snakefile: "{snakefile}"
    config: {{"campaign": "config/campaign.yaml"}}

module two:
    snakefile: "{snakefile}"
    config: {{"campaign": "config/other.yaml", "results": "them"}}
    prefix: "of others"

use rule * from one as one_*

use rule * from two as two_*

use rule report from one as one_report with:
    message: "Write the page of one"

rule both:
    default_target: True
    input: rules.one_all.input, rules.one_tables.output.runs_csv, rules.two_tables.output.runs_csv
    output: "sizes.txt"
    shell: "wc -c {{input:q}} > {{output:q}}"
"""


def write_project(directory: Path) -> Path:
    """A directory with two small campaigns and nothing of the checkout."""
    files = {
        "campaign.yaml": CAMPAIGN,
        "other.yaml": {**CAMPAIGN, "name": "other", "axes": {"workload": "model", "batch": 2}},
        "systems/bench.yaml": SYSTEM | {"machine_lock": str(directory / "machine.lock")},
        "workloads/model.yaml": WORKLOAD,
    }
    for name, document in files.items():
        path = directory / "config" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(yaml.safe_dump(document, sort_keys=False))
    return directory


def snakemake(directory: Path, *arguments: str, path: str = "", expect: int = 0) -> str:
    """What Snakemake printed."""
    environment = {**os.environ, "PATH": f"{path}{os.environ['PATH']}"}
    code, said = run(["snakemake", *arguments], directory, environment, 300)
    assert code == expect, said
    return said


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two campaigns as two modules of one DAG, measured in a directory with a space in its name."""
    directory = write_project(tmp_path_factory.mktemp("of two") / "a project")
    (directory / "Snakefile").write_text(OUTER.format(snakefile=SNAKEFILE))
    (directory / "said.txt").write_text(snakemake(directory, "-c2", "--scheduler", "campaign"))
    return directory


def test_two_campaigns_are_modules_of_one_dag_and_a_rule_of_theirs_can_be_changed(measured: Path) -> None:
    assert "4 measured, 0 failed" in (measured / "results" / "small" / "summary.txt").read_text()
    assert (measured / "of others" / "them" / "other" / "tables" / "cells.csv").is_file()
    assert "Write the page of one" in (measured / "said.txt").read_text()
    assert "results/small/summary.txt" in (measured / "sizes.txt").read_text()


def test_the_reports_of_snakemake_show_results_by_category(measured: Path) -> None:
    snakemake(measured, "--report", "report.html")
    page = (measured / "report.html").read_text()
    for shown in ("Figures", "Report", "results/small/figures/composition_times.svg"):
        assert shown in page
    assert "left out because" not in page  # a figure without anything to show is no file
    assert "results/small/manifests/1x1-local.c1.json" in page  # a lease with its run time


def test_ctrl_c_ends_the_leases_of_a_module_in_good_order(project: Project) -> None:
    project.workload("logged", sleep_s=20.0)
    project.campaign(batch=[1, 2, 3], lease_per="cell")
    module = f'module one:\n    snakefile: "{SNAKEFILE}"\n    config: {{"campaign": "campaigns/c.yaml"}}\n'
    (project.directory / "Snakefile").write_text(f"{module}\nuse rule * from one as one_*\n")
    process = project.start_command("snakemake", "-c2", "--scheduler", "campaign", "one_measured")
    until(project.starts, TIME_OUT_S, project.said)
    for _ in range(2):
        os.killpg(process.pid, signal.SIGINT)
        time.sleep(0.2)
    assert process.wait(TIME_OUT_S) != 0
    project.await_quiet()
    assert "stopped and released" in project.said()
    assert "Traceback" not in project.said()
    assert (len(project.starts()), project.held()) == (1, {})


@pytest.mark.parametrize("option", ["--rulegraph", "--dag"])
def test_graphs_need_no_number_of_cores(measured: Path, option: str) -> None:
    said = snakemake(measured, option)
    assert "digraph snakemake_dag" in said
    assert "one_figures" in said


def test_containerize_needs_no_number_of_cores(measured: Path, tmp_path: Path) -> None:
    conda = tmp_path / "conda"
    conda.write_text(f"#!/bin/sh\necho '{json.dumps(CONDA)}'\n")
    conda.chmod(0o755)
    said = snakemake(measured, "--containerize", path=f"{tmp_path}{os.pathsep}")
    assert "FROM condaforge/miniforge3" in said
    assert "snakemake>=" in said


def test_a_campaign_file_is_a_configfile_from_elsewhere_and_commands_are_shown(tmp_path: Path) -> None:
    """`snakemake -p` prints commands that can be pasted; those of this test are kept in tests/golden/commands.txt."""
    write_project(tmp_path / "else where")
    arguments = ["-s", str(SNAKEFILE), "-d", "else where", "--configfile", "else where/config/campaign.yaml"]
    said = snakemake(tmp_path, *arguments, "-c1", "-n", "-p")
    assert (
        said.count(
            "note: --scheduler ilp does not start leases in the order of the plan; use 'snakemake --profile local'"
        )
        == 1
    )
    assert not (tmp_path / "else where" / "results").exists()
    commands = re.findall(r"^Shell command: ((?!None).*)$", said, re.MULTILINE)
    shown = "".join(f"{plain(command)}\n" for command in sorted(commands, key=lambda each: plain(each)))
    if os.environ.get("REFRESH_GOLDEN"):
        GOLDEN.write_text(shown)
    assert shown == GOLDEN.read_text(), f"if this is meant: REFRESH_GOLDEN=1 pytest {__file__}"


def test_config_yaml_is_read_by_snakemake_and_not_by_campaign_run(tmp_path: Path) -> None:
    write_project(tmp_path)
    (tmp_path / "config" / "config.yaml").write_text("campaign: config/other.yaml\nresults: them\n")
    arguments = ["-s", str(SNAKEFILE), "-n", "-c1"]
    assert "them/other/report.html" in snakemake(tmp_path, *arguments)
    assert "them/small/report.html" in snakemake(tmp_path, *arguments, "--config", "campaign=config/campaign.yaml")
    (tmp_path / "config" / "config.yaml").write_text("samples: samples.tsv\n")
    assert "--config samples: there is no such key" in snakemake(tmp_path, *arguments, expect=1)
    code, said = run(["campaign", "run", "config/campaign.yaml", "--dry-run"], tmp_path, dict(os.environ), 120)
    assert code == 0, said
    assert "2 cells, 4 runs" in said


def test_the_slurm_profile_launches_in_slurm_whatever_config_file_is_given(tmp_path: Path) -> None:
    write_project(tmp_path)
    (tmp_path / "slurm").symlink_to(ROOT / "slurm")
    arguments = ["-s", str(SNAKEFILE), "--profile", "slurm", "--configfile", "config/campaign.yaml"]
    assert re.search(
        r"partition +limit .*\n1x1-fabric .* default +00:40:00 +gpu:3 ", snakemake(tmp_path, *arguments, "-n")
    )
    (tmp_path / "local").symlink_to(ROOT / "local")
    said = snakemake(tmp_path, *arguments[:2], "--profile", "local", "-n")
    assert len(said) < 3000  # Snakemake's own list of jobs and reasons takes four times as much
    assert re.search(r" without a record, in \d+ leases\n.*Cost of the hosts .*\n1x1-local .*\ntotal ", said, re.DOTALL)


@pytest.mark.parametrize(
    ("options", "refusal"),
    [
        ("--default-resources slurm_account=abc", "error: --default-resources slurm_account: the campaign requests "),
        ("--default-resources tmpdir=/tmp", "error: --default-resources replaces the default resources of the profile"),
        (
            "--set-resources measure:slurm_partition=wide",
            "error: --set-resources measure:slurm_partition: the campaign ",
        ),
    ],
)
def test_resources_of_allocations_are_refused_in_one_line(tmp_path: Path, options: str, refusal: str) -> None:
    write_project(tmp_path)
    profile = ["-s", str(SNAKEFILE), "--profile", str(ROOT / "profiles" / "slurm"), "-n"]
    said = snakemake(tmp_path, *profile, *options.split(), expect=1)
    assert refusal in said
    assert "Traceback" not in said


EXECUTOR = """
from snakemake_interface_executor_plugins.executors.remote import RemoteExecutor
from snakemake_interface_executor_plugins.settings import CommonSettings

common_settings = CommonSettings(non_local_exec=True, implies_no_shared_fs=False, job_deploy_sources=False)

class Executor(RemoteExecutor):
    def run_job(self, job): raise SystemExit("a job was submitted")
    async def check_active_jobs(self, active_jobs): yield
    def cancel_jobs(self, active_jobs): pass
"""
"""A plugin that submits Snakemake's own jobs, as that for Slurm does."""


def test_an_executor_that_submits_jobs_is_refused(tmp_path: Path) -> None:
    write_project(tmp_path)
    plugin = tmp_path / "plugins" / "snakemake_executor_plugin_remote"
    plugin.mkdir(parents=True)
    (plugin / "__init__.py").write_text(EXECUTOR)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(plugin.parent), str(ROOT / "workflow")])}
    profile = ["-s", str(SNAKEFILE), "--profile", str(ROOT / "profiles" / "slurm"), "--executor", "remote"]
    code, said = run(["snakemake", *profile], tmp_path, environment, 120)
    assert code == 1
    assert "error: --executor cannot be used, because the campaign requests allocations itself" in said
    assert "submitted" not in said


def test_an_archive_is_reported_by_its_command(tmp_path: Path) -> None:
    archive = tmp_path / "an archive.zip"
    archive.write_bytes((DATA / "archives" / "made-up.zip").read_bytes())
    arguments = ["-s", str(SNAKEFILE), "-n", "-p", "--config", f"archive={archive.name}", "where=batch >= 2"]
    command = "report 'an archive.zip' --where 'batch >= 2' --output 'results/archives/an archive/report.html'"
    assert command in snakemake(tmp_path, *arguments)


def plain(command: str) -> str:
    """A command without what differs from machine to machine."""
    python = re.escape(sys.executable)
    command = re.sub(rf"^'?{python}'? -P -m campaign\.cli\b", "campaign", command)
    command = re.sub(r"\S*/campaign-plan-\w+/", "STAND-IN/", command)
    return command.replace(str(ROOT), "CHECKOUT").replace(sys.executable, "python")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("--configfile", "config/campaign.yaml", "--config", "baseline=1x1-local"),
            "config baseline: the value differs from ",
        ),
        (("--config", "axes=1"), "--config axes: this key belongs in a campaign file"),
        (("--configfile", "config/campaign.yaml", "--config", "campaign=config/other.yaml"), "is a campaign as well"),
    ],
    ids=["changed", "no file", "two campaigns"],
)
def test_keys_of_a_campaign_come_from_its_file_alone(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    said = snakemake(write_project(tmp_path), "-s", str(SNAKEFILE), "-n", *arguments, expect=1)
    assert f"{message}" in said
    assert "Traceback" not in said
