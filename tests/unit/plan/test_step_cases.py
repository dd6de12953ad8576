"""Cells of campaigns in the terms of the model of a step."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import yaml

from campaign.config.system_file import SystemFile
from campaign.documents.cell import Cell, Configuration
from campaign.model.parameters import DEFAULTS, sample
from campaign.model.simulation import simulate
from campaign.plan.step_cases import case_of, prior_of, topology_of
from campaign.workloads.command import CommandWorkload
from campaign.workloads.train import TrainWorkload


def system(**more: Any) -> SystemFile:
    document = {
        "name": "s",
        "fabric": {"kind": "simulated"},
        "hosts": [{"name": "host[1-2]", "cores": 16, "devices": [{"model": "a100-40gb", "count": 4}]}],
        "links": {"local": {"gb_per_s": 20}, "network": {"gb_per_s": 10, "latency_us": 20}},
        "storage": {"nvme": {"path": "/tmp", "gb_per_s": 3}},
        **more,
    }
    return SystemFile.model_validate(document)


def configuration(hosts: int = 1, each: int = 2, local: int = 2, device: str = "a100-40gb") -> Configuration:
    attach: Any = "local" if local == each else "fabric" if local == 0 else "hybrid"
    return Configuration("c", hosts, each, local, each, device, attach, "nvme")


def cell(at: Configuration, **options: Any) -> Cell:
    return Cell("id", at, "w", 8, "fp32", options)


TRAIN = TrainWorkload.model_validate({"name": "w", "kind": "train", "model": "resnet50", "precisions": ["fp32"]})


def test_ranks_are_host_by_host_and_own_devices_come_first() -> None:
    at = topology_of(replace(configuration(2, 3, 1), devices_used=2))
    assert [(place.host, place.fabric) for place in at.ranks] == [(0, False), (0, True), (1, False), (1, True)]
    assert (at.hosts, at.on_host) == (2, 2)


def test_rates_are_those_of_the_system_file() -> None:
    prior = prior_of(system(), TRAIN)
    assert prior["rate[local]"].median == pytest.approx(20e9)
    assert prior["latency[network]"].median == pytest.approx(20e-6)
    assert prior["read[nvme]"].median == pytest.approx(3e9)
    assert "rate[fabric]" not in prior
    assert prior["slowdown"] == DEFAULTS["slowdown"]


def test_emulated_links_are_as_slow_as_they_are_for_whoever_waits() -> None:
    emulated = system(
        devices={"a100-40gb": {"runs_on": "cpu"}}, emulation={"scale": 0.01, "pace": {"a100-40gb": {"fp32": 2}}}
    )
    assert prior_of(emulated, TRAIN)["rate[local]"].median == pytest.approx(0.2e9)
    case = case_of(emulated, TRAIN, cell(configuration()))
    assert case is not None
    assert case.topology.algorithm == "gloo"
    # 24.5 GFLOP a sample at 2 GFLOP/s.
    assert case.compute[0].seconds[8] == pytest.approx(8 * 3 * 8.178368512 / 2)
    assert case.memory_mib is None  # of this machine, and not of a device


def test_a_device_that_nobody_measured_has_a_wide_prior() -> None:
    case = case_of(system(), TRAIN, cell(configuration()))
    assert case is not None
    (compute,) = case.compute
    prior = prior_of(system(), TRAIN, [case])[f"compute[{compute.key}]"]
    assert prior.high / prior.low > 5
    steps = simulate(case, sample(prior_of(system(), TRAIN, [case]), 200)).step_s
    assert np.quantile(steps, 0.9) / np.quantile(steps, 0.1) > 3
    assert case.memory_mib == 40 * 1024


def test_memory_stands_in_the_system_file_or_in_the_name() -> None:
    given = system(devices={"a100-40gb": {"memory_gib": 39.4}})
    case = case_of(given, TRAIN, cell(configuration()))
    assert case is not None
    assert case.memory_mib == pytest.approx(39.4 * 1024)
    unknown = case_of(given, TRAIN, cell(configuration(device="h7")))
    assert unknown is not None
    assert unknown.memory_mib is None


def test_of_a_program_whose_inside_is_unknown_there_is_no_case() -> None:
    command = CommandWorkload.model_validate(yaml.safe_load(CommandWorkload.example))
    assert case_of(system(), command, cell(configuration())) is None
