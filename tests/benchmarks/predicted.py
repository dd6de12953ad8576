"""How fast the model of a step is. `study` holds it against public tables and replays."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

import numpy as np

from campaign.model.description import ComputeTime, Network, StepCase, WorkSharing
from campaign.model.fit import Effects, StepDesign, fit
from campaign.model.parameters import DEFAULTS, UncertainNumber, sample
from campaign.model.simulation import simulate, steps_s
from campaign.workloads.step_networks import built_in_network
from campaign.workloads.trainer.model_catalog import resolve_options
from tests.benchmarks.figure import Figure
from tests.benchmarks.project import Project
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
    took = _least(lambda: steps_s(cases, [few] * len(cases)))
    yield Figure("model, 1,000 cells at 200 samples", took, "s", 10.0)
    seen = tuple(_case(resnet, shape, batch) for shape in SHAPES for batch in (4, 8, 16))
    log_s = np.log(steps_s(seen, [sample(PRIOR, 1, seed=3)] * len(seen))[:, 0])
    steps = StepDesign(
        seen, Effects(np.zeros((len(seen), 0)), np.zeros(0, dtype=np.int64), (), np.zeros((len(seen), 0)))
    )
    yield Figure("model, fit to 30 cells", _least(lambda: fit(steps, log_s, PRIOR), times=1), "s", 10.0)


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
