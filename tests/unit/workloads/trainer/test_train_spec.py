"""The specification: what it takes, what it refuses and how it says so; and that it needs no torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from campaign.common.errors import ConfigError
from campaign.workloads.trainer.model_catalog import (
    COMMON_OPTIONS,
    FAMILY_OPTIONS,
    MODELS,
    find_model_info,
    resolve_options,
)
from campaign.workloads.trainer.rank_interface import TrainSpec

WORKLOADS = Path(__file__).parents[4] / "config" / "workloads"


def test_spec_result_and_place_import_without_torch() -> None:
    program = (
        "import sys; sys.modules['torch'] = None\n"
        "import campaign.workloads.trainer.model_catalog, campaign.workloads.trainer.rank_interface, "
        "campaign.workloads.trainer.rank, campaign.workloads.failures\n"
        "print(len(campaign.workloads.trainer.model_catalog.MODELS))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.returncode) == (str(len(MODELS)), 0), done.stderr


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model": "resnet5"}, "did you mean resnet50"),
        ({"options": {"image_px": 64}}, "bert-nano has no option 'image_px'; its options are"),
        ({"options": {"seq_len": 513}}, "at most 512"),
        ({"options": {"seq_len": "64"}}, "must be a whole number, not '64'"),
        ({"options": {"seq_len": True}}, "must be a whole number, not True"),
        ({"options": {"compile": 1}}, "must be true or false, not 1"),
        ({"options": {"bucket_mib": True}}, "must be a number, not True"),
        ({"options": {"parallel": "single"}}, "one of ddp, dp, zero1, fsdp"),
        ({"options": {"accumulation": 3}, "batch": 4}, "batch 4 cannot be divided into 3 micro-steps"),
        ({"options": {"input": "disk"}}, "one of resident, h2d, storage"),
        ({"model": "cspn", "options": {"image_px": 100}}, "a multiple of 32"),
        ({"model": "gpt-nano", "options": {"seq_len": 1025}}, "at most 1024"),
        ({"options": {"input": "storage"}}, "needs storage_dir"),
        ({"batch": 0}, "greater than or equal to 1"),
        ({"precision": "int8"}, "'fp32', 'tf32', 'fp16', 'fp16-o2' or 'bf16'"),
        ({"steps": 3}, "Extra inputs are not permitted"),
        ({"model": "transformers:"}, "is not known"),
    ],
)
def test_what_is_not_valid_is_refused_with_what_is_allowed(changes: dict[str, object], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        TrainSpec.model_validate({"model": "bert-nano", "batch": 1, "measured_steps": 1, **changes})


def test_a_spec_survives_its_file_and_cannot_be_changed() -> None:
    spec = TrainSpec(
        model="bert-nano", batch=4, measured_steps=3, options={"learning_rate": 1}, storage_dir=Path("/data")
    )
    assert TrainSpec.model_validate_json(spec.model_dump_json()) == spec
    with pytest.raises(ValidationError):
        spec.batch = 8  # type: ignore[misc]


@given(name=st.sampled_from(sorted(MODELS)))
def test_defaults_are_valid_options_and_cover_every_option(name: str) -> None:
    info = MODELS[name]
    assert resolve_options(name, info.default_options) == dict(info.default_options)
    # The best memory format depends on the device, the size of a dataset on what a run reads.
    depending = {"channels_last", "dataset_mib"}
    assert set(info.default_options) == (set(FAMILY_OPTIONS[info.family]) | set(COMMON_OPTIONS)) - depending


def test_options_overlay_the_defaults() -> None:
    assert resolve_options("bert-nano", {"seq_len": 8})["seq_len"] == 8
    assert resolve_options("bert-nano", {})["seq_len"] == 64


@pytest.mark.parametrize("name", ["transformers:bert", "torchvision:resnet18"])
def test_foreign_models_are_named_by_package(name: str) -> None:
    info = find_model_info(name)
    assert (info.family, info.parameters) == (name.partition(":")[0], None)
    assert resolve_options(name, {}) == dict(info.default_options)


def test_a_foreign_package_that_is_not_supported_is_refused() -> None:
    with pytest.raises(ConfigError, match="transformers:NAME, torchvision:NAME"):
        find_model_info("timm:resnet18")


@pytest.mark.parametrize("name", sorted(MODELS))
def test_every_model_has_its_workload_file(name: str) -> None:
    document = yaml.safe_load((WORKLOADS / f"{name}.yaml").read_text())
    assert set(document) == {"name", "kind", "model", "description", "precisions", "options"}
    assert (document["name"], document["kind"], document["model"]) == (name, "train", name)
    for precision in document["precisions"]:
        TrainSpec(model=name, batch=1, measured_steps=1, precision=precision, options=document["options"])
