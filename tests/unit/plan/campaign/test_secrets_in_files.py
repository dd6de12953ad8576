"""Secrets in files are refused with the remedy, and the remedy keeps their values out of everything that is written."""

from __future__ import annotations

import json

import pytest

from campaign.common.errors import ConfigError, LaunchError
from campaign.plan.campaign.resolve import campaign_from_document
from campaign.plan.matrix import expand_matrix
from campaign.run.preflight import refuse_unmeasurable
from campaign.spec.cell import Cell
from campaign.spec.fields import Variables
from campaign.workloads.command_template import resolve_variables
from tests.campaign_files import load, one_run

TOKEN = "hf_" + "aB3" * 11
TAKEN = {"HF_TOKEN": {"from": "environment"}}


@pytest.mark.parametrize(
    ("changes", "place", "remedy"),
    [
        ({"workloads.program.environment": {"HF_TOKEN": "swordfish"}}, "environment.HF_TOKEN", "{HF_TOKEN: {from: environ"),
        ({"workloads.program.precision_environment": {"fp32": {"HF_TOKEN": "swordfish"}}}, "fp32.HF_TOKEN", "{HF_TOKEN: {"),
        ({"workloads.program.command": ["serve", "--token=swordfish"]}, "command.1", "{NAME: {from: environment}}"),
        ({"workloads.program.command": ["serve", "--token", "swordfish"]}, "command.2", "{NAME: {from: environment}}"),
        ({"workloads.program.command": ["sh", "-c", f"login {TOKEN}"]}, "command.2", "a token of Hugging Face"),
        ({"workloads.program.options.api_key": "swordfish"}, "options.api_key", "{NAME: {from: environment}}"),
        ({"workloads.program.description": f"use {TOKEN}"}, "description", "{NAME: {from: environment}}"),
        ({"campaign.axes.options": {"size": [TOKEN]}}, "axes.options.size.0", "{NAME: {from: environment}}"),
        ({"system.slurm": {"environment": {"WANDB_API_KEY": "swordfish"}}}, "environment.WANDB_API_KEY", "{WANDB_API_KEY: {"),
        ({"system.notes": ["https://me:swordfish@example.org"]}, "notes.0", "a password in an address"),
    ],
)  # fmt: skip
def test_a_secret_in_a_file_is_refused_with_the_remedy(tmp_path, changes, place, remedy):
    if "campaign.axes.options" in changes:
        changes = {**changes, "campaign.axes.workload": ["program"]}

    with pytest.raises(ConfigError) as refused:
        load(tmp_path, {"campaign.axes.workload": ["program"], **changes})

    assert place in str(refused.value)
    assert remedy in str(refused.value)
    assert "looks like a secret" in str(refused.value)
    assert "swordfish" not in str(refused.value)
    assert TOKEN not in str(refused.value)


def test_the_remedy_is_valid_and_its_value_is_nowhere(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "swordfish")
    changes = {"campaign.axes.workload": ["program"], "workloads.program.environment": {**TAKEN, "SIZE": "{size}"}}
    campaign = load(tmp_path, changes)
    cell: Cell = expand_matrix(campaign).cells[0]
    step = campaign.workloads["program"].step(one_run(tmp_path / "run", cell))

    assert step.environment == {"HF_TOKEN": "swordfish", "SIZE": "8"}
    stored = json.dumps(campaign.to_document())
    assert "swordfish" not in stored
    assert campaign_from_document(json.loads(stored)).workloads == campaign.workloads


def test_a_variable_that_is_not_set_is_told_before_anything_is_composed(tmp_path, monkeypatch):
    monkeypatch.delenv("HF_TOKEN", raising=False)
    changes = {
        "campaign.axes.workload": ["program"],
        "workloads.program.environment": TAKEN,
        "system.slurm": {"environment": {"OTHER": {"from": "environment"}}},
    }

    with pytest.raises(
        ConfigError, match=r"environment\.HF_TOKEN: the environment variable HF_TOKEN is not set; export"
    ) as refused:
        refuse_unmeasurable(load(tmp_path, changes))

    assert "slurm.environment.OTHER: the environment variable OTHER is not set" in str(refused.value)


def test_a_variable_that_a_job_has_lost_is_no_failure_of_the_subject():
    said: Variables = {"HF_TOKEN_THAT_IS_NOT_SET": {"from": "environment"}, "A": "1"}

    with pytest.raises(
        LaunchError, match="HF_TOKEN_THAT_IS_NOT_SET: this variable is not set in the environment of the driver"
    ):
        resolve_variables(said, "workload x: environment")


@pytest.mark.parametrize("value", [{"from": "file"}, {}, {"from": "environment", "name": "X"}, 5])
def test_nothing_else_stands_for_a_value(tmp_path, value):
    with pytest.raises(ConfigError, match=r"environment\.HF_TOKEN"):
        load(tmp_path, {"campaign.axes.workload": ["program"], "workloads.program.environment": {"HF_TOKEN": value}})
