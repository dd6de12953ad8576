"""Built-in PyTorch training with one rank per device, forked from a parent process that has already loaded torch.

DataParallel uses a single process.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, ClassVar, Literal

from campaign.common.accelerators import ACCELERATORS, AcceleratorKind
from campaign.common.errors import ConfigError, suggest_name
from campaign.spec.cell import Cell, Scalar
from campaign.workloads.log_reader import Log
from campaign.workloads.protocol import Outcome, ReferenceTable, Run, Step, StepEnd, ValidationContext, Workload
from campaign.workloads.trainer.model_catalog import (
    COMMON_OPTIONS,
    FAMILY_OPTIONS,
    MODELS,
    find_model_info,
    resolve_options,
)
from campaign.workloads.trainer_runs import (
    build_ranks_step,
    judge_ranks,
    missing_torch_requirement,
    unsupported_strategy_reason,
)

_COLLECTIVE_TIMEOUT_S = 120.0
_SHARED_OPTIONS = frozenset(COMMON_OPTIONS) - {"learning_rate"}
_REMOVED_DEFAULTS: Mapping[str, Scalar] = {
    "tensor_parallel": 1,
    "sequence_parallel": False,
    "pipeline_parallel": 1,
    "pipeline_schedule": "1f1b",
    "rank_order": "tp-dp-pp",
}
"""Defaults of removed options that stored campaigns may have as axes. Thanks to them, cells keep their identities."""
_INTRODUCTION = """\
Training steps of a built-in PyTorch model with random weights on synthetic data. The same code runs on CPUs (gloo) and on GPUs
(NCCL, RCCL, XCCL), but was not yet tested on GPUs. `options` are those of the model, with the model's defaults. Options that all
models have can be axes of a campaign even if the workload file does not list them. A combination of options that a device or
another option does not support is recorded as `unsupported`, with the reason.

| precision | Meaning |
|---|---|
| `fp32` | fp32 products without TF32 |
| `tf32` | fp32 storage with products on TF32 tensor cores (default of NVIDIA's containers); CUDA only |
| `fp16`, `bf16` | autocast; weights and gradients stay in fp32, so as many bytes are all-reduced as in fp32 |
| `bf16` with `fsdp_precision: mixed` | weights gathered and layers computed in bf16; gradients reduced in fp32 (`parallel: fsdp`) |
| `fp16-o2` | weights and gradients in fp16 with fp32 master weights (apex O2, "FP16" in published studies); half as many bytes |

| `parallel` | Meaning |
|---|---|
| `ddp` | DistributedDataParallel: gradients are all-reduced during the backward pass |
| `zero1` | DDP with sharded optimizer state (ZeRO stage 1) |
| `fsdp` | sharded weights, gradients and optimizer state (FSDP2, ZeRO stage 3) |
| `dp` | DataParallel: one process for all devices of one host; on a CPU the same algorithm with threads |

`batch` is the number of samples per device and optimizer step. `accumulation: k` splits it into k passes of `batch / k`. With
`input: storage`, every rank writes a dataset of realistic shapes to the configuration's storage (system key `storage`) and reads
its samples from there. [Train large models](../how-to/large-models.md) describes how to measure models that do not fit on one
device.
"""
_EXAMPLE = """\
name: bert-short
kind: train
model: bert-nano
precisions: [fp32, bf16]
options: {seq_len: 32}
"""


class TrainWorkload(Workload):
    """Workload of built-in PyTorch training on synthetic data."""

    introduction: ClassVar[str] = _INTRODUCTION
    example: ClassVar[str] = _EXAMPLE
    needs_torch: ClassVar[bool] = True
    extends_warmup: ClassVar[bool] = True
    supports_min_durations: ClassVar[bool] = True

    kind: Literal["train"]
    """Built-in training."""
    model: str
    """Built-in model, or `transformers:NAME` or `torchvision:NAME` if that package is installed."""

    @classmethod
    def reference_tables(cls) -> Iterator[ReferenceTable]:
        """Yield the tables of the built-in models and of their options for the reference page."""
        yield ReferenceTable(
            "Built-in models",
            "`transformers:NAME` and `torchvision:NAME` are available if these packages are installed.",
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
        common_rows = [("all", COMMON_OPTIONS)]
        family_rows = [
            (", ".join(f"`{m.name}`" for m in MODELS.values() if m.family == family) or f"`{family}:NAME`", options)
            for family, options in FAMILY_OPTIONS.items()
        ]
        rows = [
            (f"`{name}`", models, option.format_values(), option.description)
            for models, options in (*common_rows, *family_rows)
            for name, option in options.items()
        ]
        yield ReferenceTable("Options of models", "", ("Option", "Models", "Type", "Meaning"), rows)

    @property
    def variable_options(self) -> Collection[str]:
        """Names of the options that may be axes of a campaign, including options that all models have."""
        return {*self.options, *COMMON_OPTIONS}

    def list_columns(self) -> Mapping[str, Any]:
        """Return the model and the number of its parameters as columns of `campaign workload list`."""
        return {"model or program": self.model, "parameters": find_model_info(self.model).parameters}

    def problems(self, context: ValidationContext) -> Iterator[str]:
        """Yield an error message for an unknown model and for each invalid option or axis value."""
        try:
            find_model_info(self.model)
        except ConfigError as error:
            yield f"{context.format_location('model')}: {error}"
            return
        settings = [
            (option, value, context.format_location("options", option)) for option, value in self.options.items()
        ]
        for option, values in context.axes.items():
            settings += [
                (option, value, context.format_axis_location(option, index)) for index, value in enumerate(values)
            ]
        for option, value, location in settings:
            try:
                resolve_options(self.model, {option: value})
            except ConfigError as error:
                model_options = find_model_info(self.model).options
                yield f"{location}: {error}" + (
                    "" if option in model_options else f"; {suggest_name(option, model_options)}"
                )

    def select_identity_options(self, options: Mapping[str, Scalar]) -> Mapping[str, Scalar]:
        """Select the options that are part of a cell's identity. Common options are left out if they have their defaults.

        Common options can therefore become axes, or be added in later versions, without any cell having to be measured again.
        """
        model_defaults = find_model_info(self.model).default_options
        defaults = {
            **_REMOVED_DEFAULTS,
            **{name: model_defaults[name] for name in COMMON_OPTIONS if name in model_defaults},
        }
        return {name: value for name, value in options.items() if name not in defaults or value != defaults[name]}

    def reads_storage(self, options: Mapping[str, Scalar]) -> bool:
        """Return whether training with these options reads its samples from the configuration's storage."""
        return options.get("input") == "storage"

    def missing_requirements(self, kinds: Collection[AcceleratorKind] = ()) -> str | None:
        """Return an error message if PyTorch is not installed with support for these kinds of devices, else None."""
        return missing_torch_requirement(kinds)

    def unsupported_reason(self, cell: Cell, runs_on: AcceleratorKind) -> str | None:
        """Return the reason why a cell can never be trained on this kind of device, or None if it can."""
        if runs_on != "cuda" and cell.precision == "tf32":
            return f"tf32 is a mode of NVIDIA's tensor cores and not supported on a device of kind {ACCELERATORS[runs_on].title}"
        return unsupported_strategy_reason(cell, self._resolve_options(cell))

    def _resolve_options(self, cell: Cell) -> dict[str, Scalar]:
        """Return all options of a cell. Options that it does not set have the model's default values."""
        return resolve_options(self.model, {**self.options, **cell.options})

    def _count_devices_per_process(self, cell: Cell) -> int:
        """Return the number of devices that each process of a cell's run uses."""
        return cell.configuration.ranks if self._resolve_options(cell)["parallel"] == "dp" else 1

    def step(self, run: Run) -> Step:
        """Build the step that starts the ranks of a training run."""
        cell, settings = run.cell, run.cell.settings
        options, replicas = self._resolve_options(cell), self._count_devices_per_process(cell)
        specification: dict[str, Any] = {
            "model": self.model,
            "replicas": replicas,
            "warmup_steps_max": settings.warmup_steps_max,
            "warmup_min_s": settings.warmup_min_s or 0.0,
            "measured_min_s": settings.measured_min_s or 0.0,
            "seed": settings.seed,
            "options": {**self.options, **cell.options},
            "device": run.runs_on,
            "pace_gflops": [run.pace[device.model] for device in run.devices if device.model in run.pace],
            "time_out_s": min(_COLLECTIVE_TIMEOUT_S, settings.time_limit_s),
        }
        if options["input"] == "storage":
            if run.storage is None:
                raise ConfigError(
                    "option 'input: storage' needs a directory on the storage; add "
                    f"`storage: {{{cell.configuration.storage}: {{path: ...}}}}` to the system file"
                )
            specification |= {
                "storage_dir": str(run.storage.path),
                "storage_gb_per_s": run.storage.gb_per_s,
                # Number of processes per host, which share its storage.
                "storage_ranks": cell.configuration.devices_used // replicas,
            }
        return build_ranks_step(run, specification, replicas)

    def read(self, run: Run, step_end: StepEnd, log: Log) -> Outcome:
        """Determine the outcome of a training run from the results of its ranks."""
        return judge_ranks(
            run, step_end, log, run.cell.configuration.ranks // self._count_devices_per_process(run.cell)
        )
