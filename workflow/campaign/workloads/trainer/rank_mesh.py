"""How the ranks of a run divide a model: tensor, pipeline and data parallelism, and which rank has which part. Without torch.

A model replica is divided over `tensor x pipeline` ranks; the rest is data parallelism. `batch` is the number of samples per device
here as everywhere, so that a replica takes `batch x tensor x pipeline` samples in a step, and all ranks together `batch x ranks`.

A layer of width w gives activations of samples x tokens x w elements. Tensor parallelism all-reduces them twice in the forward and
twice in the backward pass of a layer (Shoeybi et al. 2019); sequence parallelism makes an all-gather and a reduce-scatter of each
all-reduce (Korthikanti et al. 2022). A pipeline stage sends them to the next one, and their gradients to the one before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Literal

from campaign.documents.cell import Scalar
from campaign.workloads.trainer.transformer_sizes import GPT_SIZES, TRANSFORMER_SIZES, TransformerSize

Dimension = Literal["tp", "dp", "pp"]
RANK_ORDERS = tuple("-".join(order) for order in permutations(("tp", "dp", "pp")))
DIVIDING = ("tensor_parallel", "pipeline_parallel")


def is_divided(options: Mapping[str, Scalar]) -> bool:
    """Whether a replica of the model has more than one rank."""
    return any(int(options.get(name, 1)) > 1 for name in DIVIDING)


@dataclass(frozen=True, slots=True)
class RankMesh:
    """Sizes of the three dimensions. order: the dimensions from the one in which consecutive ranks differ to the slowest one."""

    tensor: int
    pipeline: int
    data: int
    order: str = RANK_ORDERS[0]

    @classmethod
    def of(cls, options: Mapping[str, Scalar], ranks: int) -> RankMesh:
        """The mesh of these options, which are resolved. ValueError: the ranks are not a multiple of those of a replica."""
        tensor, pipeline = (int(options[name]) for name in DIVIDING)
        data, rest = divmod(ranks, tensor * pipeline)
        if rest or not data:
            raise ValueError(f"{ranks} ranks are no multiple of {tensor} x {pipeline}")
        return cls(tensor, pipeline, data, str(options["rank_order"]))

    @property
    def replica(self) -> int:
        """Ranks of one model replica."""
        return self.tensor * self.pipeline

    def coordinates(self, rank: int) -> dict[Dimension, int]:
        sizes: dict[str, int] = {"tp": self.tensor, "dp": self.data, "pp": self.pipeline}
        found: dict[Dimension, int] = {}
        for name in self.order.split("-"):
            rank, found[name] = divmod(rank, sizes[name])  # type: ignore[index]  # the words of the option
        return found

    def table(self) -> list[list[list[int]]]:
        """Ranks by pipeline stage, data-parallel replica and part of a tensor."""
        table = [[[0] * self.tensor for _ in range(self.data)] for _ in range(self.pipeline)]
        for rank in range(self.tensor * self.data * self.pipeline):
            place = self.coordinates(rank)
            table[place["pp"]][place["dp"]][place["tp"]] = rank
        return table

    def groups(self, dimension: Dimension) -> list[tuple[int, ...]]:
        """The ranks that communicate along a dimension, group by group."""
        found: dict[tuple[tuple[str, int], ...], list[int]] = {}
        for rank in range(self.tensor * self.data * self.pipeline):
            place = self.coordinates(rank)
            found.setdefault(tuple((d, at) for d, at in place.items() if d != dimension), []).append(rank)
        return [tuple(group) for group in found.values()]

    def hosts_of_a_group(self, dimension: Dimension, hosts: Sequence[str]) -> int:
        """Over how many hosts the widest group of a dimension spreads. hosts: that of each rank."""
        return max(len({hosts[rank] for rank in group}) for group in self.groups(dimension))


def division_refusal(model: str, options: Mapping[str, Scalar], batch: int, ranks: int, precision: str) -> str | None:
    """Why the ranks cannot divide the model as the options say, with the remedy; None where they can. options: resolved ones."""
    tensor, pipeline = (int(options[name]) for name in DIVIDING)
    if options["sequence_parallel"] and tensor == 1:
        return "sequence_parallel divides what tensor parallelism leaves whole; set tensor_parallel above 1, or leave it out"
    if not is_divided(options):
        return None
    size = TRANSFORMER_SIZES.get(model)
    if size is None:
        known = ", ".join(sorted(TRANSFORMER_SIZES))
        return (
            f"model {model} cannot be divided; set tensor_parallel and pipeline_parallel to 1, or train one of {known}"
        )
    if ranks % (tensor * pipeline):
        return (
            f"tensor_parallel {tensor} x pipeline_parallel {pipeline} divides a model over {tensor * pipeline} devices, "
            f"and {ranks} are no multiple of that; use such a number of devices, or exclude these cells"
        )
    if size.heads % tensor:
        return (
            f"tensor_parallel {tensor}: {model} has {size.heads} attention heads; set it to a divisor of {size.heads}"
        )
    if pipeline > size.layers:
        return f"pipeline_parallel {pipeline}: {model} has {size.layers} layers; set it to at most {size.layers}"
    samples, parts = batch * tensor * pipeline, microbatches(options)
    if samples % parts:
        return (
            f"microbatches {parts}: a replica's {samples} samples (batch {batch} x {tensor * pipeline} devices) cannot be "
            "divided into so many; set it to a divisor"
        )
    if options["sequence_parallel"] and int(options["seq_len"]) % tensor:
        return (
            f"sequence_parallel: seq_len {options['seq_len']} is no multiple of tensor_parallel {tensor}; set it to one"
        )
    return _unfit(options, pipeline, precision)


def microbatches(options: Mapping[str, Scalar]) -> int:
    """Parts of a replica's samples that go through the stages of a pipeline one after the other."""
    stages = int(options["pipeline_parallel"])
    return int(options.get("microbatches", stages)) if stages > 1 else 1


def _unfit(options: Mapping[str, Scalar], pipeline: int, precision: str) -> str | None:
    """Other options that a divided model does not have."""
    parallel = options["parallel"]
    if parallel not in ("ddp", "fsdp"):
        return f"parallel {parallel} takes a whole model on each device; set parallel: ddp or fsdp, or divide no model"
    if parallel == "fsdp" and pipeline > 1:
        return (
            "parallel fsdp would gather the weights of a pipeline stage for every microbatch; set parallel: ddp, or "
            "pipeline_parallel: 1"
        )
    if precision.startswith("fp16"):
        return f"{precision} scales gradients, and the ranks of a divided model would not agree on the scale; use bf16"
    if pipeline > 1 and int(options["accumulation"]) > 1:
        return "accumulation: a pipeline divides its samples by microbatches; set microbatches, and accumulation: 1"
    if options["input"] == "storage":
        return (
            "input storage: each rank reads samples of its own, and those of a divided model need the same ones; set "
            "input: resident"
        )
    for name in ("compile", "measure_communication"):
        if options[name]:
            return f"{name} is not available for a divided model; set it to false, or divide no model"
    if not options["overlap"]:
        return "overlap: false is not available for a divided model; leave it out, or divide no model"
    return None


_FULL, _HALF = 4, 2
_LOSS_NUMBERS = 3
"""Numbers of each token that parts of the vocabulary exchange: the largest logit, the sum of exponentials, the target's logit."""


def layers_of_stage(layers: int, stage: int, stages: int) -> int:
    """Number of layers of a stage; earlier ones have one more where they do not divide evenly."""
    return layers // stages + (stage < layers % stages)


def activation_elements(model: str, options: Mapping[str, Scalar], samples: int) -> int:
    return samples * int(options["seq_len"]) * TRANSFORMER_SIZES[model].width


def pipeline_bytes(
    model: str, options: Mapping[str, Scalar], samples: int, mesh: RankMesh, place: Mapping[Dimension, int]
) -> int:
    """Bytes that a rank sends to the stages beside its own. samples: of a step of a replica."""
    if mesh.pipeline == 1:
        return 0
    first, last = place["pp"] == 0, place["pp"] == mesh.pipeline - 1
    shared = mesh.tensor if options["sequence_parallel"] else 1
    sent = (not last) + (not first)
    tied = 0
    if model in GPT_SIZES and (first or last):
        size = GPT_SIZES[model]
        # Two ranks send all of what they all-reduce.
        tied = own_tokens(size, mesh.tensor, place["tp"]) * size.width * _FULL
    return sent * _FULL * activation_elements(model, options, samples) // shared + tied


def own_tokens(size: TransformerSize, parts: int, part: int) -> int:
    """Tokens of the vocabulary that one of the devices has: all but the last ones have as many as `torch.chunk` gives."""
    most = -(-size.vocabulary // parts)
    return max(0, min(most, size.vocabulary - part * most))


def tensor_bytes(
    model: str,
    options: Mapping[str, Scalar],
    samples: int,
    mesh: RankMesh,
    place: Mapping[Dimension, int],
    precision: str,
    passes: int,
) -> int:
    """Bytes that a rank sends in the group that divides tensors. passes: backward passes that each add up gradients of norms."""
    if mesh.tensor == 1:
        return 0
    size, elements = TRANSFORMER_SIZES[model], activation_elements(model, options, samples)
    by_tokens, gpt = bool(options["sequence_parallel"]), model in GPT_SIZES
    first, last = place["pp"] == 0, place["pp"] == mesh.pipeline - 1
    layers = layers_of_stage(size.layers, place["pp"], mesh.pipeline)
    product = _HALF if precision == "bf16" else _FULL
    # Of each layer, in units of an all-reduce of its activations.
    forward, backward = 2 * product, 2 * _FULL
    if by_tokens:
        # Half of it gathers what a norm gives, and its gradient; the other half scatters what a product gives.
        forward = _FULL + product
        backward = product + _FULL
    again = 0
    if options["activation_checkpointing"]:
        # Nothing in the backward pass of a GPT layer needs its last product again.
        products = product if gpt else 2 * product
        again = _FULL + products // 2 if by_tokens else products
    reduced = layers * elements * (forward + backward + again)
    reduced += first * elements * _FULL  # the embeddings of tokens
    reduced += (last and gpt) * elements * _FULL  # gradients of what the output is multiplied with
    reduced += (last and gpt) * _LOSS_NUMBERS * samples * int(options["seq_len"]) * _FULL
    if by_tokens:
        # Gathered once before the output; gradients before the layers. Half of an all-reduce.
        reduced += (first + last) * elements * _FULL // 2
        reduced += passes * layers * 4 * size.width * _FULL
    return 2 * (mesh.tensor - 1) * reduced // mesh.tensor


def data_passes(options: Mapping[str, Scalar], mesh: RankMesh) -> int:
    """Backward passes of a step that each add up gradients: all where data parallelism keeps them as plain tensors, else one."""
    return microbatches(options) * int(options["accumulation"]) if mesh.data > 1 else 1
