"""The models as things to train: a network, a synthetic sample, a loss and an optimizer, by name. Needs torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from campaign.documents.cell import Scalar
from campaign.workloads.trainer.model_catalog import model_info
from campaign.workloads.trainer.models import bert, foreign, gpt, mobilenet, resnet, yolo

Sample = tuple[Tensor, ...]
_IMAGE_CLASSES = {"resnet50w16": 100}
_DEFAULT_CLASSES = 1000


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
        self._loss = loss

    def forward(self, *batch: Tensor) -> Tensor:
        """The loss of a batch, a scalar; every tensor has the batch as its first axis."""
        return self._loss(self.network(*batch[: self.inputs]), *batch[self.inputs :])


def build(model: str, options: Mapping[str, Scalar], device: torch.device | str = "cpu") -> Trainable:
    """Build the model on the device (`meta` costs nothing) with weights from torch's global seed.

    options: resolved ones (`model_catalog.resolve_options`). ConfigError when a foreign package is missing.
    """
    family = model_info(model).family
    with torch.device(device):
        return _BUILDERS[family](model, options)


def batch_of(trainable: Trainable, indices: Iterable[int], seed: int) -> Sample:
    """Samples of an endless stream, stacked: a sample depends on (seed, index) alone, never on rank or world size."""
    samples = []
    for index in indices:
        generator = torch.Generator().manual_seed(seed * 1_000_003 + index)
        samples.append(trainable.sample(generator))
    return tuple(torch.stack(column) for column in zip(*samples, strict=True))


def optimizer_of(trainable: Trainable, learning_rate: float) -> tuple[type[torch.optim.Optimizer], dict[str, Any]]:
    """AdamW for transformers, SGD with momentum 0.9 for convolutional networks, as they are trained in practice; its settings."""
    if trainable.optimizer == "adamw":
        return torch.optim.AdamW, {"lr": learning_rate}
    return torch.optim.SGD, {"lr": learning_rate, "momentum": 0.9}


def make_optimizer(
    trainable: Trainable, learning_rate: float, parameters: Iterable[nn.Parameter] | None = None
) -> torch.optim.Optimizer:
    """The model's optimizer over its own parameters, or over those that stand for them."""
    kind, settings = optimizer_of(trainable, learning_rate)
    return kind(trainable.parameters() if parameters is None else parameters, **settings)


def _image(image_px: int, generator: torch.Generator) -> Tensor:
    # Bytes, as a decoded photograph is: what storage and the link to the device have to carry is then realistic.
    return torch.randint(256, (3, image_px, image_px), generator=generator, dtype=torch.uint8)


def _class_loss(logits: Tensor, target: Tensor) -> Tensor:
    return nn.functional.cross_entropy(logits.float(), target)


def _classifier(
    network: nn.Module, classes: int, image_px: int, loss: Callable[..., Tensor] = _class_loss
) -> Trainable:
    def sample(generator: torch.Generator) -> Sample:
        return _image(image_px, generator), torch.randint(classes, (), generator=generator)

    return Trainable(network, loss, 1, sample, "sgd")


def _resnet(model: str, options: Mapping[str, Scalar]) -> Trainable:
    classes = _IMAGE_CLASSES.get(model, _DEFAULT_CLASSES)
    return _classifier(
        resnet.ResNet50(16 if model == "resnet50w16" else 64, classes), classes, int(options["image_px"])
    )


def _mobilenet(model: str, options: Mapping[str, Scalar]) -> Trainable:
    return _classifier(mobilenet.MobileNetV2(_DEFAULT_CLASSES), _DEFAULT_CLASSES, int(options["image_px"]))


def _yolo(model: str, options: Mapping[str, Scalar]) -> Trainable:
    image_px = int(options["image_px"])

    def sample(generator: torch.Generator) -> Sample:
        return _image(image_px, generator), yolo.boxes(generator)

    return Trainable(yolo.Detector(yolo.SIZES[model]), yolo.loss, 1, sample, "sgd")


def _bert(model: str, options: Mapping[str, Scalar]) -> Trainable:
    size, seq_len = bert.SIZES[model], int(options["seq_len"])
    network = bert.BertQuestionAnswering(size, float(options["dropout"]))
    return Trainable(network, bert.loss, 2, lambda generator: bert.sample(size, seq_len, generator), "adamw")


def _gpt(model: str, options: Mapping[str, Scalar]) -> Trainable:
    size, seq_len = gpt.SIZES[model], int(options["seq_len"])
    network = gpt.Gpt(size, float(options["dropout"]))
    return Trainable(network, gpt.loss, 1, lambda generator: gpt.sample(size, seq_len, generator), "adamw")


def _transformers(model: str, options: Mapping[str, Scalar]) -> Trainable:
    network = foreign.transformer(model.partition(":")[2])
    seq_len, image_px = int(options["seq_len"]), int(options["image_px"])
    return Trainable(
        network, foreign.transformer_loss, 1, lambda generator: network.sample(seq_len, image_px, generator), "adamw"
    )


def _torchvision(model: str, options: Mapping[str, Scalar]) -> Trainable:
    network = foreign.vision(model.partition(":")[2])
    return _classifier(network, _DEFAULT_CLASSES, int(options["image_px"]), foreign.vision_loss)


_BUILDERS: Mapping[str, Callable[[str, Mapping[str, Scalar]], Trainable]] = {
    "resnet": _resnet,
    "mobilenet": _mobilenet,
    "yolo": _yolo,
    "bert": _bert,
    "gpt": _gpt,
    "transformers": _transformers,
    "torchvision": _torchvision,
}
