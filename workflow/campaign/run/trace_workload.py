"""The trace of a workload from real runs on one device of this machine, one for each batch and precision."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from campaign.config.load import Loaded
from campaign.config.system_file import SystemFile
from campaign.errors import LaunchError
from campaign.run.try_workload import Wish, run_once
from campaign.workloads.protocol import Run, Workload
from campaign.workloads.traces.measured import Measured, measured_trace, read_measured, timed
from campaign.workloads.traces.trace_file import Trace


def trace_workload(
    workload: Loaded[Workload],
    name: str,
    wishes: Iterable[Wish],
    system: SystemFile | None,
    log: Path,
    command: str,
    device: str | None,
) -> Trace:
    """The trace `name`, with the layers of the first run. LaunchError: a run was not ok; what it printed is in `log`.

    system: what the device is, and its pace where it is emulated. command: what was typed, for the source of the numbers. device:
    its name in the trace, where that is not the one of the system.
    """
    training = replace(workload, model=timed(workload.model))
    runs: list[Measured] = []

    def look(run: Run) -> None:
        runs.append(read_measured(run.directory, run.cell, command, device))

    for wish in wishes:
        found = run_once(training, wish, system, log, look)
        if failure := found.outcome.failure:
            what = f"{workload.model.name} with batch {wish.batch} in {wish.precision} is {found.outcome.status}"
            raise LaunchError(f"{what}: {failure.reason}: {failure.evidence}").with_log(log)
    return measured_trace(workload.model, name, runs)
