"""The specification of one training run, which every rank of it reads. Without torch."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from campaign.documents.cell import Scalar
from campaign.documents.fields import Precision
from campaign.errors import ConfigError
from campaign.workloads.trainer.model_catalog import ModelInfo, model_info, resolve_options

Parallel = Literal["single", "ddp", "dp", "zero1", "fsdp"]


class TrainSpec(BaseModel):
    """One training run. Closed and frozen; every rank of the run reads the same file.

    batch: samples per device and optimizer step; replicas: devices of one process (more than 1: `parallel: dp`); warmup_steps come
    before the window, measured_steps make it up; time_out_s: how long a collective operation may take before the run counts as
    stuck; storage_dir: where `input: storage` keeps its
    dataset; storage_gb_per_s: a host's storage_ranks together read no faster, in place of a link that is not there.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str
    batch: int = Field(ge=1)
    replicas: int = Field(default=1, ge=1)
    precision: Precision = "fp32"
    warmup_steps: int = Field(default=5, ge=0)
    measured_steps: int = Field(ge=1)
    seed: int = Field(default=1234, ge=0)
    options: dict[str, Scalar] = Field(default_factory=dict)
    device: Literal["cpu", "cuda"] = "cpu"
    storage_dir: Path | None = None
    storage_gb_per_s: float | None = Field(default=None, gt=0)
    storage_ranks: int = Field(default=1, ge=1)
    time_out_s: float = Field(default=120.0, gt=0)

    @model_validator(mode="after")
    def _options_fit_the_model(self) -> TrainSpec:
        try:
            options = resolve_options(self.model, self.options)
        except ConfigError as error:
            raise ValueError(str(error)) from error
        if self.batch % int(options["accumulation"]):
            raise ValueError(
                f"batch {self.batch} cannot be divided into {options['accumulation']} micro-steps (accumulation)"
            )
        if options["input"] == "storage" and self.storage_dir is None:
            raise ValueError("option input: storage needs storage_dir, the directory to read from")
        return self

    @property
    def info(self) -> ModelInfo:
        return model_info(self.model)

    @property
    def channels_last(self) -> bool:
        """Whether images and convolutions are to have that memory format; `fully_shard` takes no weights that have it."""
        options = self.resolved_options()
        return bool(options.get("channels_last", self.device == "cuda" and options["parallel"] != "fsdp"))

    def resolved_options(self) -> dict[str, Scalar]:
        """The model's default options with this run's on top."""
        return resolve_options(self.model, self.options)
