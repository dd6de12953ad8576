"""Replayed training: a step is waiting for as long as a device computes, and the real collectives of its strategy."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from campaign.accelerators import Kind
from campaign.documents.cell import Cell, Scalar
from campaign.documents.fields import Count, FileModel, Name, Precision
from campaign.errors import ConfigError
from campaign.model.description import Network, NetworkLayer, StepFacts, interpolated
from campaign.workloads.log_reader import Log
from campaign.workloads.protocol import Ended, Outcome, ReferenceTable, Run, Step, Surroundings, Workload
from campaign.workloads.step_networks import work_sharing
from campaign.workloads.trainer.model_catalog import REPLAY_OPTIONS, checked, resolve_replay_options
from campaign.workloads.trainer_runs import outcome_of_ranks, ranks_step, strategy_objection, torch_missing

_Share = Annotated[float, Field(ge=0)]
_INTRODUCTION = """\
Training that is predicted: a step waits for as long as a device computes, and communicates zeros with the strategies of `train`,
over the emulated links of the system. Times are given as those of the real devices, and bytes as those of the real tensors. Reports
mark what comes from a replay as predicted.

A second of a device takes `emulation.dilation` seconds, and collectives carry `scale` times `dilation` of the real bytes. A system
without `emulation` takes no longer, and carries all bytes over this machine's loopback.

The compute time of a batch between two rows of `compute` is interpolated; a single row is scaled with the batch. With
`accumulation: k`, a step is k times the passes of `batch / k`, and one optimizer's share of it. `parallel: dp` is DataParallel with
a rank for each device: rank 0 sends its weights before the forward pass and gets all gradients after the backward pass.
"""
_EXAMPLE = """\
name: small-predicted
kind: replay
precisions: [fp32]
input_bytes: 4096
layers:
  - {name: embeddings, tensors: [65536], forward: 0.1, backward: 0.2}
  - {name: encoder, repeat: 4, tensors: [65536, 1024], forward: 1, backward: 2}
  - {name: head, tensors: [2048, 2], forward: 0.1, backward: 0.2}
optimizer: 0.4
compute:
  - {device: cpu-rank, precision: fp32, batch: 1, seconds: 0.2, source: an assumption}
  - {device: cpu-rank, precision: fp32, batch: 8, seconds: 1.0, source: an assumption}
"""


class ReplayLayer(FileModel):
    """One layer of a model, or several of the same kind."""

    name: str = ""
    """Name, for readers."""
    repeat: Count = 1
    """Number of such layers in a row."""
    tensors: tuple[Annotated[int, Field(ge=1)], ...] = ()
    """Number of elements of each trained tensor. Their gradients are ready when the layer's backward pass ends."""
    forward: _Share = 0.0
    """Share of the forward pass of one such layer in the compute time of a step, in the unit of all shares."""
    backward: _Share = 0.0
    """Share of its backward pass."""
    unit: bool | None = None
    """With `parallel: fsdp`: whether each such layer is gathered for its forward and again for its backward pass, and not once a
    pass with the rest of the model. Default: whether `repeat` is more than 1."""
    activations: _Share | None = None
    """Elements that a sample keeps from the forward to the backward pass of one such layer, to predict whether a batch fits into
    memory. The precision decides how many bytes an element has."""
    masks: _Share = 0.0
    """The same for what has one byte in every precision, such as the masks of dropout."""

    @property
    def is_unit(self) -> bool:
        """Whether `fsdp` shards each of these layers by itself."""
        return self.repeat > 1 if self.unit is None else self.unit


class ComputeRow(FileModel):
    """Compute time of one device that communicates with no other."""

    device: Name
    """Device model, as in the system file."""
    precision: Precision
    """Number format."""
    batch: Annotated[int, Field(ge=1)]
    """Samples of a step."""
    seconds: Annotated[float, Field(gt=0)]
    """Seconds of a step."""
    source: str = ""
    """Source of the number."""
    uses: tuple[str, ...] = ()
    """Published claims (their ids) that the number comes from. The report does not judge these claims."""


class ReplayWorkload(Workload):
    """Training steps as waiting and real collectives."""

    introduction: ClassVar[str] = _INTRODUCTION
    example: ClassVar[str] = _EXAMPLE
    needs_torch: ClassVar[bool] = True
    predicts: ClassVar[bool] = True

    kind: Literal["replay"]
    """Replayed training."""
    layers: tuple[ReplayLayer, ...] = Field(min_length=1)
    """Layers in the order of the forward pass."""
    optimizer: _Share = 0.0
    """Share of the optimizer in the compute time of a step. `forward`, `backward` and `optimizer` are in any common unit, such as
    FLOPs or seconds."""
    compute: tuple[ComputeRow, ...] = Field(min_length=1)
    """Compute time of a step by device, precision and batch. Other batches are interpolated."""
    input_bytes: Annotated[float, Field(ge=0)] = 0.0
    """Bytes of one sample in storage."""
    host_to_device_bytes: Annotated[float, Field(ge=0)] = 0.0
    """Bytes of one sample that are copied to its device in each step."""
    input_core_s: Annotated[float, Field(ge=0)] = 0.0
    """Seconds that one CPU core takes to decode a sample, with `input: storage`."""

    @model_validator(mode="after")
    def _fits_together(self) -> ReplayWorkload:
        if self.total_share <= 0:
            raise ValueError("a step has no compute time; give 'forward', 'backward' or 'optimizer' a share above 0")
        if not any(layer.tensors for layer in self.layers):
            raise ValueError("no layer has 'tensors'; give at least one the number of elements of what it trains")
        places = [(row.device, row.precision, row.batch) for row in self.compute]
        if twice := next((place for place in places if places.count(place) > 1), None):
            raise ValueError("'compute' has two rows for {}, {}, batch {}; remove one".format(*twice))
        for row in self.compute:
            if row.precision not in self.precisions:
                known = ", ".join(self.precisions)
                raise ValueError(f"'compute' has a row for {row.precision}, and 'precisions' has only {known}")
        return self

    @property
    def total_share(self) -> float:
        """All shares of a step together."""
        return self.optimizer + sum(layer.repeat * (layer.forward + layer.backward) for layer in self.layers)

    @property
    def parameters(self) -> int:
        """Trained elements."""
        return sum(layer.repeat * sum(layer.tensors) for layer in self.layers)

    @classmethod
    def tables(cls) -> Iterator[ReferenceTable]:
        rows = [(f"`{name}`", option.words(), option.description) for name, option in REPLAY_OPTIONS.items()]
        yield ReferenceTable("Options of replays", "", ("Option", "Type", "Meaning"), rows)

    @property
    def variable_options(self) -> Collection[str]:
        return REPLAY_OPTIONS.keys()

    def summary(self) -> Mapping[str, Any]:
        return {"parameters": self.parameters}

    def problems(self, around: Surroundings) -> Iterator[str]:
        given = [(option, value, around.place("options", option)) for option, value in self.options.items()]
        for option, values in around.axes.items():
            given += [(option, value, around.axis_place(option, index)) for index, value in enumerate(values)]
        for option, value, where in given:
            try:
                checked("a replay", REPLAY_OPTIONS, {option: value})
            except ConfigError as error:
                yield f"{where}: {error}"

    def counted_options(self, options: Mapping[str, Scalar]) -> Mapping[str, Scalar]:
        """The options that differ from their default."""
        return {name: value for name, value in options.items() if value != REPLAY_OPTIONS[name].default}

    def identity(self) -> dict[str, Any]:
        """The document without names, sources of numbers and sizes of activations, which change no measurement."""
        document = super().identity()
        for part in (*document["layers"], *document["compute"]):
            part.pop("name", None)
            part.pop("source", None)
            part.pop("uses", None)
            part.pop("activations", None)
            part.pop("masks", None)
        return document

    def reads_storage(self, options: Mapping[str, Scalar]) -> bool:
        return options.get("input") == "storage"

    def refusal(self, cell: Cell) -> str | None:
        device, precision = cell.configuration.device, cell.precision
        if any((row.device, row.precision) == (device, precision) for row in self.compute):
            return None
        known = ", ".join(sorted({f"{row.device} with {row.precision}" for row in self.compute}))
        return (
            f"workload '{self.name}' has no compute time of {device} with {precision}; it has {known}. Add `- {{device: {device}, "
            f"precision: {precision}, batch: {cell.batch}, seconds: ...}}` to its key 'compute', or exclude these cells"
        )

    def missing(self, kinds: Collection[Kind] = ()) -> str | None:
        return torch_missing(kinds)

    def objection(self, cell: Cell, runs_on: Kind) -> str | None:
        if runs_on != "cpu":
            return "a replay takes the place of devices; the system file has to say `runs_on: cpu` of this one"
        return strategy_objection(cell, self._options(cell))

    def step_facts(self, cell: Cell) -> StepFacts:
        options, precision = self._options(cell), cell.precision
        seconds: dict[str, dict[int, float]] = {}
        for row in self.compute:
            if row.precision == precision:
                seconds.setdefault(row.device, {})[row.batch] = row.seconds
        layers = tuple(
            NetworkLayer(layer.tensors, layer.forward, layer.backward, layer.is_unit, layer.activations, layer.masks)
            for layer in self.layers
            for _ in range(layer.repeat)
        )
        network = Network(layers, self.optimizer, self.input_bytes, self.host_to_device_bytes, self.input_core_s)
        workers = int(options["loader_workers"]) if self.reads_storage(options) else None
        return StepFacts(network, work_sharing(options), seconds, workers=workers)

    def compute_s(self, device: str, precision: str, batch: float) -> float:
        """Seconds of a step of one device, nothing communicated. KeyError: there is no row for the device and precision."""
        rows = {row.batch: row.seconds for row in self.compute if (row.device, row.precision) == (device, precision)}
        return interpolated(rows, batch)

    def read_s(self, run: Run) -> float | None:
        """Seconds until one rank has a batch from storage, decoded; None where it does not read. ConfigError: no rate is known.

        The ranks of a host share its storage and its cores. A step that reads by itself decodes with one core, after reading;
        workers decode with as many as they are, while the next batch is read.
        """
        options, cell = self._options(run.cell), run.cell
        if not self.reads_storage(options):
            return None
        if run.storage is None or run.storage.gb_per_s is None:
            raise ConfigError(
                f"workload '{self.name}': option input: storage needs the rate of storage '{cell.configuration.storage}'; "
                "add it to the system file"
            )
        ranks, workers = cell.configuration.devices_used, int(options["loader_workers"])
        gb_per_s = run.storage.gb_per_s / run.scale
        transfer_s = cell.batch * self.input_bytes * ranks / (gb_per_s * 1e9)
        decode_s = cell.batch * self.input_core_s
        cores = min(host.cores for host in run.composition.hosts) / ranks
        if workers == 0:
            return transfer_s + decode_s / min(1.0, cores)
        return max(transfer_s, decode_s / min(workers, cores))

    def _options(self, cell: Cell) -> dict[str, Scalar]:
        return resolve_replay_options({**self.options, **cell.options})

    def step(self, run: Run) -> Step:
        cell = run.cell
        micro_steps = int(self._options(cell)["accumulation"])
        second = self.compute_s(cell.configuration.device, cell.precision, cell.batch / micro_steps) / self.total_share
        replay = {
            "layers": [
                {
                    "tensors": layer.tensors,
                    "forward_s": layer.forward * second,
                    "backward_s": layer.backward * second,
                    "unit": layer.is_unit,
                }
                for layer in self.layers
                for _ in range(layer.repeat)
            ],
            "optimizer_s": self.optimizer * second,
            "dilation": run.dilation,
            "thinning": run.scale * run.dilation,
            "read_s": self.read_s(run),
            "read_bytes": round(cell.batch * self.input_bytes),
            "host_to_device_bytes": round(cell.batch * self.host_to_device_bytes),
        }
        options = {**self.options, **cell.options}
        return ranks_step(run, {"replay": replay, "options": options, "time_out_s": cell.settings.time_limit_s})

    def read(self, run: Run, ended: Ended, log: Log) -> Outcome:
        return outcome_of_ranks(run, ended, log, run.cell.configuration.ranks)
