"""What an NVIDIA GPU has to show: `make test-gpu`, a few minutes on one device. Skipped on hosts without one.

Everything here is tested elsewhere on CPUs or on a stand-in for NVML; these tests hold the same on the hardware.
"""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import torch
import torch.distributed as dist

from campaign.observe.links.spec import RankLinks
from campaign.observe.nvml import load_nvml
from campaign.observe.telemetry.sources import SamplerOptions
from campaign.observe.telemetry.sources.nvidia import create_probes
from campaign.workloads.rank_launchers import find_free_port
from campaign.workloads.trainer import parallel_strategies
from campaign.workloads.trainer.input_pipeline import make_feed
from campaign.workloads.trainer.models import build_model
from campaign.workloads.trainer.precision import set_matmul_precision
from campaign.workloads.trainer.rank_interface import RankResult, TrainSpec
from campaign.workloads.trainer.timed_steps import Training
from tests.unit.observe.telemetry.fake_nvml import FakeNvml, Gpu
from tests.unit.workloads.trainer.rank_driver import Driver
from tests.workflow.checkout_twin import Project

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.version.hip is not None,
        reason=f"torch {torch.__version__} sees no NVIDIA GPU on this host",
    ),
]
MIB = 2**20
BERT = {
    "model": "bert-nano",
    "batch": 8,
    "device": "cuda",
    "warmup_steps": 3,
    "measured_steps": 10,
    "options": {"seq_len": 64},
}


@pytest.fixture(scope="module")
def driver() -> Iterator[Driver]:
    driver = Driver()
    yield driver
    driver.close()


@pytest.fixture(scope="module")
def uuid() -> str:
    """UUID of the first device, in NVIDIA's spelling."""
    return f"GPU-{torch.cuda.get_device_properties(0).uuid}"


def run_rank(
    driver: Driver, directory: Path, variables: Mapping[str, str] = MappingProxyType({}), **changes: Any
) -> RankResult:
    (result,) = driver.run(directory, {**BERT, **changes}, patience_s=120, variables=variables).results
    assert result is not None
    return result


def used_mib() -> float:
    free, total = torch.cuda.mem_get_info(0)
    return (total - free) / MIB


@pytest.mark.parametrize("precision", ["fp32", "tf32", "fp16", "bf16"])
@pytest.mark.parametrize("model", ["bert-nano", "resnet50w16"])
def test_a_step_computes_in_the_precision_that_is_configured(
    driver: Driver, tmp_path: Path, model: str, precision: str
) -> None:
    options = {"seq_len": 64} if model == "bert-nano" else {"image_px": 64}
    result = run_rank(driver, tmp_path, model=model, options=options, precision=precision)
    assert (result.status, result.reason) == ("ok", "")
    assert result.precision == precision
    assert result.in_force["precision"] == precision
    assert result.in_force["cuda"] == torch.version.cuda
    assert {place.split(":")[0] for place in result.work_on} == {"cuda"}
    assert len(result.step_times_s) == 10
    assert sum(result.step_times_s) == pytest.approx(result.window_s, rel=0.1)
    assert result.device_memory_allocated_peak_bytes
    assert result.loss_last is not None


@pytest.fixture(scope="module")
def process_group() -> Iterator[None]:
    address = f"tcp://127.0.0.1:{find_free_port()}"
    dist.init_process_group("nccl", init_method=address, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def train(monkeypatch: pytest.MonkeyPatch, parallel: str) -> list[float]:
    """Losses of five steps on one device, in the named strategy."""
    monkeypatch.setattr(parallel_strategies, "choose_strategy_name", lambda *_: parallel)
    spec = TrainSpec.model_validate(
        {**BERT, "options": {"seq_len": 64, "parallel": "ddp" if parallel == "single" else parallel}}
    )
    set_matmul_precision("fp32")
    torch.manual_seed(spec.seed)
    device = torch.device("cuda", 0)
    trainable = build_model(spec.model, spec.resolve_options())
    trainable.to(device)
    feed, _ = make_feed(spec, trainable, 0, 1, device)
    training = Training(spec, trainable, feed, device, 1)
    return [training.run_step().item() for _ in range(5)]


@pytest.mark.usefixtures("process_group")
@pytest.mark.parametrize("parallel", ["ddp", "fsdp", "zero1"])
def test_a_strategy_on_one_rank_trains_as_a_single_device(monkeypatch: pytest.MonkeyPatch, parallel: str) -> None:
    alone = train(monkeypatch, "single")
    assert train(monkeypatch, parallel) == pytest.approx(alone, rel=1e-4)
    assert alone[-1] != alone[0]


def test_out_of_memory_is_classified_and_the_memory_is_free_afterwards(driver: Driver, tmp_path: Path) -> None:
    before_mib = used_mib()
    # The output of BERT's vocabulary alone, batch x 512 x 30522 numbers, is larger than the memory of any device.
    result = run_rank(driver, tmp_path, model="bert-base", batch=1 << 15, options={"seq_len": 512})
    assert result.status == "oom_device", (result.status, result.reason, result.evidence)
    assert "out of memory" in f"{result.reason} {result.evidence}".lower()
    deadline_s = time.monotonic() + 60
    while used_mib() > before_mib + 64 and time.monotonic() < deadline_s:
        time.sleep(0.2)
    assert used_mib() <= before_mib + 64
    assert run_rank(driver, tmp_path / "after").status == "ok"


def test_nvml_reports_what_the_stand_in_reports(uuid: str) -> None:
    nvml, problem = load_nvml()
    assert nvml is not None, problem
    options = SamplerOptions(interval_s=1.0)
    readings: dict[str, list[float]] = {}
    probes = create_probes(nvml, options)
    work = torch.randn(4096, 4096, device="cuda")
    for _ in range(3):
        for probe in probes:
            for part, quantity, value, *_ in probe.read():
                if part == f"gpu:{uuid}":
                    readings.setdefault(quantity, []).append(value)
        for _ in range(20):
            work = torch.nn.functional.normalize(work @ work)
        torch.cuda.synchronize()
        time.sleep(1.0)

    stand_in = create_probes(FakeNvml([Gpu("GPU-1")]), options)
    expected = {quantity for probe in stand_in for _ in range(2) for _, quantity, *_ in probe.read()}
    names = {re.sub(r"process_\d+", "process_N", name) for name in readings}
    # Further names would be quantities that no test knows the unit of.
    assert names <= expected | {"process_N_mib", "nvlink_sent_bytes", "nvlink_received_bytes"}
    total_mib = torch.cuda.get_device_properties(0).total_memory / MIB
    plausible = {
        "power_w": (5, 3000), "temperature_c": (5, 120), "utilisation_pct": (0, 100), "memory_access_pct": (0, 100),
        "clock_sm_mhz": (50, 5000), "clock_memory_mhz": (50, 20_000), "memory_used_mib": (1, 1.1 * total_mib),
        "pcie_generation": (1, 8), "pcie_width": (1, 16),
    }  # fmt: skip
    assert {"power_w", "temperature_c", "utilisation_pct", "memory_used_mib"} <= names
    for quantity, (low, high) in plausible.items():
        assert all(low <= value <= high for value in readings.get(quantity, [])), (quantity, readings[quantity])
    for counter in (name for name in names if name.endswith(("_j", "_bytes"))):
        assert readings[counter] == sorted(readings[counter]), counter
    if "energy_j" in readings:
        assert readings["energy_j"][-1] > readings["energy_j"][0]


def test_copies_between_host_and_device_have_the_rate_of_a_link(tmp_path: Path) -> None:
    spec = {
        "hosts": ["here"], "sizes_bytes": [1 << 12, 1 << 20, 1 << 26], "repeats": 5, "warmup": 2, "budget_s": 60, "device": "cuda",
        "time_out_s": 60,
    }  # fmt: skip
    path = tmp_path / "spec.json"
    path.write_text(json.dumps(spec))
    environment = {
        "RANK": "0",
        "WORLD_SIZE": "1",
        "LOCAL_RANK": "0",
        "CAMPAIGN_SPEC": str(path),
        "CAMPAIGN_OUT": str(tmp_path),
    }
    command = ["python", "-m", "campaign.observe.links.rank"]
    subprocess.run(
        ["env", *(f"{name}={value}" for name, value in environment.items()), *command], check=True, timeout=120
    )
    links = RankLinks.model_validate_json((tmp_path / "rank0.json").read_bytes())
    assert links.error == ""
    assert links.device_name == torch.cuda.get_device_name(0)
    for copies in (links.to_device, links.from_device):
        assert copies is not None
        rates = [copies.size_bytes / seconds / 1e9 for seconds in copies.times_s]
        assert all(0.5 < rate < 2000 for rate in rates), rates


def test_a_rank_is_bound_by_uuid(driver: Driver, tmp_path: Path, uuid: str) -> None:
    result = run_rank(driver, tmp_path / "own", {"CUDA_VISIBLE_DEVICES": uuid})
    assert result.status == "ok"
    assert f"GPU-{result.device_uuid}".replace("GPU-GPU-", "GPU-") == uuid
    other = run_rank(driver, tmp_path / "other", {"CUDA_VISIBLE_DEVICES": "GPU-00000000-0000-0000-0000-000000000000"})
    assert other.status != "ok"
    assert "device cuda" in f"{other.reason} {other.evidence}"


def test_a_lease_is_measured_on_the_device_by_the_local_launcher(tmp_path: Path, uuid: str) -> None:
    project = Project(tmp_path / "project")
    model = torch.cuda.get_device_name(0)
    project.write(
        "systems/bench.yaml",
        {
            "name": "bench",
            "launcher": "local",
            "fabric": {"kind": "static"},
            "hosts": [{"name": "host1", "devices": [{"kind": "gpu", "model": model, "count": 1}]}],
            "devices": {model: {"runs_on": "cuda"}},
        },
    )
    project.write(
        "workloads/nano.yaml", {"name": "nano", "kind": "train", "model": "bert-nano", "precisions": ["fp32", "bf16"]}
    )
    project.write(
        "c.yaml",
        {
            "name": "c", "system": "bench", "configurations": [{"devices_per_host": 1, "attach": "local"}],
            "axes": {"workload": "nano", "batch": [8], "precision": ["fp32", "bf16"]},
            "protocol": {"warmup_steps": 3, "measured_steps": 50, "repetitions": 2, "compositions": 1},
        },
    )  # fmt: skip
    project.run_campaign("run", "campaigns/c.yaml")
    records = project.records()
    assert [(record.status, record.failure) for record in records] == [("ok", None)] * 4
    for record in records:
        assert any(uuid.removeprefix("GPU-") in place for place in record.ran_on), record.ran_on
        assert record.in_force["precision"] == record.cell.precision
        assert record.throughput_per_s
        assert "device_power_mean_w" in record.metrics, record.metrics
