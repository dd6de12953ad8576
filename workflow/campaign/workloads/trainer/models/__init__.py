"""The models as things to train: network, synthetic sample, loss and optimizer, by name; and what a step costs. Needs torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from campaign.spec.cell import Scalar
from campaign.workloads.trainer.model_catalog import FAMILY_OPTIONS, model_info, resolve_options
from campaign.workloads.trainer.models import classification, foreign, language, yolo
from campaign.workloads.trainer.rank_interface import TrainSpec
from campaign.workloads.trainer.transformer_sizes import BERT_SIZES, GPT_SIZES

Sample = tuple[Tensor, ...]
_CLASSES = 1000
_COUNTED = 2
# They keep the shape and hold nothing that counts, and without data torch takes most of the time for them.
_PASSED_OVER = (nn.BatchNorm2d, nn.LayerNorm, nn.ReLU, nn.ReLU6, nn.SiLU, nn.GELU, nn.Dropout)


class Trainable(nn.Module):
    """A network and its loss as one module, so that distributed data parallelism sees everything between batch and loss.

    inputs: how many tensors of a sample go into the network; the rest goes into the loss. sample: makes one sample.
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
        """The loss of a batch, a scalar; every tensor has the batch as its first axis."""
        return self.loss(self.network(*batch[: self.inputs]), *batch[self.inputs :])

    def layers(self) -> Sequence[nn.Module]:
        """The units that are sharded, and computed again, each by itself."""
        return layers_of(self.network)

    def optimizer_of(self, learning_rate: float) -> tuple[type[torch.optim.Optimizer], dict[str, Any]]:
        """AdamW for transformers, SGD with momentum 0.9 for convolutional networks, as in practice; and its settings."""
        if self.optimizer == "adamw":
            return torch.optim.AdamW, {"lr": learning_rate}
        return torch.optim.SGD, {"lr": learning_rate, "momentum": 0.9}


def layers_of(network: nn.Module) -> list[nn.Module]:
    """The outermost modules with parameters whose class is the model's own and occurs more than once, in the order of the network.

    Transformer layers, residual blocks, convolution units: whatever the model calls them; none in one of torch's modules.
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


def build(model: str, options: Mapping[str, Scalar], device: torch.device | str = "cpu") -> Trainable:
    """Build the model on the device (`meta` costs nothing) with weights from torch's global seed.

    options: resolved ones (`model_catalog.resolve_options`). ConfigError when a foreign package is missing.
    """
    image_px, seq_len = int(options.get("image_px", 0)), int(options.get("seq_len", 0))
    dropout, foreign_name = float(options.get("dropout", 0.0)), model.partition(":")[2]
    with torch.device(device):
        match model_info(model).family:
            case "resnet":
                width, classes = (16, 100) if model == "resnet50w16" else (64, _CLASSES)
                return _classifier(classification.resnet50(width, classes), image_px, classes)
            case "mobilenet":
                return _classifier(classification.mobilenet_v2(_CLASSES), image_px)
            case "torchvision":
                return _classifier(foreign.vision(foreign_name), image_px, loss=foreign.vision_loss)
            case "yolo":
                detector = yolo.Detector(yolo.SIZES[model])
                return Trainable(detector, yolo.loss, 1, lambda rng: (_image(image_px, rng), yolo.boxes(rng)), "sgd")
            case "bert":
                bert = BERT_SIZES[model]
                sample = partial(language.question, bert, seq_len)
                return Trainable(language.Bert(bert, dropout), language.answer_loss, 2, sample, "adamw")
            case "gpt":
                gpt = GPT_SIZES[model]
                sample = partial(language.text, gpt, seq_len)
                return Trainable(language.Gpt(gpt, dropout), language.next_token_loss, 1, sample, "adamw")
            case "transformers":
                other = foreign.transformer(foreign_name)
                sample = partial(other.sample, seq_len, image_px)
                return Trainable(other, foreign.transformer_loss, 1, sample, "adamw")


LATE_FROM = 1_000_000_000
"""Parameters from which a model gets no memory before it is on its device, and sharded."""


def is_late(model: str) -> bool:
    """Whether the model is built without memory, and `materialise` gives it its weights."""
    info = model_info(model)
    return info.family == "gpt" and (info.parameters or 0) >= LATE_FROM


def materialise(trainable: Trainable, device: torch.device, seed: int) -> None:
    """Put the model on the device; one that was built without memory gets it there, and its weights."""
    if next(trainable.parameters()).is_meta:
        trainable.to_empty(device=device)
        language.draw(cast(language.Gpt, trainable.network), seed)
    else:
        trainable.to(device)


def _image(image_px: int, generator: torch.Generator) -> Tensor:
    # Bytes, as a decoded photograph is: what storage and the link to the device have to carry is then realistic.
    return torch.randint(256, (3, image_px, image_px), generator=generator, dtype=torch.uint8)


def _class_loss(logits: Tensor, target: Tensor) -> Tensor:
    return nn.functional.cross_entropy(logits.float(), target)


def _classifier(
    network: nn.Module, image_px: int, classes: int = _CLASSES, loss: Callable[..., Tensor] = _class_loss
) -> Trainable:
    def sample(generator: torch.Generator) -> Sample:
        return _image(image_px, generator), torch.randint(classes, (), generator=generator)

    return Trainable(network, loss, 1, sample, "sgd")


def batch_of(trainable: Trainable, indices: Iterable[int], seed: int) -> Sample:
    """Samples of an endless stream, stacked: a sample depends on (seed, index) alone, never on rank or world size."""
    samples = []
    for index in indices:
        generator = torch.Generator().manual_seed(seed * 1_000_003 + index)
        samples.append(trainable.sample(generator))
    return tuple(torch.stack(column) for column in zip(*samples, strict=True))


def flops_per_step(spec: TrainSpec) -> float | None:
    """Operations of one optimizer step of one rank, over all its samples; None for a foreign model that cannot be counted."""
    return training_flops(spec.model, spec.options, spec.batch * spec.replicas)


def training_flops(model: str, options: Mapping[str, Scalar], batch: int) -> float | None:
    """Operations of training on a batch: three forward passes over it, whatever a device or a strategy really does.

    options: as in a workload file; ConfigError where they do not fit the model. Two operations for a multiply and an add; only
    matrix products and convolutions count (Kaplan et al. 2020): torch's counter would give grouped convolutions too much in the
    backward pass, by the number of groups. Activations that are computed again are not counted, and attention counts in full where
    it is causal (Chowdhery et al. 2022, appendix B, do the same).
    """
    shaping, info = shaping_options(model, options), model_info(model)
    forward = info.forward_flops_per_sample
    if forward is None or not set(shaping) <= set(info.default_options.items()):
        counted = count(model, shaping)
        forward = None if counted is None else sum(counted.values())
    return None if forward is None else 3.0 * forward * batch


def shaping_options(model: str, options: Mapping[str, Scalar]) -> tuple[tuple[str, Scalar], ...]:
    """The options that shape the model, sorted; ConfigError where they do not fit it."""
    resolved = resolve_options(model, options)
    return tuple(sorted((name, resolved[name]) for name in FAMILY_OPTIONS[model_info(model).family]))


@cache
def count(model: str, shaping: tuple[tuple[str, Scalar], ...]) -> Mapping[str, float] | None:
    """Operations of one sample's forward pass by module of the network, in their order; of a model built without memory.

    What lies between two modules goes to the second: products of attention to the projection after it. Modules that call others
    have none of their own. None for a foreign model that cannot be counted.
    """
    from torch.utils.flop_counter import FlopCounterMode

    foreign_model = model_info(model).parameters is None
    try:
        trainable = build(model, resolve_options(model, dict(shaping)), "meta")
        batch = [
            (tensor.float() if tensor.dtype == torch.uint8 else tensor).to("meta")
            for tensor in batch_of(trainable, range(_COUNTED), 1)
        ]
        for module in [] if foreign_model else list(trainable.network.modules()):
            for name, child in module.named_children():
                if isinstance(child, _PASSED_OVER):
                    setattr(module, name, nn.Identity())
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            parts = _Parts(trainable.network, counter.get_total_flops)
            trainable.network(*batch[: trainable.inputs])
    except Exception:
        if not foreign_model:
            raise
        return None  # a package's model may do on no data what only data allows
    return {name: flops / _COUNTED for name, flops in parts.operations().items()}


class _Parts:
    """Watches one forward pass for modules that call no others, and what had been done at the end of each."""

    def __init__(self, network: nn.Module, done: Callable[[], int]) -> None:
        self._done = done
        self._open: list[str] = []
        self._calling: set[str] = set()
        self._ends: list[tuple[str, int]] = []
        for name, module in network.named_modules():
            module.register_forward_pre_hook(partial(self._begin, name))
            module.register_forward_hook(partial(self._end, name))

    def _begin(self, name: str, *_: object) -> None:
        self._calling.update(self._open[-1:])
        self._open.append(name)

    def _end(self, name: str, *_: object) -> None:
        self._open.pop()
        if name not in self._calling:
            self._ends.append((name, self._done()))

    def operations(self) -> Mapping[str, float]:
        """Operations of one call by module; what comes after the last one belongs to that."""
        calls = Counter(name for name, _ in self._ends)
        found, before = dict.fromkeys(calls, 0.0), 0
        for index, (name, done) in enumerate(self._ends, 1):
            done = self._done() if index == len(self._ends) else done
            found[name] += (done - before) / calls[name]
            before = done
        return {name: flops for name, flops in found.items() if flops}
