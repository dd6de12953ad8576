"""What a rank does between its environment and its result: group, model, input, warm-up, window. Needs torch."""

from __future__ import annotations

import math
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from campaign.documents.record import Status
from campaign.errors import ConfigError
from campaign.workloads.trainer import models, precision
from campaign.workloads.trainer.communication_cost import measure_communication
from campaign.workloads.trainer.flops import flops_per_step
from campaign.workloads.trainer.input_pipeline import Feed, make_feed
from campaign.workloads.trainer.precision import SeenTypes
from campaign.workloads.trainer.rank_process import Place
from campaign.workloads.trainer.rank_result import RankResult
from campaign.workloads.trainer.run_spec import TrainSpec
from campaign.workloads.trainer.timed_steps import Training, Window, make_clock, measure
from campaign.workloads.trainer.unsupported_options import unsupported_by, unsupported_reason

_FEWEST_WARMUP_STEPS = 5  # DDP rebuilds its buckets after the first, cuDNN tunes per shape, the fp16 scaler backs off


class Session:
    """One rank's run. `run` measures; after it `release`, then `leave_group`, in this order."""

    def __init__(self, spec: TrainSpec, place: Place, import_s: float) -> None:
        self.spec = spec
        self.place = place
        self.device = torch.device("cpu")
        self.phases_s: dict[str, float] = {"import": import_s}
        self._training: Training | None = None
        self._parameters: int | None = None
        self._in_channels_last = False
        self._measured: dict[str, Any] = {}
        self._input_flags: tuple[str, ...] = ()

    def run(self) -> RankResult:
        """The whole run; raises what torch raises."""
        # Before any tensor work: OpenMP's pool is made at the first, and a rank stands for one core.
        torch.set_num_threads(1)
        self.device = self._choose_device()
        if reason := unsupported_reason(self.spec, self.place.world_size, self.device):
            return self._result("unsupported", reason=reason)
        precision.switch_on(self.spec.precision)
        if self.device.type == "cuda":
            torch.backends.cudnn.benchmark = True
        with self._phase("group"):
            self._join_group()
        with self._phase("model"):
            trainable = self._build()
        if reason := unsupported_by(self.spec, trainable):
            return self._result("unsupported", reason=reason)
        with self._phase("input"):
            feed, input_bytes = make_feed(self.spec, trainable, self.place.rank, self.place.world_size, self.device)
        self._note(feed)
        with self._phase("wrap"):
            training = Training(self.spec, trainable, feed, self.device, self.place.world_size)
            self._training = training
            seen = SeenTypes(trainable.network, inside=training.strategy.name == "fsdp")
        with self._phase("warmup"):
            loss_first, warmup_steps = training.warm_up()
            clock = make_clock(self.device)
            clock.synchronize()
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        applied = training.applied_steps
        waited_s = feed.waited_s
        window = measure(training.step, self.spec.measured_steps, clock, self._barrier)
        input_read_s = None if waited_s is None or feed.waited_s is None else feed.waited_s - waited_s
        skipped = self.spec.measured_steps - (training.applied_steps - applied)
        self._measured = {**_memory(self.device), **self._traffic(training), "input_bytes_per_step": input_bytes}
        self._measured["input_read_s"] = input_read_s
        self._measured["precision"] = precision.in_force(self.spec.precision, self.device, *seen.types())
        if training.strategy.name == "ddp" and self.spec.resolved_options()["measure_communication"]:
            found = measure_communication(training, window.step_times_s)
            self._measured |= {"exposed_communication_s": found.exposed_s, "allreduce_s": found.allreduce_s}
        if self.place.rank == 0:
            self._measured["flops_per_step"] = flops_per_step(self.spec)
        return self._judge(window, skipped, loss_first, warmup_steps)

    def failed(self, status: Status, reason: str, evidence: str) -> RankResult:
        """The result of a run that an exception ended."""
        return self._result(status, reason=reason, evidence=evidence)

    def release(self) -> None:
        """Let go of everything that holds the process group."""
        self._training = None

    def leave_group(self) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()

    @contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        start_s = time.perf_counter()
        try:
            yield
        finally:
            self.phases_s[name] = time.perf_counter() - start_s

    def _note(self, feed: Feed) -> None:
        """Writing a dataset is no part of the input: a real one stands there already."""
        self._input_flags = feed.flags
        if feed.written_s is not None:
            self.phases_s["dataset"] = feed.written_s
            self.phases_s["input"] -= feed.written_s

    def _choose_device(self) -> torch.device:
        if self.spec.device == "cpu":
            return torch.device("cpu")
        count = torch.cuda.device_count()
        if count == 0:
            raise ConfigError(
                "device cuda was asked for and this process sees none (driver, CUDA_VISIBLE_DEVICES, torch build)"
            )
        if count < self.spec.replicas:
            raise ConfigError(f"{self.spec.replicas} devices were asked for in one process, and it sees {count}")
        # One visible device: the launcher has bound each rank to its own. More: the local rank chooses.
        index = 0 if count == 1 else self.place.local_rank
        if index >= count:
            raise ConfigError(f"local rank {index} has no device of its own: this process sees {count}")
        device = torch.device("cuda", index)
        torch.cuda.set_device(device)
        return device

    def _join_group(self) -> None:
        if self.place.world_size == 1:
            return
        time_out = timedelta(seconds=self.spec.time_out_s)
        where: dict[str, Any] = {"rank": self.place.rank, "world_size": self.place.world_size, "timeout": time_out}
        if self.device.type == "cuda":
            dist.init_process_group("nccl", device_id=self.device, **where)
        else:
            dist.init_process_group("gloo", **where)

    def _barrier(self) -> None:
        if self.place.world_size > 1:
            dist.barrier(device_ids=[self.device.index] if self.device.type == "cuda" else None)

    def _build(self) -> models.Trainable:
        torch.manual_seed(self.spec.seed)
        trainable = models.build(self.spec.model, self.spec.resolved_options())
        trainable.to(self.device)
        self._in_channels_last = self.spec.channels_last and any(weight.dim() == 4 for weight in trainable.parameters())
        if self._in_channels_last:
            trainable.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stubs leave it out
        trainable.train()
        self._parameters = sum(parameter.numel() for parameter in trainable.parameters())
        return trainable

    def _traffic(self, training: Training) -> dict[str, int | None]:
        traffic = training.strategy.traffic
        return {
            "gradient_bytes": traffic.gradient_bytes,
            "allreduce_bytes_per_step": traffic.allreduce_bytes,
            "communication_bytes_per_step": traffic.communication_bytes,
        }

    def _judge(self, window: Window, skipped: int, loss_first: float | None, warmup_steps: int) -> RankResult:
        status: Status = "ok"
        reason = evidence = ""
        if not window.finite:
            status, reason = "nan", "a loss in the measured window is not a finite number"
            first = next(index for index, loss in enumerate(window.losses) if not math.isfinite(loss))
            evidence = f"loss {window.losses[first]} in measured step {first + 1} of {self.spec.measured_steps}"
        elif skipped:
            status, reason = "nan", "the gradient scaler dropped updates (gradients not finite); such steps are faster"
            evidence = f"{skipped} of {self.spec.measured_steps} measured steps dropped"
        return self._result(
            status,
            reason=reason,
            evidence=evidence,
            step_times_s=window.step_times_s,
            window_started=window.started,
            window_s=window.window_s,
            process_time_s=window.process_time_s,
            loss_first=_number(loss_first if loss_first is not None else window.losses[0]),
            loss_last=_number(window.losses[-1]),
            warmup_steps=warmup_steps,
            skipped_steps=skipped,
            **self._measured,
        )

    def _result(self, status: Status, **fields: Any) -> RankResult:
        flags = [*self._flags(), *self._input_flags]
        if (found := fields.get("precision")) and found != self.spec.precision:
            flags.append(f"precision in force is {found}, not {self.spec.precision}")
        return RankResult(
            rank=self.place.rank,
            world_size=self.place.world_size,
            host=socket.gethostname(),
            status=status,
            phases_s=self.phases_s,
            samples_per_step=self.spec.batch * self.spec.replicas,
            parameters=self._parameters,
            torch_version=torch.__version__,
            flags=tuple(flags),
            **_identity(self.device),
            **(fields if self._measured else {**_memory(self.device), **fields}),
        )

    def _flags(self) -> list[str]:
        flags = []
        cores = len(os.sched_getaffinity(0))
        ranks = (self.place.local_ranks or 0) * self.spec.replicas
        if self.device.type == "cpu" and ranks > cores:
            flags.append(f"{ranks} ranks on {cores} cores")
        if self.spec.warmup_steps < _FEWEST_WARMUP_STEPS:
            flags.append(f"only {self.spec.warmup_steps} warm-up steps")
        if self._in_channels_last:
            flags.append("channels_last")
        if self.device.type == "cpu" and precision.emulated_here(self.spec.precision):
            flags.append(f"{self.spec.precision} is emulated on this CPU")
        return flags


def _number(loss: float | None) -> float | None:
    return loss if loss is not None and math.isfinite(loss) else None


def _memory(device: torch.device) -> dict[str, int]:
    """Peaks in bytes, those that exist: of the host's from /proc (a fork's ru_maxrss starts at its parent's size)."""
    peaks = {}
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            peaks["host_memory_peak_bytes"] = int(line.split()[1]) * 1024
    if device.type == "cuda":
        peaks["device_memory_allocated_peak_bytes"] = torch.cuda.max_memory_allocated(device)
        peaks["device_memory_reserved_peak_bytes"] = torch.cuda.max_memory_reserved(device)
    return peaks


def _identity(device: torch.device) -> dict[str, str]:
    if device.type == "cuda":
        found = torch.cuda.get_device_properties(device)
        return {"device_name": found.name, "device_uuid": str(found.uuid)}
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return {"device_name": line.partition(":")[2].strip()}
    return {"device_name": os.uname().machine}
