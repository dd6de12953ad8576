"""Models by name, each with network, synthetic samples, loss, optimizer and operations of a step. Needs torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from campaign.spec.cell import Scalar
from campaign.workloads.trainer.model_catalog import FAMILY_OPTIONS, find_model_info, resolve_options
from campaign.workloads.trainer.models import classification, foreign, language, yolo
from campaign.workloads.trainer.rank_interface import TrainSpec
from campaign.workloads.trainer.transformer_sizes import BERT_SIZES, GPT_SIZES

Sample = tuple[Tensor, ...]
_CLASSES = 1000
_COUNTED_SAMPLES = 2
# These layers keep the shape and have no counted operations. On `meta`, torch would spend most of the time on them.
_UNCOUNTED_LAYERS = (nn.BatchNorm2d, nn.LayerNorm, nn.ReLU, nn.ReLU6, nn.SiLU, nn.GELU, nn.Dropout)


class Trainable(nn.Module):
    """Network and loss combined in one module, so that distributed data parallelism covers everything from batch to loss.

    Attributes:
        inputs: number of a sample's tensors that are inputs of the network. The others are inputs of the loss.
        sample: function that draws one sample.
    """

    def __init__(
        self,
        network: nn.Module,
        loss: Callable[..., Tensor],
        inputs: int,
        sample: Callable[[torch.Generator], Sample],
        optimizer: Literal["sgd", "adamw"],
    ) -> None:
        super().__init__()
        self.network = network
        self.inputs = inputs
        self.sample = sample
        self.optimizer: Literal["sgd", "adamw"] = optimizer
        self.loss = loss

    def forward(self, *batch: Tensor) -> Tensor:
        """Return the loss of a batch, a scalar. Every tensor has the batch as its first axis."""
        return self.loss(self.network(*batch[: self.inputs]), *batch[self.inputs :])

    def find_layers(self) -> Sequence[nn.Module]:
        """Return the layers of the network that are sharded and recomputed as units."""
        return find_layers(self.network)

    def choose_optimizer(self, learning_rate: float) -> tuple[type[torch.optim.Optimizer], dict[str, Any]]:
        """Choose the optimizer class that suits the network, and return it with its settings.

        As is common practice, transformers use AdamW, and convolutional networks use SGD with momentum 0.9.
        """
        if self.optimizer == "adamw":
            return torch.optim.AdamW, {"lr": learning_rate}
        return torch.optim.SGD, {"lr": learning_rate, "momentum": 0.9}


def find_layers(network: nn.Module) -> list[nn.Module]:
    """Find the repeated layers of a network, such as transformer layers, residual blocks or convolution units, in order.

    These are the outermost modules with parameters whose class belongs to the model and occurs more than once. Modules of
    torch's own classes are never layers.
    """
    kinds = Counter(
        type(module)
        for module in network.modules()
        if not type(module).__module__.startswith("torch.") and next(module.parameters(), None) is not None
    )

    def search(module: nn.Module) -> Iterator[nn.Module]:
        for child in module.children():
            yield from [child] if kinds[type(child)] > 1 else search(child)

    return list(dict.fromkeys(search(network)))


def build_model(model: str, options: Mapping[str, Scalar], device: torch.device | str = "cpu") -> Trainable:
    """Build a model on a device, with random weights from torch's global seed. The device `meta` needs no memory.

    Raises ConfigError if the package of an external model is missing.
    """
    image_px, seq_len = int(options.get("image_px", 0)), int(options.get("seq_len", 0))
    dropout, foreign_name = float(options.get("dropout", 0.0)), model.partition(":")[2]
    with torch.device(device):
        match find_model_info(model).family:
            case "resnet":
                width, classes = (16, 100) if model == "resnet50w16" else (64, _CLASSES)
                return _make_classifier(classification.build_resnet50(width, classes), image_px, classes)
            case "mobilenet":
                return _make_classifier(classification.build_mobilenet_v2(_CLASSES), image_px)
            case "torchvision":
                return _make_classifier(foreign.build_vision_model(foreign_name), image_px, loss=foreign.vision_loss)
            case "yolo":
                detector = yolo.Detector(yolo.SIZES[model])
                return Trainable(
                    detector,
                    yolo.detection_loss,
                    1,
                    lambda rng: (_draw_image(image_px, rng), yolo.draw_boxes(rng)),
                    "sgd",
                )
            case "bert":
                bert = BERT_SIZES[model]
                sample = partial(language.draw_question, bert, seq_len)
                return Trainable(language.Bert(bert, dropout), language.answer_loss, 2, sample, "adamw")
            case "gpt":
                gpt = GPT_SIZES[model]
                sample = partial(language.draw_text, gpt, seq_len)
                return Trainable(language.Gpt(gpt, dropout), language.next_token_loss, 1, sample, "adamw")
            case "transformers":
                transformer = foreign.build_transformer(foreign_name)
                sample = partial(transformer.draw_sample, seq_len, image_px)
                return Trainable(transformer, foreign.transformer_loss, 1, sample, "adamw")


MIN_DEFERRED_PARAMETERS = 1_000_000_000
"""Number of parameters from which on memory for a model is allocated only on the device, after sharding."""


def is_deferred(model: str) -> bool:
    """Return whether a model is built without memory, so that it gets its weights from `materialise_weights`."""
    info = find_model_info(model)
    return info.family == "gpt" and (info.parameters or 0) >= MIN_DEFERRED_PARAMETERS


def materialise_weights(trainable: Trainable, device: torch.device, seed: int) -> None:
    """Move a model to its device. A model that was built without memory gets its memory and weights there."""
    if next(trainable.parameters()).is_meta:
        trainable.to_empty(device=device)
        language.draw_weights(cast(language.Gpt, trainable.network), seed)
    else:
        trainable.to(device)


def _draw_image(image_px: int, generator: torch.Generator) -> Tensor:
    """Draw a random image [3, image_px, image_px] of bytes."""
    # Images are bytes, as in a decoded photograph, so that the load on storage and on the link to the device is realistic.
    return torch.randint(256, (3, image_px, image_px), generator=generator, dtype=torch.uint8)


def _compute_class_loss(logits: Tensor, target: Tensor) -> Tensor:
    return nn.functional.cross_entropy(logits.float(), target)


def _make_classifier(
    network: nn.Module, image_px: int, classes: int = _CLASSES, loss: Callable[..., Tensor] = _compute_class_loss
) -> Trainable:
    """Combine an image classifier with its loss, samples and optimizer."""

    def sample(generator: torch.Generator) -> Sample:
        return _draw_image(image_px, generator), torch.randint(classes, (), generator=generator)

    return Trainable(network, loss, 1, sample, "sgd")


def make_batch(trainable: Trainable, indices: Iterable[int], seed: int) -> Sample:
    """Draw the samples with the given indices from an endless stream, and stack them into a batch.

    A sample depends only on seed and index, never on rank or world size.
    """
    samples = []
    for index in indices:
        generator = torch.Generator().manual_seed(seed * 1_000_003 + index)
        samples.append(trainable.sample(generator))
    return tuple(torch.stack(column) for column in zip(*samples, strict=True))


def count_step_flops(spec: TrainSpec) -> float | None:
    """Count the operations that one rank executes for one optimizer step, over all its samples.

    Returns None for an external model whose operations cannot be counted.
    """
    return count_training_flops(spec.model, spec.options, spec.batch * spec.replicas)


def count_training_flops(model: str, options: Mapping[str, Scalar], batch: int) -> float | None:
    """Count the operations for training on one batch as three forward passes, regardless of device and strategy.

    A multiply-add is two operations, and only matrix products and convolutions count (Kaplan et al. 2020). torch's own
    counter would overestimate the backward pass of grouped convolutions by the number of groups. Recomputed activations are
    not counted, and causal attention counts in full (as in Chowdhery et al. 2022, appendix B). Returns None for an external
    model whose operations cannot be counted. Raises ConfigError if the options do not fit the model.

    Args:
        model: name of the model.
        options: options as in a workload file.
        batch: number of samples.
    """
    shaping, info = select_shaping_options(model, options), find_model_info(model)
    forward = info.forward_flops_per_sample
    if forward is None or not set(shaping) <= set(info.default_options.items()):
        module_flops = count_module_flops(model, shaping)
        forward = None if module_flops is None else sum(module_flops.values())
    return None if forward is None else 3.0 * forward * batch


def select_shaping_options(model: str, options: Mapping[str, Scalar]) -> tuple[tuple[str, Scalar], ...]:
    """Return the options that determine the shape of a model, sorted. Raises ConfigError if they do not fit the model."""
    resolved_options = resolve_options(model, options)
    return tuple(sorted((name, resolved_options[name]) for name in FAMILY_OPTIONS[find_model_info(model).family]))


@cache
def count_module_flops(model: str, shaping: tuple[tuple[str, Scalar], ...]) -> Mapping[str, float] | None:
    """Count the operations of a forward pass with one sample by module, in network order, without allocating memory.

    Operations between two modules are assigned to the second one. The products of attention, for example, are assigned to the
    projection after it. Modules that call other modules have no operations. Returns None for an external model whose operations
    cannot be counted.
    """
    from torch.utils.flop_counter import FlopCounterMode

    foreign_model = find_model_info(model).parameters is None
    try:
        trainable = build_model(model, resolve_options(model, dict(shaping)), "meta")
        batch = [
            (tensor.float() if tensor.dtype == torch.uint8 else tensor).to("meta")
            for tensor in make_batch(trainable, range(_COUNTED_SAMPLES), 1)
        ]
        for module in [] if foreign_model else list(trainable.network.modules()):
            for name, child in module.named_children():
                if isinstance(child, _UNCOUNTED_LAYERS):
                    setattr(module, name, nn.Identity())
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            parts = _FlopRecorder(trainable.network, counter.get_total_flops)
            trainable.network(*batch[: trainable.inputs])
    except Exception:
        if not foreign_model:
            raise
        return None  # an external model may need real data in its forward pass
    return {name: flops / _COUNTED_SAMPLES for name, flops in parts.flops_by_module().items()}


class _FlopRecorder:
    """Recorder of the operations of each module that calls no other modules, during one forward pass."""

    def __init__(self, network: nn.Module, total_flops: Callable[[], int]) -> None:
        self._total_flops = total_flops
        self._open: list[str] = []
        self._calling: set[str] = set()
        self._ends: list[tuple[str, int]] = []
        for name, module in network.named_modules():
            module.register_forward_pre_hook(partial(self._handle_begin, name))
            module.register_forward_hook(partial(self._handle_end, name))

    def _handle_begin(self, name: str, *_: object) -> None:
        self._calling.update(self._open[-1:])
        self._open.append(name)

    def _handle_end(self, name: str, *_: object) -> None:
        self._open.pop()
        if name not in self._calling:
            self._ends.append((name, self._total_flops()))

    def flops_by_module(self) -> Mapping[str, float]:
        """Return the number of operations of one call by module. Operations after the last module are assigned to it."""
        calls = Counter(name for name, _ in self._ends)
        flops_per_call, flops_before = dict.fromkeys(calls, 0.0), 0
        for index, (name, flops_at_end) in enumerate(self._ends, 1):
            flops_at_end = self._total_flops() if index == len(self._ends) else flops_at_end
            flops_per_call[name] += (flops_at_end - flops_before) / calls[name]
            flops_before = flops_at_end
        return {name: flops for name, flops in flops_per_call.items() if flops}
