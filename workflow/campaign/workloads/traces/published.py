"""A trace from public numbers: tensors and operations of a model, which is built without memory, and the rate of a device."""

from __future__ import annotations

from dataclasses import dataclass

from campaign.accelerators import peak_tflops
from campaign.documents.fields import Precision
from campaign.errors import ConfigError
from campaign.workloads.protocol import Workload
from campaign.workloads.sample_flops import SIZES
from campaign.workloads.traces.trace_file import Trace, compute_row, make_trace
from campaign.workloads.train import TrainWorkload
from campaign.workloads.trainer.model_catalog import resolve_options


@dataclass(frozen=True)
class Published:
    """What somebody has measured on one device. Exactly one of the rates is given.

    samples_per_s: throughput; step_s: seconds of a step; tflops: achieved with the model's operations; mfu_pct: the same
    in percent of the device's peak.
    optimizer_pct: share of the optimizer in the step, which such numbers seldom tell.
    """

    device: str
    precision: Precision
    batch: int
    source: str
    samples_per_s: float | None = None
    step_s: float | None = None
    tflops: float | None = None
    mfu_pct: float | None = None
    optimizer_pct: float = 0.0

    def seconds(self, flops_per_sample: float) -> float:
        """Seconds of a step. ConfigError where the peak is not known."""
        if self.step_s is not None:
            return self.step_s
        if self.samples_per_s is not None:
            return self.batch / self.samples_per_s
        rate = self.tflops
        if rate is None:
            peak = peak_tflops(self.device, None, self.precision)
            if peak is None or self.mfu_pct is None:
                raise ConfigError(
                    f"the peak of '{self.device}' in {self.precision} is not known (a name tells the form: "
                    "v100-sxm2-16gb); give --tflops or --samples-per-s instead of --mfu-pct"
                )
            rate = peak * self.mfu_pct / 100
        return self.batch * flops_per_sample / (rate * 1e12)


def described(model: TrainWorkload) -> str:
    """Model and size of a sample, in words."""
    sizes = resolve_options(model.model, model.options)
    return ", ".join([model.model, *(f"{name} {sizes[name]}" for name in SIZES if name in sizes)])


def built_in(workload: Workload) -> TrainWorkload:
    """ConfigError for another kind, and where torch is missing."""
    if not isinstance(workload, TrainWorkload):
        raise ConfigError(
            f"workload '{workload.name}' is of kind {workload.kind}; a trace is made of one of kind train"
        )
    if missing := workload.missing():
        raise ConfigError(missing)
    return workload


def published_trace(workload: Workload, name: str, number: Published) -> Trace:
    """The trace `name` of a built-in model; its shares are operations of a sample, in 10^9. Needs torch."""
    # Most commands are done without torch, which takes seconds to load.
    from campaign.workloads.traces.model_flops import model_flops

    model = built_in(workload)
    counted = model_flops(model.model, model.options)
    flops = sum(layer.forward + layer.backward for layer in counted.layers)
    row = compute_row(number.device, number.precision, number.batch, number.seconds(flops), number.source)
    part = number.optimizer_pct / 100
    return make_trace(
        name,
        f"{described(model)}: layers by their operations, times from the sources in compute",
        [layer._replace(forward=layer.forward / 1e9, backward=layer.backward / 1e9) for layer in counted.layers],
        flops / 1e9 * part / (1 - part),
        [row],
        counted.sample_bytes,
        workload.options,
    )
