"""The shipped campaign of inference in small: a model is served on one emulated device and on two."""

from __future__ import annotations

from typing import Any

import yaml

from campaign.launch.emulation_plan import NOT_CROSSED
from campaign.paths import ROOT
from tests.workflow.checkout_twin import Project


def test_a_model_is_served_on_one_device_and_on_two_at_their_pace(project: Project) -> None:
    campaign: dict[str, Any] = yaml.safe_load((ROOT / "config" / "campaigns" / "inference.yaml").read_text())
    service: dict[str, Any] = yaml.safe_load((ROOT / "config" / "workloads" / "gpt-service.yaml").read_text())
    service |= {"name": "small", "load": {"duration_s": 2, "warmup_s": 0.2}}
    project.write("workloads/small.yaml", service)
    campaign |= {
        "name": "c",
        "configurations": [{"devices_per_host": [1, 2]}],
        "axes": {"workload": "small", "options": {"rate_per_s": [4], "output_tokens": [4]}},
        "exclude": [],
        "protocol": {"repetitions": 1, "compositions": 1},
    }
    project.write("c.yaml", campaign)
    project.run("--until", "measure")
    records = {record.cell.configuration: record for record in project.records()}
    assert records.keys() == {"1x1-local", "1x2-local"}
    # An iteration is at least that of 128 tokens: 84 MFLOP with the head and layers of 128, at 1 GFLOP/s, shared by two devices.
    for name, iteration_ms in (("1x1-local", 167), ("1x2-local", 83)):
        record = records[name]
        assert record.status == "ok", record.failure
        assert record.metrics["tpot_ms_p50"] > 0.97 * iteration_ms
        assert record.metrics["prompt_tokens_mean"] == 128
        assert record.metrics["output_tokens_mean"] == 4
        assert record.metrics["server_fed_sequences"] >= record.metrics["server_iterations"] > 0
        assert record.metrics["errors"] == 0
        assert NOT_CROSSED not in record.flags
