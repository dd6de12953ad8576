"""The model of a step: how fast it is, and how far it is from replays of the same cells. `study` holds it against public tables."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from statistics import median

import yaml

from campaign.config.resolve import load_campaign
from campaign.model.description import ComputeTime, Network, StepCase, WorkSharing
from campaign.model.fit import ObservedStep, fit
from campaign.model.parameters import DEFAULTS, UncertainNumber, ideal, medians, sample
from campaign.model.simulation import simulate
from campaign.plan.matrix import expand
from campaign.plan.step_cases import case_of, prior_of
from campaign.workloads.step_networks import built_in_network
from campaign.workloads.trainer.model_catalog import resolve_options
from tests.benchmarks.figure import Figure, Skipped
from tests.benchmarks.project import ROOT, Project
from tests.unit.model.step_cases import topology

_KEY = "device fp32"
PRIOR = {
    **DEFAULTS,
    **{f"rate[{kind}]": UncertainNumber.about(8e9, 3, "byte/s", "wide") for kind in ("local", "fabric", "network")},
    f"compute[{_KEY}]": UncertainNumber.about(1.0, 3, "1", "wide"),
    f"start[{_KEY}]": UncertainNumber(0.02, 0.5, "1", "wide", "share"),
}
SHAPES = ((1, 1), (1, 2), (1, 4), (1, 8), (1, 0, 4), (1, 0, 8), (1, 4, 4), (2, 2), (4, 1), (2, 0, 4))


def predicted(project: Project) -> Iterable[Figure]:
    """The model of a step: seconds of simulations and of a fit."""
    del project  # nothing is run
    bert, resnet = _network("bert-large"), _network("resnet50")
    large = Network(tuple(bert.layers[5:6]) * 400)
    ten_thousand = sample(PRIOR, 10_000)
    for name, network in (("BERT-large", bert), ("400 layers", large)):
        took = _least(lambda network=network: simulate(_case(network, (1, 8), 8), ten_thousand))  # type: ignore[misc]
        yield Figure(f"model, 10,000 samples of a step, {name}", took, "s", 1.0)
    cases = [
        _case(network, shape, batch, parallel)
        for network in (bert, resnet)
        for shape in SHAPES
        for parallel in ("ddp", "zero1", "fsdp", "dp", "horovod")
        for batch in range(1, 11)
    ]
    few = sample(PRIOR, 200)
    yield Figure(
        "model, 1,000 cells at 200 samples", _least(lambda: [simulate(each, few) for each in cases]), "s", 10.0
    )
    seen = [_case(resnet, shape, batch) for shape in SHAPES for batch in (4, 8, 16)]
    truth = sample(PRIOR, 1, seed=3)
    steps = [ObservedStep(each, float(simulate(each, truth).step_s[0]), 0.005) for each in seen]
    found = fit(steps, PRIOR)
    yield Figure("model, fit to 30 cells", _least(lambda: fit(steps, PRIOR), times=1), "s", 10.0)
    yield Figure("model, fit: draws of 1,000 that are alike", 1000 - found.effective, "", 700)


def _network(model: str) -> Network:
    found = built_in_network(model, resolve_options(model, {}))
    assert found is not None
    return found


def _case(network: Network, shape: tuple[int, ...], batch: int, parallel: str = "ddp") -> StepCase:
    sharing = WorkSharing(parallel)  # type: ignore[arg-type]  # one of its words
    return StepCase(network, (ComputeTime(_KEY, {8: 0.1}),), batch, "fp32", topology(*shape), sharing)


def _least(call: Callable[[], object], times: int = 3) -> float:
    """Seconds of a core; a busy machine makes them no longer."""
    took = []
    for _ in range(times):
        started_s = time.process_time()
        call()
        took.append(time.process_time() - started_s)
    return min(took)


def replays(project: Project) -> Iterable[Figure]:
    """The model without losses against replays of the same cells: real strategies over emulated links (ten minutes)."""
    if not all(map(shutil.which, ("ip", "tc"))):
        raise Skipped("links cannot be emulated here: ip and tc are missing")
    system = yaml.safe_load((ROOT / "config" / "systems" / "falcon-predicted.yaml").read_text())
    slow = {
        "emulation": {"scale": 0.00015, "dilation": 48},
        "links": {**system["links"], "network": {"gb_per_s": 12.5}},
    }
    project.system("replaying", **{**system, **slow})
    path = project.write("campaigns/replaying.yaml", {**_REPLAYS, "name": "replaying", "system": "replaying"})
    subprocess.run(
        ["campaign", "run", str(path), "--results", str(project.directory / "results")], check=True, stdout=sys.stderr
    )
    campaign = load_campaign(path)
    errors = []
    for cell in expand(campaign, None).cells:
        workload = campaign.workloads[cell.workload]
        case = case_of(campaign.system, workload, cell)
        assert case is not None
        step = float(simulate(case, medians(ideal(prior_of(campaign.system, workload)))).step_s[0])
        for record in (project.directory / "results" / "replaying" / "records").rglob(f"*{cell.id}*.json"):
            errors.append(
                abs(100 * (step * json.loads(record.read_text())["throughput_per_s"] / cell.batch_global - 1))
            )
    yield Figure(f"model against {len(errors)} replays, median error", median(errors), "%", 3)
    yield Figure(f"model against {len(errors)} replays, largest error", max(errors), "%", math.inf)


_REPLAYS = {
    "configurations": [{"devices_per_host": 4, "attach": ["local", "fabric"]}, {"hosts": 2, "devices_per_host": 2}],
    "axes": {
        "workload": ["resnet50-v100", "bert-large-v100"],
        "batch": [6, 16],
        "precision": "fp16-o2",
        "options": {"parallel": ["ddp", "fsdp", "zero1", "dp"], "input": "resident"},
    },
    "exclude": [
        {"when": "(workload == 'bert-large-v100') != (batch == 6)", "why": "each program has a batch of its own"},
        {"when": "parallel == 'dp' and hosts > 1", "why": "one process is on one host"},
        {"when": "parallel != 'ddp' and workload == 'resnet50-v100'", "why": "one network shows the strategies"},
    ],
    "protocol": {
        "warmup_steps": 1,
        "measured_steps": 2,
        "repetitions": 1,
        "compositions": 1,
        "telemetry_s": None,
        "links": {"when": []},
    },
}
