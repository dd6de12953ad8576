"""The campaigns that come with the project plan, and cover the points of the studies that they repeat."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from campaign.plan.campaign.resolve import Campaign, load_campaign
from campaign.plan.matrix import expand_matrix
from campaign.spec.cell import Cell
from tests.workflow.checkout_twin import ROOT

CAMPAIGNS = sorted(ROOT.glob("config/campaigns/*.yaml"))


def cells(name: str) -> tuple[Campaign, tuple[Cell, ...]]:
    campaign = load_campaign(ROOT / "config" / "campaigns" / f"{name}.yaml")
    return campaign, expand_matrix(campaign).cells


def shapes(found: tuple[Cell, ...], **values: object) -> Iterator[Cell]:
    return (cell for cell in found if all(cell.axes()[name] == value for name, value in values.items()))


@pytest.mark.parametrize("path", CAMPAIGNS, ids=lambda path: path.stem)
def test_every_shipped_campaign_has_cells_and_a_baseline(path: Path) -> None:
    campaign, found = cells(path.stem)
    assert found
    if len(campaign.systems) == 1:
        assert campaign.file.baseline in {cell.configuration.name for cell in found}
        assert campaign.impossible == ()
    warnings = [*campaign.warnings, *expand_matrix(campaign).warnings]
    assert [each for each in warnings if "there is no file" not in each] == []


def test_both_systems_of_one_campaign_have_devices_on_one_and_on_several_hosts() -> None:
    campaign, found = cells("faster-grace")
    assert list(campaign.systems) == ["grace", "faster"]
    shapes = {(c.configuration.system, c.configuration.hosts, c.configuration.ranks) for c in found}
    assert shapes >= {("grace", 2, 4), ("grace", 4, 8), ("faster", 1, 4), ("faster", 1, 8)}
    assert {cell.workload for cell in found} == {"resnet50", "bert-large"}


def test_the_falcon_study_has_its_five_configurations_models_batches_and_options() -> None:
    _, found = cells("falcon-study")
    assert {cell.configuration.ranks for cell in found} == {8}
    assert {(cell.workload, cell.batch_global) for cell in found} == {
        ("mobilenetv2", 64), ("resnet50", 128), ("yolov5l", 88), ("bert-base", 96), ("bert-large", 48),
    }  # fmt: skip
    for name in ("localGPUs", "hybridGPUs", "falconGPUs"):
        at = list(shapes(found, configuration=name, precision="fp16-o2", parallel="ddp", input="resident"))
        assert len(at) == 5, name
    for name in ("localNVMe", "falconNVMe"):
        assert {cell.options["input"] for cell in shapes(found, configuration=name)} == {"storage"}
    for name in ("localGPUs", "falconGPUs"):
        options = {
            (cell.precision, cell.options["parallel"])
            for cell in shapes(found, configuration=name, workload="bert-large")
        }
        assert options >= {("fp32", "dp"), ("fp32", "ddp"), ("fp16-o2", "ddp"), ("fp16-o2", "fsdp")}


def test_the_faster_study_has_its_scaling_its_spread_its_parts_and_its_precisions() -> None:
    campaign, found = cells("faster-study")
    assert campaign.protocol.repetitions == 5
    scaling = {c.configuration.ranks for c in shapes(found, hosts=1, device="a100-40gb", precision="tf32", batch=4)}
    assert scaling >= {1, 2, 4, 8, 12, 14, 16, 20}
    for device in ("a100-40gb", "t4"):
        spread = {(c.configuration.hosts, c.configuration.devices_used) for c in shapes(found, device=device, ranks=4)}
        assert spread >= {(1, 4), (2, 2), (4, 1)}
    parts = {c.configuration.devices_per_host for c in shapes(found, hosts=1, devices_used=4)}
    assert parts >= {4, 8, 12, 16}
    for ranks in (1, 12):
        at = {(c.batch, c.precision) for c in shapes(found, workload="bert-large", ranks=ranks, device="a100-40gb")}
        assert at >= {(batch, precision) for batch in (4, 8, 16, 32) for precision in ("tf32", "fp16", "fp16-o2")}


def test_the_faster_study_plans_with_the_programs_of_the_document_too(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "config", tmp_path / "config")
    path = tmp_path / "config" / "campaigns" / "faster-study.yaml"
    text = path.read_text(encoding="utf-8")
    turned = re.sub(r"^  workload: .*\n  # workload:", "  workload:", text, flags=re.MULTILINE)
    assert turned != text
    path.write_text(turned, encoding="utf-8")
    campaign = load_campaign(path)
    (faster,) = campaign.references
    assert {workload for model in faster.models.values() for workload in model.same} == set(campaign.workloads)
    batches = {(cell.workload, cell.batch) for cell in expand_matrix(campaign).cells}
    assert batches == {("tf-resnet50", 32), ("pt-resnet50", 32), *(("bert-large-squad", n) for n in (4, 8, 16, 32))}


def test_the_study_of_remote_devices_has_native_virtual_mixed_and_remote_ones() -> None:
    _, found = cells("remote-study")
    local = {c.configuration.name: c.configuration.local_devices_per_host for c in found}
    assert local == {"N4": 4, "L4": 4, "L2R2": 2, "R4": 0, "part": 0}
