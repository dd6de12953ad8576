"""The layers of a network: which tensors each has, and when a step enters and leaves each, and how long it takes. Needs torch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from statistics import fmean, median
from typing import Literal, TypeVar

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from campaign.workloads.trainer.models import Trainable
from campaign.workloads.trainer.precision import NORMS
from campaign.workloads.trainer.rank_interface import LayerTime, LayerTimes
from campaign.workloads.trainer.timed_steps import Training, make_clock

Phase = Literal["forward", "backward"]
_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)


@dataclass(eq=False)
class Layer:
    """Modules that are one layer of a trace. kind: alike where layers are alike; tensors: numbers of elements, as registered.

    unit: whether fsdp shards it by itself.
    """

    name: str
    kind: str
    modules: list[nn.Module] = field(default_factory=list)
    tensors: list[int] = field(default_factory=list)
    unit: bool = False


def network_layers(trainable: Trainable) -> list[Layer]:
    """The layers in the order in which they are registered, with every trained tensor in exactly one of them.

    A layer is what the network repeats (`Trainable.layers`, the units that fsdp shards), or else a module with weights of its own,
    together with the norms and modules without weights that come after it.
    """
    units = set(trainable.layers())
    layers: list[Layer] = []
    counted: set[int] = set()
    for name, module, loose in _parts(trainable.network, units):
        tensors = [
            tensor for tensor in (*loose, *module.parameters()) if tensor.requires_grad and id(tensor) not in counted
        ]
        counted.update(map(id, tensors))
        previous = layers[-1] if layers else None
        if previous is None or not _belongs_to(previous, module, tensors, units):
            layers.append(previous := Layer(name or "network", type(module).__name__, unit=module in units))
        previous.modules.append(module)
        previous.tensors += [tensor.numel() for tensor in tensors]
    return layers


def _belongs_to(previous: Layer, module: nn.Module, tensors: list[Tensor], units: set[nn.Module]) -> bool:
    norm = isinstance(module, NORMS) and not previous.unit
    return module not in units and (norm or not tensors or not previous.tensors)


def _parts(
    module: nn.Module, units: set[nn.Module], name: str = "", loose: Iterable[Tensor] = ()
) -> Iterator[tuple[str, nn.Module, list[Tensor]]]:
    """The modules to look at, with their names, and the tensors of containers around them, each with the first module in it."""
    whole = type(module).__module__.startswith("torch.") and not isinstance(module, _CONTAINERS)
    children = {} if whole or module in units else dict(module.named_children())
    if not children:
        yield name, module, list(loose)
        return
    own = [*loose, *module.parameters(recurse=False)]
    for child_name, child in children.items():
        yield from _parts(child, units, f"{name}.{child_name}".lstrip("."), own)
        own = []


_V = TypeVar("_V")


def in_order(layers: Iterable[Layer], found: Mapping[Layer, _V], nothing: _V) -> list[tuple[Layer, _V]]:
    """All layers with what was found of each, in the order in which that was; those that took no part come last."""
    return [*found.items(), *((layer, nothing) for layer in layers if layer not in found)]


@contextmanager
def watched(layers: Iterable[Layer], note: Callable[[Layer, Phase], None]) -> Iterator[None]:
    """Inside the block, `note` is called when a part of a layer has ended in the forward pass, or begins in the backward pass."""
    handles = []

    def watch(layer: Layer, module: nn.Module) -> None:
        def left(_module: nn.Module, _inputs: object, output: object) -> None:
            note(layer, "forward")
            # On the tensor and not the module, whose backward hooks forbid what follows to change the output in place.
            learnt = next(
                (leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor) and leaf.requires_grad), None
            )
            if learnt is not None:
                learnt.register_hook(lambda _: note(layer, "backward"))  # type: ignore[no-untyped-call]

        handles.append(module.register_forward_hook(left))

    for layer in layers:
        for module in layer.modules:
            watch(layer, module)
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


_Part = tuple[Layer, Phase] | None  # None: the optimizer


def measure_layers(training: Training, trainable: Trainable, step_times_s: Sequence[float]) -> LayerTimes:
    """The median measured step by its parts: as they are divided in as many further steps, on the mean of the middle half of these.

    Of a device that communicates with no other. On a GPU by events, which is not verified yet.
    """
    layers = network_layers(trainable)
    found = _middle([_step_by_part(training, trainable, layers) for _ in step_times_s])
    # Taking the time of parts takes a few percent of the step of a very small model.
    scale = median(step_times_s) / sum(found.values())
    passed = {part[0]: None for part in found if part is not None}
    return LayerTimes(
        optimizer_s=scale * found[None],
        layers=tuple(
            LayerTime(
                name=layer.name,
                kind=layer.kind,
                tensors=tuple(layer.tensors),
                forward_s=scale * found.get((layer, "forward"), 0.0),
                backward_s=scale * found.get((layer, "backward"), 0.0),
                unit=layer.unit,
            )
            for layer, _ in in_order(layers, passed, None)
        ),
    )


def _middle(steps: list[Mapping[_Part, float]]) -> Mapping[_Part, float]:
    """The mean by part of the steps that are neither among the shortest nor among the longest quarter."""
    ordered, out = sorted(steps, key=lambda step: sum(step.values())), len(steps) // 4
    middle = ordered[out : len(ordered) - out]
    return {part: fmean(step.get(part, 0.0) for step in middle) for part in dict.fromkeys(p for s in middle for p in s)}


def _step_by_part(training: Training, trainable: Trainable, layers: list[Layer]) -> Mapping[_Part, float]:
    """Seconds of one step. What is in no layer counts with the one before; with the first, what a step begins with."""
    clock = make_clock(training.device)
    ended: list[_Part] = []  # by mark but the first: what the time since the one before belongs to
    learning: list[Layer] = []  # those whose backward pass has begun
    strategy = training.strategy

    def note(layer: Layer, phase: Phase) -> None:
        clock.mark()
        ended.append((layer, "forward") if phase == "forward" else ((learning or [layer])[-1], "backward"))
        if phase == "backward":
            learning.append(layer)

    def begin_optimizer() -> None:
        note(learning[-1], "backward")
        strategy.before_step()

    with watched(layers, note):
        # The loss, after the last layer.
        loss = trainable.register_forward_hook(lambda *_: note(ended[-1][0], "forward") if ended[-1] else None)
        training.strategy = replace(strategy, before_step=begin_optimizer)
        clock.mark()
        try:
            training.step()
        finally:
            loss.remove()
            training.strategy = strategy
        clock.mark()
    clock.synchronize()
    found: dict[_Part, float] = defaultdict(float)
    for part, seconds in zip((*ended, None), clock.step_times_s(), strict=True):
        found[part] += seconds
    return found
