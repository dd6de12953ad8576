"""A trace from real runs of a built-in model on one device: the layers of one run, and the time of a step of each."""

from __future__ import annotations

import datetime
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, NamedTuple

from campaign.documents.cell import Cell, Scalar
from campaign.errors import ConfigError, LaunchError
from campaign.workloads.protocol import Workload
from campaign.workloads.replay import ComputeRow
from campaign.workloads.traces.published import built_in, described
from campaign.workloads.traces.trace_file import Trace, TracedLayer, compute_row, make_trace
from campaign.workloads.train import TrainWorkload
from campaign.workloads.trainer.rank_interface import LayerTimes, read_results

# A batch on the device, in one pass: input and accumulation are the replay's.
_MEASURED_WITH: dict[str, Scalar] = {"input": "resident", "accumulation": 1, "measure_communication": False}


class TimedTraining(TrainWorkload):
    """Built-in training that also times the layers of its model."""

    times_layers: ClassVar[bool] = True


class Measured(NamedTuple):
    """A run that timed its layers; input_bytes: of its batch, as it is stored."""

    row: ComputeRow
    times: LayerTimes
    input_bytes: int
    device_name: str


def timed(workload: Workload) -> TimedTraining:
    """ConfigError for another kind, and for a compiled model, which has no layers any more."""
    training = built_in(workload)
    if training.options.get("compile"):
        raise ConfigError(
            f"workload '{workload.name}': a compiled model has no layers; trace it with --option compile=false"
        )
    return TimedTraining.model_validate({**training.model_dump(), "options": {**training.options, **_MEASURED_WITH}})


def read_measured(directory: Path, cell: Cell, command: str, device: str | None = None) -> Measured:
    """What the only rank of such a run left in its directory; LaunchError where it is not there."""
    (result,) = read_results(directory, 1)
    if result is None or result.layer_times is None:
        raise LaunchError(f"{directory}: the run left no times of layers")
    when = datetime.datetime.fromtimestamp(result.window_started or 0, datetime.UTC)
    row = compute_row(
        device or cell.configuration.device,
        cell.precision,
        cell.batch,
        statistics.median(result.step_times_s),
        f"measured on {result.host}, {when:%Y-%m-%d}, torch {result.torch_version}: {command}",
    )
    return Measured(row, result.layer_times, result.input_bytes_per_step or 0, result.device_name)


def measured_trace(workload: Workload, name: str, runs: Sequence[Measured]) -> Trace:
    """The trace `name` of a built-in model, with the layers of the first run: shares are milliseconds of its step."""
    model, first = built_in(workload), runs[0]
    layers = [
        TracedLayer(layer.name, layer.kind, layer.tensors, 1e3 * layer.forward_s, 1e3 * layer.backward_s, layer.unit)
        for layer in first.times.layers
    ]
    return make_trace(
        name,
        f"{described(model)}: shares in ms, measured with batch {first.row.batch} in {first.row.precision} on {first.device_name}",
        layers,
        1e3 * first.times.optimizer_s,
        [run.row for run in runs],
        first.input_bytes // first.row.batch,
        model.options,
    )
