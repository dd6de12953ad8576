"""Runs that nothing measured tells of take what the model of a step says, where it knows the program and the devices."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from campaign.config.resolve import load_campaign
from campaign.config.system_file import Links
from campaign.documents.cell import Cell
from campaign.paths import ROOT
from campaign.plan.cost.predicted_times import predicted_run
from campaign.plan.dag import read_plan
from campaign.plan.matrix import expand
from campaign.plan.request import PlanRequest
from tests import campaign_files

REPLAYED = ROOT / "config" / "campaigns" / "falcon-predicted.yaml"


def longer(cell: Cell, steps: int) -> Cell:
    return replace(cell, settings=replace(cell.settings, warmup_steps=0, measured_steps=steps))


def test_a_replay_takes_its_steps_in_the_time_of_the_emulated_machine() -> None:
    campaign = load_campaign(REPLAYED)
    (part,) = campaign.parts
    cell = expand(campaign).cells[0]
    short, long = (
        predicted_run(part.system, part.workloads[cell.workload], longer(cell, steps)) for steps in (10**6, 2 * 10**6)
    )
    assert short is not None
    assert long is not None
    assert math.exp(long[0] - short[0]) == pytest.approx(2, rel=0.01)
    assert short[1] < 0.2
    assert part.system.emulation is not None
    faster = part.system.model_copy(update={"emulation": part.system.emulation.model_copy(update={"dilation": 1.0})})
    # Latencies of this machine are not slowed down.
    unslowed = predicted_run(faster, part.workloads[cell.workload], longer(cell, 10**6))
    assert unslowed is not None
    assert short[0] - unslowed[0] == pytest.approx(math.log(part.system.emulation.time_dilation), abs=0.2)


def test_a_program_of_unknown_inside_and_a_device_of_unknown_pace_are_unknown(tmp_path: Path) -> None:
    campaign = campaign_files.load(tmp_path)
    (part,) = campaign.parts
    assert {predicted_run(part.system, part.workloads[c.workload], c) for c in expand(campaign).cells} == {None}
    study = load_campaign(ROOT / "config" / "campaigns" / "remote-study.yaml")
    (part,) = study.parts
    assert {predicted_run(part.system, part.workloads[c.workload], c) for c in expand(study).cells} == {None}


def test_devices_that_no_known_link_joins_are_unknown() -> None:
    campaign = load_campaign(REPLAYED)
    (part,) = campaign.parts
    cell = next(cell for cell in expand(campaign).cells if cell.configuration.ranks > 1)
    without = part.system.model_copy(update={"links": Links(), "parameters": {}})
    assert predicted_run(part.system, part.workloads[cell.workload], cell) is not None
    assert predicted_run(without, part.workloads[cell.workload], cell) is None


def test_a_plan_says_what_is_predicted(tmp_path: Path) -> None:
    plan = read_plan(PlanRequest(REPLAYED, tmp_path))
    assert {lease.expected.basis for lease in plan.leases} == {"predicted by the model of a step"}
    assert not plan.forecast.unknown.runs
    runs = plan.forecast.total.parts["runs"]
    assert runs.low_s is not None
    assert 0 < runs.low_s < (runs.expected_s or 0)
