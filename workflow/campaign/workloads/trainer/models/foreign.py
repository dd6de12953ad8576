"""Models of external packages with random weights, `transformers:NAME` and `torchvision:NAME`. Nothing is downloaded."""

from __future__ import annotations

import importlib
import os
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from campaign.common.errors import ConfigError


class ExternalTransformer(nn.Module):
    """Model from the package transformers. Its forward pass returns all floating-point tensors of the model's output."""

    def __init__(self, network: nn.Module, configuration: Any) -> None:
        super().__init__()
        self.network = network
        self.vocabulary = int(getattr(configuration, "vocab_size", 0) or 0)
        self.channels = int(getattr(configuration, "num_channels", 3) or 3)

    def forward(self, x: Tensor) -> list[Tensor]:
        name = "input_ids" if self.vocabulary else "pixel_values"
        outputs = self.network(**{name: x, "return_dict": True})
        return [value for value in outputs.to_tuple() if isinstance(value, Tensor) and value.is_floating_point()]

    def draw_sample(self, seq_len: int, image_px: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        """Draw a random sample: token ids [seq_len] or, for a vision model, an image [channels, image_px, image_px] uint8."""
        if self.vocabulary:
            return (torch.randint(self.vocabulary, (seq_len,), generator=generator),)
        shape = (self.channels, image_px, image_px)
        return (torch.randint(256, shape, generator=generator, dtype=torch.uint8),)


def build_transformer(name: str) -> ExternalTransformer:
    """Build an AutoModel from the package transformers, with random weights.

    Raises ConfigError if the package or the model does not exist.

    Args:
        name: model type (such as `bert`), directory that contains a config.json, or cached model.
    """
    os.environ["HF_HUB_OFFLINE"] = "1"  # a run on a compute host must neither wait for a download nor depend on it
    package = _import_package("transformers")
    if name in package.CONFIG_MAPPING:
        configuration = package.AutoConfig.for_model(name)
    else:
        try:
            configuration = package.AutoConfig.from_pretrained(name)
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"transformers:{name} is neither a model type of transformers, nor a directory with a config.json, nor a "
                f"cached model ({error})"
            ) from error
    return ExternalTransformer(package.AutoModel.from_config(configuration), configuration)


def transformer_loss(outputs: list[Tensor]) -> Tensor:
    """Return the sum of the mean squares of all outputs as the loss, a scalar.

    Every output, including that of a pooler, thus contributes to the gradient.
    """
    return torch.stack([output.float().square().mean() for output in outputs]).sum()


def build_vision_model(name: str) -> nn.Module:
    """Build a classifier from torchvision.models by the name of its builder function.

    Raises ConfigError if the package or the model does not exist.
    """
    package = _import_package("torchvision")
    models = importlib.import_module(f"{package.__name__}.models")
    try:
        network: nn.Module = models.get_model(name, weights=None)
    except ValueError as error:
        raise ConfigError(f"torchvision:{name} is not a model of torchvision.models ({error})") from error
    return network


def vision_loss(outputs: Any, target: Tensor) -> Tensor:
    """Return the cross-entropy loss, a scalar. Auxiliary classifiers (GoogLeNet, Inception) contribute with full weight."""
    heads = [outputs] if isinstance(outputs, Tensor) else [head for head in outputs if isinstance(head, Tensor)]
    return torch.stack([nn.functional.cross_entropy(head.float(), target) for head in heads]).sum()


def _import_package(name: str) -> ModuleType:
    """Import an external package. Raises ConfigError if it cannot be imported."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(
            f"models {name}:NAME need the package {name}, which cannot be imported ({error}); install it"
        ) from error
