"""Built-in PyTorch training: a rank a device, forked from a parent that has torch loaded already; DataParallel is one process."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Literal

from campaign.documents.cell import Cell, Scalar
from campaign.documents.record import Failure
from campaign.errors import ConfigError, install_command, nearest
from campaign.workloads.log_reader import Log
from campaign.workloads.protocol import Ended, Outcome, Run, Step, Surroundings, Table, Workload
from campaign.workloads.trainer.model_catalog import COMMON_OPTIONS, FAMILY_OPTIONS, MODELS, model_info, resolve_options
from campaign.workloads.trainer.rank_interface import RankResult, read_results

_COLLECTIVE_TIME_OUT_S = 120.0
_FOLLOWS = {"comm_error", "comm_timeout"}
_LARGEST = (
    "parameters",
    "gradient_bytes",
    "allreduce_bytes_per_step",
    "communication_bytes_per_step",
    "exposed_communication_s",
    "allreduce_s",
    "skipped_steps",
    "host_memory_peak_bytes",
    "device_memory_allocated_peak_bytes",
    "device_memory_reserved_peak_bytes",
    "process_time_s",
)
_SHARED_OPTIONS = frozenset(COMMON_OPTIONS) - {"learning_rate"}
_INTRODUCTION = """\
Training steps of a built-in PyTorch model with random weights on synthetic data. The same code runs on CPUs (gloo) and on GPUs
(NCCL); CUDA is not verified on hardware yet. `options` are those of the model, with the model's defaults. Options that every model
has may be axes of a campaign even if the workload file does not list them. An option that does not work on a device, or together
with another option, is recorded as `unsupported` with the reason.

| precision | Meaning |
|---|---|
| `fp32` | fp32 products without TF32 |
| `tf32` | fp32 storage, products on TF32 tensor cores (what NVIDIA's containers do by default); CUDA only |
| `fp16`, `bf16` | autocast; weights and gradients stay fp32, so the all-reduced bytes are the same as in fp32 |
| `fp16-o2` | weights and gradients in fp16 with fp32 master weights (apex O2, the FP16 of the studies): half the bytes |

| `parallel` | Meaning |
|---|---|
| `ddp` | DistributedDataParallel: gradients are all-reduced during the backward pass |
| `zero1` | DDP with the optimizer's state sharded (ZeRO stage 1) |
| `fsdp` | weights, gradients and state sharded (FSDP2, ZeRO stage 3) |
| `dp` | one process for all devices of one host, as DataParallel; on a CPU the same algorithm with threads |

`batch` is the number of samples per device and optimizer step; `accumulation: k` splits it into k passes of `batch / k`. With
`input: storage`, every rank writes a data set of real shapes to the configuration's storage (system key `storage`) and reads its
samples from there.
"""
_EXAMPLE = """\
name: bert-short
kind: train
model: bert-nano
precisions: [fp32, bf16]
options: {seq_len: 32}
"""


class TrainWorkload(Workload):
    """Built-in PyTorch training on synthetic data."""

    introduction: ClassVar[str] = _INTRODUCTION
    example: ClassVar[str] = _EXAMPLE
    needs_torch: ClassVar[bool] = True
    lengthens_warmup: ClassVar[bool] = True

    kind: Literal["train"]
    """Built-in training."""
    model: str
    """Built-in model, or `transformers:NAME` or `torchvision:NAME` if that package is installed."""

    @classmethod
    def tables(cls) -> Iterator[Table]:
        yield Table(
            "Built-in models",
            "`transformers:NAME` and `torchvision:NAME` are built where those packages are installed.",
            ("Model", "Description", "One sample", "Parameters", "Default options"),
            [
                (
                    f"`{model.name}`",
                    model.description,
                    model.input_description,
                    f"{model.parameters:,}" if model.parameters else "",
                    ", ".join(f"`{k}: {v}`" for k, v in model.default_options.items() if k not in _SHARED_OPTIONS),
                )
                for model in MODELS.values()
            ],
        )
        of_all = [("all", COMMON_OPTIONS)]
        of_families = [
            (", ".join(f"`{m.name}`" for m in MODELS.values() if m.family == family) or f"`{family}:NAME`", options)
            for family, options in FAMILY_OPTIONS.items()
        ]
        rows = [
            (f"`{name}`", models, option.words(), option.description)
            for models, options in (*of_all, *of_families)
            for name, option in options.items()
        ]
        yield Table("Options of models", "", ("Option", "Models", "Type", "Meaning"), rows)

    @property
    def variable_options(self) -> Collection[str]:
        return {*self.options, *COMMON_OPTIONS}

    def summary(self) -> Mapping[str, Any]:
        return {"model or program": self.model, "parameters": model_info(self.model).parameters}

    def problems(self, around: Surroundings) -> Iterator[str]:
        try:
            model_info(self.model)
        except ConfigError as error:
            yield f"{around.place('model')}: {error}"
            return
        given = [(option, value, around.place("options", option)) for option, value in self.options.items()]
        for option, values in around.axes.items():
            given += [(option, value, around.axis_place(option, index)) for index, value in enumerate(values)]
        for option, value, where in given:
            try:
                resolve_options(self.model, {option: value})
            except ConfigError as error:
                known = model_info(self.model).options
                yield f"{where}: {error}" + ("" if option in known else f"; {nearest(option, known)}")

    def counted_options(self, options: Mapping[str, Scalar]) -> Mapping[str, Scalar]:
        """Options that every model has count where they differ from the default, so that one may become an axis, or a later version
        may add one, without measuring anything again."""
        defaults = model_info(self.model).default_options
        return {
            name: value
            for name, value in options.items()
            if name not in COMMON_OPTIONS or name not in defaults or value != defaults[name]
        }

    def reads_storage(self, options: Mapping[str, Scalar]) -> bool:
        return options.get("input") == "storage"

    def missing(self) -> str | None:
        if importlib.util.find_spec("torch") is None:
            cpu = install_command("train", "--index-url", "https://download.pytorch.org/whl/cpu")
            return (
                f"PyTorch is not installed; run: {cpu} (for GPUs, without --index-url: it brings 20 packages of CUDA)"
            )
        return None

    def objection(self, cell: Cell, runs_on: str) -> str | None:
        if runs_on == "cpu" and cell.precision == "tf32":
            return "tf32 is a format of GPU tensor cores; this device is a CPU"
        options = self._options(cell)
        hosts = cell.configuration.hosts
        if options["parallel"] == "dp" and hosts > 1:
            return f"parallel dp is DataParallel, one process for the devices of one host; this configuration has {hosts} hosts"
        if cell.batch % (steps := int(options["accumulation"])):
            return f"accumulation: a batch of {cell.batch} a device cannot be divided into {steps} micro-steps"
        if options["measure_communication"] and options["parallel"] != "ddp" and cell.configuration.ranks > 1:
            return f"measure_communication leaves the all-reduce of ddp out; parallel {options['parallel']} has no such step"
        return None

    def _options(self, cell: Cell) -> dict[str, Scalar]:
        return resolve_options(self.model, {**self.options, **cell.options})

    def _replicas(self, cell: Cell) -> int:
        """Devices of one process."""
        return cell.configuration.ranks if self._options(cell)["parallel"] == "dp" else 1

    def step(self, run: Run) -> Step:
        cell, settings = run.cell, run.cell.settings
        options, replicas = self._options(cell), self._replicas(cell)
        specification = {
            "model": self.model,
            "batch": cell.batch,
            "replicas": replicas,
            "precision": cell.precision,
            "warmup_steps": settings.warmup_steps,
            "warmup_steps_max": settings.warmup_steps_max,
            "measured_steps": settings.measured_steps,
            "seed": settings.seed,
            "options": {**self.options, **cell.options},
            "device": run.runs_on,
            "time_out_s": min(_COLLECTIVE_TIME_OUT_S, settings.time_limit_s),
        }
        if options["input"] == "storage":
            if run.storage is None:
                raise ConfigError(
                    "option input: storage needs a directory; add "
                    f"`storage: {{{cell.configuration.storage}: {{path: ...}}}}` to the system file"
                )
            specification |= {
                "storage_dir": str(run.storage.path),
                "storage_gb_per_s": run.storage.gb_per_s,
                # Processes of a host, who share its storage.
                "storage_ranks": cell.configuration.devices_used // replicas,
            }
        path = run.directory / "spec.json"
        path.write_text(json.dumps(specification))
        environment = {"CAMPAIGN_SPEC": str(path), "CAMPAIGN_OUT": str(run.directory)}
        argv = (sys.executable, "-m", "campaign.workloads.trainer.rank")
        if replicas > 1:
            environment |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
        return Step(argv, environment, run.ranks_by_host, per_rank=replicas == 1, preload="campaign.workloads.trainer")

    def read(self, run: Run, ended: Ended, log: Log) -> Outcome:
        results = read_results(run.directory, run.cell.configuration.ranks // self._replicas(run.cell))
        whole = [result for result in results if result is not None]
        failed = [result for result in whole if result.status != "ok"]
        limited = ended.timed_out or ended.memory_limit_hit
        if limited or (len(whole) < len(results) and not failed):
            nothing = Failure(reason="a rank left no result", evidence=f"exit codes {ended.codes}")
            return ended.failure(log) or Outcome("incomplete", nothing)
        if len(whole) < len(results) or any(result.status != "nan" for result in failed):
            # The rank with a complaint of its own is the cause; ranks that lost a peer only follow.
            cause = next((result for result in failed if result.status not in _FOLLOWS), failed[0])
            if cause.status in _FOLLOWS and (found := ended.failure(log)):
                return found
            return Outcome(cause.status, _failure(cause))
        return _measured(run, whole, ended, failed)


def _failure(result: RankResult) -> Failure:
    return Failure(reason=result.reason, evidence=result.evidence, rank=result.rank)


def _measured(run: Run, results: Sequence[RankResult], ended: Ended, not_a_number: Sequence[RankResult]) -> Outcome:
    windows = tuple(result.window_s or 0.0 for result in results)
    slowest = max(windows)
    steps = run.cell.settings.measured_steps
    hang = {"exit_hang"} if ended.exit_hang else set()
    phases = {
        phase: max(result.phases_s.get(phase, 0.0) for result in results)
        for phase in dict.fromkeys(phase for result in results for phase in result.phases_s)
    }
    if starts := [result.window_started for result in results if result.window_started is not None]:
        # From the launch of the step to the first measured one of the last rank.
        phases["first_step"] = max(starts) - ended.started
    return Outcome(
        status="nan" if not_a_number else "ok",
        failure=_failure(not_a_number[0]) if not_a_number else None,
        # All ranks finish a step together, so the slowest window is the job's; ranks' own rates must not be added up.
        throughput_per_s=run.cell.batch_global * steps / slowest if slowest > 0 else None,
        step_times_s=tuple(result.step_times_s for result in results),
        warmup_steps=max(result.warmup_steps for result in results),
        window_s=windows,
        metrics={**_metrics(results), **efficiency(run, results, slowest)},
        phases_s=phases,
        steady=_steady(results),
        flags=tuple(sorted(hang.union(*(result.flags for result in results)))),
    )


def _steady(results: Sequence[RankResult]) -> tuple[float, float] | None:
    """When all ranks were in their windows; None where one does not say, or the clocks of their hosts leave nothing."""
    windows = [(r.window_started, r.window_started + r.window_s) for r in results if r.window_started and r.window_s]
    if len(windows) < len(results):
        return None
    start, end = max(start for start, _ in windows), min(end for _, end in windows)
    return (start, end) if start < end else None


def _metrics(results: Sequence[RankResult]) -> dict[str, float]:
    """Numbers beside the rate: losses of rank 0, else the largest of all ranks; one that no rank has is absent."""
    losses = {"loss_first": results[0].loss_first, "loss_last": results[0].loss_last}
    found = {name: float(value) for name, value in losses.items() if value is not None}
    for name in _LARGEST:
        if values := [value for result in results if (value := getattr(result, name)) is not None]:
            in_mib = name.endswith("_peak_bytes")
            found[name.replace("_bytes", "_mib") if in_mib else name] = max(values) / (2**20 if in_mib else 1)
    return found


def efficiency(run: Run, results: Sequence[RankResult], slowest_s: float) -> dict[str, float]:
    """What a training run made of its devices, links and storage, by name; what cannot be known is absent.

    slowest_s: the longest window of all ranks. flops_per_step: of all ranks, by the model; achieved_tflops: of one device; mfu_pct:
    that, of its peak in this precision (Chowdhery et al. 2022); flops_per_allreduce_byte: a rank's work for each byte that it hands
    to all-reduces. input_wait_s: the window's time without input, of the rank that waited longest; input_gb_per_s: what all ranks
    together took from storage, over the window.
    """
    found: dict[str, float] = {}
    first, cell = results[0], run.cell
    if slowest_s > 0 and first.flops_per_step and first.samples_per_step:
        per_step = first.flops_per_step / first.samples_per_step * cell.batch_global
        achieved = per_step * cell.settings.measured_steps / slowest_s / cell.configuration.ranks / 1e12
        found |= {"flops_per_step": per_step, "achieved_tflops": achieved}
        if run.peak_tflops:
            found["mfu_pct"] = 100 * achieved / run.peak_tflops
        if first.allreduce_bytes_per_step:
            found["flops_per_allreduce_byte"] = first.flops_per_step / first.allreduce_bytes_per_step
    waits = [result.input_read_s for result in results if result.input_read_s is not None]
    if slowest_s > 0 and waits:
        step_bytes = sum(result.input_bytes_per_step or 0 for result in results)
        rate = step_bytes * cell.settings.measured_steps / slowest_s / 1e9
        found |= {"input_wait_s": max(waits), "input_gb_per_s": rate}
    return found
