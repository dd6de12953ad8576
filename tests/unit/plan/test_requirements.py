"""What a composition has to reach: which cells are tried for it, and what a run of them says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from campaign.plan.requirements import describe_shortfall, list_required_cells
from campaign.spec.campaign_file import Requirement
from campaign.spec.record import Failure
from campaign.workloads.protocol import Outcome
from tests.campaign_files import load, one_cell


def require(**keys: Any) -> Requirement:
    return Requirement.model_validate({"workload": "program", "metric": "gflops", **keys})


def test_all_cells_of_the_workload_on_the_configuration_are_tried(tmp_path: Path) -> None:
    limits = [
        {"workload": "program", "at_least": 1, "when": "devices == 2"},
        {"workload": "program", "at_most": 5, "when": "batch == 1 and precision == 'fp32'"},
    ]
    campaign = load(tmp_path, {"campaign.axes.workload": ["steps", "program"], "campaign.protocol.require": limits})
    found = {
        name: [(each.at_least, cell.batch, cell.precision) for each, cell in list_required_cells(campaign, name)]
        for name in ("1x1-local", "1x2-local")
    }
    assert found["1x1-local"] == [(None, 1, "fp32")]
    assert sorted(map(str, found["1x2-local"])) == sorted(
        map(str, [(1.0, 1, "fp32"), (None, 1, "fp32"), (1.0, 1, "bf16"), (1.0, 2, "fp32"), (1.0, 2, "bf16")])
    )
    assert list_required_cells(load(tmp_path / "none"), "1x1-local") == []


@pytest.mark.parametrize(
    ("keys", "value", "words"),
    [
        ({"at_least": 100}, 100.0, ""),
        ({"at_least": 100}, 99.9, "gflops is 99.9, but at least 100 is required"),
        ({"at_least": 60, "per_device": True}, 120.0, ""),
        ({"at_least": 60, "per_device": True}, 119.0, "gflops is 119, but at least 120 is required"),
        ({"at_most": 100}, 100.0, ""),
        ({"at_most": 100}, 100.1, "gflops is 100.1, but at most 100 is allowed"),
        ({"at_least": 0}, float("nan"), "gflops is nan, but at least 0 is required"),
        ({"at_most": 0}, float("nan"), "gflops is nan, but at most 0 is allowed"),
    ],
)
def test_a_value_reaches_its_limit_or_falls_short(keys: dict[str, Any], value: float, words: str) -> None:
    found = describe_shortfall(require(**keys), one_cell(workload="program"), Outcome("ok", metrics={"gflops": value}))
    assert found.endswith(words)
    assert bool(found) == bool(words)
    assert not found or found.startswith("protocol.require: c · program · batch 4 · fp32")


def test_the_rate_counts_where_no_metric_is_named() -> None:
    rate = Requirement(workload="program", at_least=10)
    assert describe_shortfall(rate, one_cell(), Outcome("ok", throughput_per_s=11.0)) == ""
    assert "throughput_per_s is 9" in describe_shortfall(rate, one_cell(), Outcome("ok", throughput_per_s=9.0))


def test_a_run_without_the_number_or_that_failed_falls_short() -> None:
    assert "reported no gflops; it reported loss" in describe_shortfall(
        require(at_least=0), one_cell(), Outcome("ok", metrics={"loss": 1})
    )
    failed = Outcome("oom_device", Failure(reason="the device ran out of memory"))
    assert "ended with oom_device (the device ran out of memory)" in describe_shortfall(
        require(at_most=1), one_cell(), failed
    )
