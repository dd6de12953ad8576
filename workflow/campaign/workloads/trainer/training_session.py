"""Session of one rank: process group, model, input, warm-up, measured window and result. Needs torch.

A run that the device or torch cannot do is `unsupported`. No other computation replaces it.
"""

from __future__ import annotations

import gc
import math
import os
import shutil
import socket
import subprocess
import sysconfig
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from campaign.common.accelerators import ACCELERATORS
from campaign.spec.record import Status
from campaign.workloads.steady_warmup import NOT_STEADY, SHORT_WINDOW
from campaign.workloads.trainer import models, precision, rank_device
from campaign.workloads.trainer.cpu_data_parallel import CpuDataParallel
from campaign.workloads.trainer.input_pipeline import Feed, make_feed
from campaign.workloads.trainer.models import count_step_flops
from campaign.workloads.trainer.paced_modules import PacedDevices
from campaign.workloads.trainer.parallel_strategies import choose_strategy_name
from campaign.workloads.trainer.rank_device import (
    choose_device,
    describe_foreign_devices,
    get_device_module,
    identify_device,
    locate_tensors,
)
from campaign.workloads.trainer.rank_interface import RankEnvironment, RankResult, TrainSpec, unsupported_mixed_reason
from campaign.workloads.trainer.timed_steps import (
    Clock,
    MeasuredWindow,
    Training,
    WarmupResult,
    make_clock,
    measure_communication,
    measure_steps,
)

_MIN_WARMUP_STEPS = 5  # DDP rebuilds its buckets after the first step, cuDNN tunes per shape, the fp16 scaler backs off
_MIN_PACED_WARMUP_STEPS = 2  # the pace is kept from the second step on
_COMPILERS = ("c++", "g++", "clang++")
_TEST_PROGRAM = "#include <Python.h>\n#include <vector>\nint main() { return std::vector<int>(1)[0]; }\n"
_COMPILER_TIMEOUT_S = 60
_FULL_MEMORY_SHARE = 0.9
"""Share of a device's memory in use above which it counts as full. The rest is used by CUDA or lost to fragmentation."""


@dataclass(frozen=True, slots=True)
class _WindowMeasurement:
    """Everything that was measured in the window of a rank.

    Attributes:
        skipped_steps: number of steps whose update the gradient scaler dropped.
        lost_s: seconds by which each step fell behind the pace of emulated devices; None without emulation.
        input_wait_s: seconds that steps waited for their input.
        devices_at_start: devices that held tensors at the start, by kind of tensor.
        devices_at_end: devices that held tensors at the end, by kind of tensor.
    """

    window: MeasuredWindow
    skipped_steps: int
    lost_s: tuple[float, ...] | None
    input_wait_s: float | None
    devices_at_start: dict[str, tuple[str, ...]]
    devices_at_end: dict[str, tuple[str, ...]]

    def list_tensor_devices(self) -> tuple[str, ...]:
        """List all devices that held tensors at the start or end of the window."""
        kinds = (*self.devices_at_start.values(), *self.devices_at_end.values())
        return tuple(sorted({place for places in kinds for place in places}))


class TrainingSession:
    """Session in which one rank trains and is measured. Call `run`, and then always `close`."""

    def __init__(self, spec: TrainSpec, rank_environment: RankEnvironment, import_s: float) -> None:
        self.spec = spec
        self.rank_environment = rank_environment
        self.device = torch.device("cpu")
        self.phases_s: dict[str, float] = {"import": import_s}
        self._training: Training | None = None
        self._model_fields: dict[str, Any] = {}
        self.flags: list[str] = []

    def run(self) -> RankResult:
        """Set up the training, warm up, measure, and judge the result of this rank. Exceptions of torch are not caught."""
        # Set before any tensor work, which creates OpenMP's thread pool. A rank uses one core.
        torch.set_num_threads(1)
        spec, rank_environment = self.spec, self.rank_environment
        self._choose_device()
        reason = unsupported_run_reason(spec, rank_environment.world_size, self.device)
        if reason:
            return self.build_result("unsupported", reason=reason)
        precision.set_matmul_precision(spec.precision)
        if self.device.type == "cuda":
            torch.backends.cudnn.benchmark = True
        with self._time_phase("group"):
            self._join_group()
        with self._time_phase("model"):
            paced_devices = self._make_paced_devices()
            trainable = self._build_model()
        reason = unsupported_model_reason(spec, trainable)
        if reason:
            return self.build_result("unsupported", reason=reason)
        feed, input_bytes = self._open_input(trainable)
        with self._time_phase("wrap"):
            training = Training(spec, trainable, feed, self.device, rank_environment.world_size, paced_devices)
            self._training = training
            types = self._observe_types(training, trainable)
        with self._time_phase("warmup"):
            warmup = training.warm_up()
            steps = training.count_steps_to_measure(warmup)
            clock = make_clock(self.device)
            clock.synchronize()
        if warmup.is_steady is False:
            self.flags.append(NOT_STEADY)
        measurement = self._measure_window(training, trainable, steps, clock)
        details = self._describe_window(training, measurement, warmup, types)
        details["input_bytes_per_step"] = input_bytes
        flaw = self._find_precision_flaw(details, types)
        if training.strategy.name == "ddp" and spec.resolve_options()["measure_communication"]:
            exposed_s, allreduce_s = measure_communication(training, measurement.window.step_times_s)
            details |= {"exposed_communication_s": exposed_s, "allreduce_s": allreduce_s}
        status, reason, evidence = self._judge_run(measurement, flaw)
        return self.build_result(status, reason=reason, evidence=evidence, **details)

    def _choose_device(self) -> None:
        """Choose the device of the rank, bind the process to its socket, and flag conditions that distort measurements."""
        self.device = choose_device(self.spec.device, self.rank_environment.local_rank, self.spec.replicas)
        numa, flag = rank_device.bind_to_socket(self.device) if self.spec.replicas == 1 else ("", "")
        self._model_fields["numa"] = numa
        self.flags = [*self._find_distorting_conditions(), *([flag] if flag else [])]

    def _open_input(self, trainable: models.Trainable) -> tuple[Feed, int]:
        """Open the input of the training. Return the feed, and its number of bytes per step."""
        with self._time_phase("input"):
            feed, input_bytes = make_feed(
                self.spec, trainable, self.rank_environment.rank, self.rank_environment.world_size, self.device
            )
        self.flags += feed.flags
        if (
            feed.written_s is not None
        ):  # Writing the dataset is not part of the input, because a real dataset exists already.
            self.phases_s["dataset"] = feed.written_s
            self.phases_s["input"] -= feed.written_s
        return feed, input_bytes

    def _observe_types(self, training: Training, trainable: models.Trainable) -> precision.DtypeObserver:
        """Start to observe the number types of the model's first compute layer."""
        model = training.model
        replicas = model.replica_modules if isinstance(model, CpuDataParallel) else ()
        return precision.DtypeObserver(trainable.network, training.strategy.name == "fsdp", replicas)

    def _measure_window(
        self, training: Training, trainable: models.Trainable, steps: int, clock: Clock
    ) -> _WindowMeasurement:
        """Measure the steps of the window, including skipped steps, lost time, waits for input, and devices of tensors."""
        places_at_start = self._locate_tensors(trainable)
        if self.device.type != "cpu":
            get_device_module(self.device.type).reset_peak_memory_stats(self.device)
        if training.paced_devices is not None:
            training.paced_devices.begin_window()
        applied_before, waited_s = training.applied_steps, training.feed.waited_s
        window = measure_steps(training.run_step, steps, clock, self._wait_for_ranks)
        places_at_end = {**self._locate_tensors(trainable), "losses": window.loss_devices}
        if window.window_s < self.spec.measured_min_s:
            self.flags.append(SHORT_WINDOW)
        read_s = None if waited_s is None or training.feed.waited_s is None else training.feed.waited_s - waited_s
        return _WindowMeasurement(
            window=window,
            skipped_steps=steps - (training.applied_steps - applied_before),
            lost_s=None if training.paced_devices is None else training.paced_devices.compute_lost_s(),
            input_wait_s=read_s,
            devices_at_start=places_at_start,
            devices_at_end=places_at_end,
        )

    def _describe_window(
        self, training: Training, measurement: _WindowMeasurement, warmup: WarmupResult, types: precision.DtypeObserver
    ) -> dict[str, Any]:
        """Return those fields of the result that the measured window determines."""
        window, traffic = measurement.window, training.strategy.traffic
        memory_peaks = _read_memory_peaks(
            self.device
        )  # read before the probe of the precision, which needs memory, too
        in_force = precision.measure_precision(self.spec.precision, self.device, *types.weight_and_gradient_types())
        return {
            "step_times_s": window.step_times_s,
            "window_started": window.started_at,
            "window_s": window.window_s,
            "warmup_steps": warmup.steps,
            "skipped_steps": measurement.skipped_steps,
            "gradient_bytes": traffic.gradient_bytes,
            "allreduce_bytes_per_step": traffic.allreduce_bytes,
            "communication_bytes_per_step": traffic.communication_bytes,
            "pace_lost_s": measurement.lost_s,
            "input_read_s": measurement.input_wait_s,
            **memory_peaks,
            "process_time_s": window.process_time_s,
            "precision": in_force,
            "loss_first": _replace_non_finite(window.losses[0] if warmup.loss_first is None else warmup.loss_first),
            "loss_last": _replace_non_finite(window.losses[-1]),
            "flops_per_step": count_step_flops(self.spec) if self.rank_environment.rank == 0 else None,
            "work_on": measurement.list_tensor_devices(),
            "in_force": {"precision": in_force, **training.kernels},
        }

    def _find_precision_flaw(self, details: dict[str, Any], types: precision.DtypeObserver) -> str:
        """Describe how the run did not compute in the configured precision. Returns an empty string if it did.

        With `fsdp_precision: mixed`, the number type of the weights is added to `details`.
        """
        spec, in_force = self.spec, details["precision"]
        flaw = precision.describe_precision_mismatch(spec.precision, in_force)
        if spec.is_mixed_precision:
            weights = str(types.weight_and_gradient_types()[0]).removeprefix("torch.")
            details["in_force"]["weights"] = weights
            flaw = flaw or ("" if weights == "bfloat16" else f"weights in the forward pass are {weights}")
        type_mismatch = types.describe_type_mismatch(spec.precision, spec.replicas)
        if type_mismatch:
            return f"the output of the first compute layer was {type_mismatch}"
        if not flaw and in_force != spec.precision:
            self.flags.append(f"the precision in force is {in_force}")
        return flaw

    def build_result(self, status: Status, **fields: Any) -> RankResult:
        """Build the result of this rank from the given fields and all facts known so far. Also works after an exception."""
        fields["in_force"] = {**fields.get("in_force", {}), **rank_device.read_library_versions(self.device)}
        return RankResult(
            rank=self.rank_environment.rank,
            world_size=self.rank_environment.world_size,
            host=socket.gethostname(),
            status=status,
            phases_s=self.phases_s,
            samples_per_step=self.spec.batch * self.spec.replicas,
            torch_version=torch.__version__,
            flags=tuple(self.flags),
            **{**self._model_fields, **self._build_device_fields(), **fields},
        )

    def _build_device_fields(self) -> dict[str, Any]:
        """Return those fields of the result that describe the device."""
        replica_uuids = rank_device.list_replica_uuids(self.device, self.spec.replicas)
        return {**identify_device(self.device), "replica_uuids": replica_uuids, **_read_memory_peaks(self.device)}

    def describe_full_device(self) -> str:
        """Describe the peak use of the device's memory if it was nearly full. Returns an empty string otherwise."""
        if self.device.type == "cpu":
            return ""
        module = get_device_module(self.device.type)
        return describe_full_memory(
            module.max_memory_reserved(self.device), module.get_device_properties(self.device).total_memory
        )

    def close(self) -> None:
        """Destroy the process group without waiting for its threads.

        The reducer of DistributedDataParallel keeps the gloo group alive. If its destructor runs at exit, it joins a thread
        that needs the interpreter lock, which the destructor holds. With torch 2.13, 15-22 % of forked runs hung. No run hung
        if the reducer was dropped first and the process ended by os._exit.
        """
        self._training = None
        gc.collect()
        if dist.is_initialized():
            dist.destroy_process_group()

    @contextmanager
    def _time_phase(self, name: str) -> Iterator[None]:
        """Record the duration of the context as that of a phase of the run."""
        start_s = time.perf_counter()
        try:
            yield
        finally:
            self.phases_s[name] = time.perf_counter() - start_s

    def _join_group(self) -> None:
        """Join the process group of the run, unless the run has a single process."""
        if self.rank_environment.world_size > 1:
            dist.init_process_group(
                ACCELERATORS[self.spec.device].backend,
                device_id=None if self.device.type == "cpu" else self.device,
                rank=self.rank_environment.rank,
                world_size=self.rank_environment.world_size,
                timeout=timedelta(seconds=self.spec.time_out_s),
            )

    def _wait_for_ranks(self) -> None:
        """Wait until all ranks of the run have reached this point."""
        if self.rank_environment.world_size > 1:
            dist.barrier(device_ids=None if self.device.type == "cpu" else [self.device.index])

    def _make_paced_devices(self) -> PacedDevices | None:
        """Create the emulated devices of this process. Returns None if no devices are emulated.

        Call this before the model is built, because counting operations draws random numbers.
        """
        spec, replicas = self.spec, self.spec.replicas
        if not spec.pace_gflops:
            return None
        module_flops = (
            models.count_module_flops(spec.model, models.select_shaping_options(spec.model, spec.options)) or {}
        )
        options = spec.resolve_options()
        samples = spec.batch // int(options["accumulation"])
        operations = {name: samples * flops for name, flops in module_flops.items()}
        rates_gflops = spec.pace_gflops[self.rank_environment.rank * replicas :][:replicas]
        step_operations, is_single_process = (
            (count_step_flops(spec) or 0.0) / replicas,
            self.rank_environment.world_size == 1,
        )
        update_share = 1 / self.rank_environment.world_size if options["parallel"] in ("zero1", "fsdp") else 1.0
        return PacedDevices(
            operations, step_operations, rates_gflops, is_single_process=is_single_process, update_share=update_share
        )

    def _build_model(self) -> models.Trainable:
        """Build the model of the run on its device, ready for training."""
        torch.manual_seed(self.spec.seed)
        options = self.spec.resolve_options()
        is_deferred = models.is_deferred(self.spec.model)
        trainable = models.build_model(self.spec.model, options, "meta" if is_deferred else "cpu")
        # A complete large model may fit neither on a device nor on the host.
        if not (is_deferred and choose_strategy_name(self.spec, self.rank_environment.world_size) == "fsdp"):
            models.materialise_weights(trainable, self.device, self.spec.seed)
        if self.spec.uses_channels_last and any(weight.dim() == 4 for weight in trainable.parameters()):
            trainable.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stubs leave it out
            self.flags.append("channels_last")
        trainable.train()
        self._model_fields["parameters"] = sum(parameter.numel() for parameter in trainable.parameters())
        return trainable

    def _locate_tensors(self, trainable: models.Trainable) -> dict[str, tuple[str, ...]]:
        """Return the devices that hold parameters and gradients, by kind of tensor."""
        parameters = list(trainable.parameters())
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        return locate_tensors({"parameters": parameters, "gradients": gradients})

    def _judge_run(self, measurement: _WindowMeasurement, precision_flaw: str) -> tuple[Status, str, str]:
        """Judge the measured run of this rank. Returns its status, the reason and the evidence."""
        at_start, at_end = measurement.devices_at_start, measurement.devices_at_end
        foreign_devices = describe_foreign_devices(self.device, at_end) or describe_foreign_devices(
            self.device, at_start
        )
        if foreign_devices:
            return "invalid", f"some of the work was not on {self.device}, the device of this rank", foreign_devices
        if precision_flaw:
            return "invalid", f"the run did not compute in {self.spec.precision}", precision_flaw
        losses, skipped_steps = measurement.window.losses, measurement.skipped_steps
        steps = len(losses)
        for number, loss in enumerate(losses, 1):
            if not math.isfinite(loss):
                reason = "a loss in the measured window is not a finite number"
                return "nan", reason, f"loss {loss} in measured step {number} of {steps}"
        if skipped_steps:
            reason = "the gradient scaler dropped updates with infinite or NaN gradients, and such steps are faster"
            return "nan", reason, f"{skipped_steps} of {steps} measured steps were dropped"
        return "ok", "", ""

    def _find_distorting_conditions(self) -> list[str]:
        """Return a flag for each condition of this process or machine that distorts measurements."""
        flags: list[str] = []
        cores = len(os.sched_getaffinity(0))
        ranks = (self.rank_environment.local_ranks or 0) * self.spec.replicas
        is_paced = bool(
            self.spec.pace_gflops
        )  # then the duration of a step depends neither on the number of cores nor on their speed
        if self.device.type == "cpu" and ranks > cores and not is_paced:
            flags.append(f"{ranks} ranks share {cores} cores")
        min_steps = _MIN_PACED_WARMUP_STEPS if is_paced else _MIN_WARMUP_STEPS
        if self.spec.warmup_steps_max is None and self.spec.warmup_steps < min_steps:
            steps = "step" if self.spec.warmup_steps == 1 else "steps"
            flags.append(f"the run had only {self.spec.warmup_steps} warm-up {steps}")
        if self.device.type == "cpu" and precision.is_emulated_on_this_cpu(self.spec.precision) and not is_paced:
            flags.append(f"{self.spec.precision} is emulated on this CPU")
        return flags


def _replace_non_finite(loss: float) -> float | None:
    """Return a loss unchanged if it is finite, else None."""
    return loss if math.isfinite(loss) else None


def _read_memory_peaks(device: torch.device) -> dict[str, int]:
    """Read the peak memory use (bytes) of host and device by name, as far as it is available.

    The host's peak comes from /proc, because ru_maxrss of a forked process starts at the size of its parent.
    """
    peaks = {}
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmHWM:"):
            peaks["host_memory_peak_bytes"] = int(line.split()[1]) * 1024
    if device.type != "cpu":
        memory = get_device_module(device.type)
        peaks["device_memory_allocated_peak_bytes"] = memory.max_memory_allocated(device)
        peaks["device_memory_reserved_peak_bytes"] = memory.max_memory_reserved(device)
    return peaks


def describe_full_memory(reserved_bytes: int, total_bytes: int) -> str:
    """Describe the peak use of a device's memory if nearly all of it was used. Returns an empty string otherwise.

    Args:
        reserved_bytes: peak number of bytes that torch's allocator reserved.
        total_bytes: total memory of the device in bytes.
    """
    if reserved_bytes < _FULL_MEMORY_SHARE * total_bytes:
        return ""
    return f"peak memory use: {reserved_bytes / 2**30:.1f} of {total_bytes / 2**30:.1f} GiB"


def unsupported_run_reason(spec: TrainSpec, world_size: int, device: torch.device) -> str | None:
    """Return the reason why a run with this specification is unsupported on a device, or None if it is supported."""
    options, name = spec.resolve_options(), choose_strategy_name(spec, world_size)
    if reason := unsupported_mixed_reason(options, spec.precision, world_size):
        return reason
    if device.type == "cpu" and options["input"] == "h2d":
        return "option 'input: h2d' is not supported on a CPU, where host and device have the same memory"
    if reason := precision.unsupported_reason(spec.precision, device, options["emulation"] == "allow"):
        return reason
    if spec.uses_channels_last and name == "fsdp":
        return "option 'channels_last' is not supported with fsdp, because fully_shard needs contiguous weights (torch 2.13)"
    if options["compile"] and name == "dp":
        return "option 'compile' is not supported with DataParallel, whose new modules would be compiled again in every step"
    if options["compile"] and spec.pace_gflops:
        return "option 'compile' is not supported with emulation.pace, because a compiled model has no modules to slow down"
    if options["compile"] and (problem := find_compiler_problem()):
        return f"option 'compile' needs a working C++ compiler ({problem})"
    if spec.pace_gflops and models.count_step_flops(spec) is None:
        return f"{spec.model} is not supported with emulation.pace, because its operations cannot be counted"
    return None


def unsupported_model_reason(spec: TrainSpec, trainable: models.Trainable) -> str | None:
    """Return the reason why a model, once built, does not support the specification, or None if it does."""
    if spec.resolve_options()["activation_checkpointing"] and not trainable.find_layers():
        return f"option 'activation_checkpointing' needs repeated layers, which {spec.model} does not have"
    if spec.is_mixed_precision and precision.has_batch_norms(trainable):
        return f"option 'fsdp_precision: mixed' does not support the batch norms of {spec.model}; use autocast"
    return None


def find_compiler_problem() -> str | None:
    """Return the reason why the C++ compiler that torch uses cannot compile with Python's headers, or None if it can."""
    names = (os.environ["CXX"],) if os.environ.get("CXX") else _COMPILERS
    compiler = next((path for name in names if (path := shutil.which(name))), None)
    if compiler is None:
        return f"none of {', '.join(names)} is on the PATH"
    command = [compiler, "-x", "c++", "-fsyntax-only", f"-I{sysconfig.get_paths()['include']}", "-"]
    try:
        process = subprocess.run(
            command,
            input=_TEST_PROGRAM,
            capture_output=True,
            text=True,
            check=False,
            timeout=_COMPILER_TIMEOUT_S,
            encoding="utf-8",
        )
    except (OSError, subprocess.SubprocessError) as error:
        return f"{compiler}: {error}"
    if process.returncode == 0:
        return None
    return f"{compiler}: {(process.stderr.strip().splitlines() or ['exit code ' + str(process.returncode)])[0]}"
