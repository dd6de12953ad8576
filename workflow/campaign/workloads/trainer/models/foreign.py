"""Models of other packages, with random weights and without the network: `transformers:NAME` and `torchvision:NAME`."""

from __future__ import annotations

import importlib
import os
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from campaign.common.errors import ConfigError


class ForeignTransformer(nn.Module):
    """A model of transformers; forward gives every floating-point tensor of its output."""

    def __init__(self, network: nn.Module, configuration: Any) -> None:
        super().__init__()
        self.network = network
        self.vocabulary = int(getattr(configuration, "vocab_size", 0) or 0)
        self.channels = int(getattr(configuration, "num_channels", 3) or 3)

    def forward(self, x: Tensor) -> list[Tensor]:
        name = "input_ids" if self.vocabulary else "pixel_values"
        outputs = self.network(**{name: x, "return_dict": True})
        return [value for value in outputs.to_tuple() if isinstance(value, Tensor) and value.is_floating_point()]

    def sample(self, seq_len: int, image_px: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        """Token ids [seq_len] of a language model, or an image [channels, image_px, image_px] uint8."""
        if self.vocabulary:
            return (torch.randint(self.vocabulary, (seq_len,), generator=generator),)
        shape = (self.channels, image_px, image_px)
        return (torch.randint(256, shape, generator=generator, dtype=torch.uint8),)


def transformer(name: str) -> ForeignTransformer:
    """AutoModel from the default configuration of a model type (`bert`), a directory with a config.json, or a cached model."""
    os.environ["HF_HUB_OFFLINE"] = "1"  # a run on a compute host must not hang on, or depend on, a download
    package = _package("transformers")
    if name in package.CONFIG_MAPPING:
        configuration = package.AutoConfig.for_model(name)
    else:
        try:
            configuration = package.AutoConfig.from_pretrained(name)
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"transformers:{name}: neither a model type of transformers, nor a directory with a config.json, nor a "
                f"cached model ({error})"
            ) from error
    return ForeignTransformer(package.AutoModel.from_config(configuration), configuration)


def transformer_loss(outputs: list[Tensor]) -> Tensor:
    """Mean square of each output, added up, a scalar: every output, a pooler too, takes part in the gradient."""
    return torch.stack([output.float().square().mean() for output in outputs]).sum()


def vision(name: str) -> nn.Module:
    """A classifier of torchvision.models by its function's name."""
    package = _package("torchvision")
    models = importlib.import_module(f"{package.__name__}.models")
    try:
        network: nn.Module = models.get_model(name, weights=None)
    except ValueError as error:
        raise ConfigError(f"torchvision:{name}: torchvision.models has no such model ({error})") from error
    return network


def vision_loss(outputs: Any, target: Tensor) -> Tensor:
    """Cross-entropy of the class, a scalar; auxiliary classifiers (GoogLeNet, Inception) count fully."""
    heads = [outputs] if isinstance(outputs, Tensor) else [head for head in outputs if isinstance(head, Tensor)]
    return torch.stack([nn.functional.cross_entropy(head.float(), target) for head in heads]).sum()


def _package(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(
            f"a {name}:NAME model needs the package {name}, which cannot be imported here ({error})"
        ) from error
