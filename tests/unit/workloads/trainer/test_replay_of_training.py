"""A replay of a training step that was measured on one device gives what training over the same links gives."""

from __future__ import annotations

import os
import statistics
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from campaign.documents.cell import Cell
from campaign.launch import open_launcher
from campaign.launch.protocol import Launcher, Limits
from campaign.run.launched_run import until_undisturbed
from campaign.workloads.failures import PACE_NOT_HELD
from campaign.workloads.log_reader import Log
from campaign.workloads.protocol import Ended, Outcome, Workload
from campaign.workloads.replay import ReplayWorkload
from campaign.workloads.train import TrainWorkload
from campaign.workloads.trainer.model_catalog import resolve_options
from campaign.workloads.trainer.models import build, count, shaping_options
from tests.campaign_files import one_cell, one_run
from tests.unit.launch.compositions import composition, system

GFLOPS = 5.0
BATCH = 4
MODEL = "bert-nano"
RATES_GB_PER_S = (0.2, 0.05, 0.0125)
"""All of the communication is hidden, some, and little; a step of one device takes about 130 ms, its gradients 15 to 230."""
TRIES = 3


def a_cell(hosts: int) -> Cell:
    cell = one_cell(hosts=hosts, devices=1, batch=BATCH)
    return replace(cell, settings=replace(cell.settings, warmup_steps=3, measured_steps=5))


def measured(launcher: Launcher, workload: Workload, hosts: int, directory: Path) -> Outcome:
    run = replace(
        one_run(directory, a_cell(hosts)), composition=composition(*[(1, 0)] * hosts), pace={"cpu-rank": GFLOPS}
    )

    def launch() -> tuple[Ended, Outcome]:
        log = directory / "log"
        log.unlink(missing_ok=True)
        ended = launcher.run(workload.step(run), f"test-{uuid.uuid4().hex}", log, directory, Limits(60))
        return ended, workload.outcome(run, ended, Log(log))

    _, outcome = until_undisturbed(workload.name, launch)
    if outcome.failure and outcome.failure.reason == PACE_NOT_HELD:
        pytest.skip("this machine is too busy to hold a pace")
    assert (outcome.status, outcome.failure) == ("ok", None)
    return outcome


def step_s(outcome: Outcome) -> float:
    return statistics.median(outcome.step_times_s[0])


def trace(one_device_s: float) -> ReplayWorkload:
    """Layers are the modules of the network, and share the time of the step by their operations."""
    network = build(MODEL, resolve_options(MODEL, {}), "meta").network
    operations = count(MODEL, shaping_options(MODEL, {})) or {}
    layers: list[dict[str, Any]] = []
    for name, module in network.named_modules():
        if tensors := [weight.numel() for weight in module.parameters(recurse=False)]:
            share = operations.get(name, 0.0)
            layers.append({"name": name, "tensors": tensors, "forward": share, "backward": 2 * share})
    row = {"device": "cpu-rank", "precision": "fp32", "batch": BATCH, "seconds": one_device_s}
    document = {"layers": layers, "compute": [row]}
    return ReplayWorkload.model_validate({"name": "replayed", "kind": "replay", "precisions": ["fp32"], **document})


@pytest.mark.alone
@pytest.mark.slow
def test_a_replayed_step_takes_as_long_as_the_measured_one_over_three_link_rates(tmp_path: Path) -> None:
    training = TrainWorkload(name="trained", kind="train", model=MODEL, precisions=("fp32",))
    one = open_launcher("local", system(), composition((1, 0)))
    try:
        replaying = trace(step_s(measured(one, training, 1, tmp_path / "one")))
    finally:
        one.close()
    found: dict[float, tuple[float, float]] = {}
    for rate in RATES_GB_PER_S:
        launcher = open_launcher(
            "local",
            system(links={"network": {"gb_per_s": rate}}, emulation={"scale": 1.0}),
            composition((1, 0), (1, 0)),
        )
        try:
            if launcher.links is None or launcher.links["emulated"] is None:
                pytest.skip(f"no links can be emulated here: {launcher.links}")
            for attempt in range(TRIES):
                directory = tmp_path / f"{rate}-{attempt}"
                trained, replayed = (
                    step_s(measured(launcher, each, 2, directory / each.name)) for each in (training, replaying)
                )
                found[rate] = trained, replayed
                if replayed == pytest.approx(trained, rel=0.05):
                    break
        finally:
            launcher.close()
    if os.getloadavg()[0] > 2 * (os.cpu_count() or 1):
        pytest.skip(f"this machine is too busy to compare {found}")
    assert all(replayed == pytest.approx(trained, rel=0.05) for trained, replayed in found.values()), found
    hidden, _, exposed = (found[rate][0] for rate in RATES_GB_PER_S)
    assert exposed > 1.5 * hidden  # the rates were real
