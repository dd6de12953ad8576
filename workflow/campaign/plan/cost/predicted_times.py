"""Times of runs by the model of a step, where nothing was measured. Pure."""

from __future__ import annotations

import numpy as np

from campaign.config.system_file import SystemFile
from campaign.documents.cell import Cell
from campaign.model.parameters import UncertainNumber, sample
from campaign.model.simulation import simulate
from campaign.plan.step_cases import case_of, prior_of
from campaign.workloads.protocol import Workload

_START = UncertainNumber(
    0.2, 40.0, "s", "assumed: from a process that waits for work to a cold start of PyTorch on GPUs"
)
_MOST_FACTOR = 3.0  # that compute may be off by; what is known up to a factor of 30 only is unknown
_DRAWS = 64


def predicted_run(system: SystemFile, workload: Workload, cell: Cell) -> tuple[float, float] | None:
    """Median and sd of ln(seconds) of a run; None where the inside of its steps, its devices' pace or a link's rate is unknown."""
    case = case_of(system, workload, cell)
    if case is None or any((compute.factor or 1.0) > _MOST_FACTOR for compute in case.compute):
        return None
    prior = {**prior_of(system, workload, [case]), "start of a run": _START}
    del prior["rate"]  # a guess of links that nobody knows
    draws = sample(prior, _DRAWS)
    try:
        step_s = simulate(case, draws).step_s
    except KeyError:  # a link on the way has no rate in the system file
        return None
    if workload.predicts and system.emulation is not None:
        step_s = step_s * system.emulation.time_dilation
    steps = cell.settings.warmup_steps + cell.settings.measured_steps
    log_s = np.log(draws.of("start of a run") + steps * step_s)
    return float(np.median(log_s)), float(np.std(log_s))
