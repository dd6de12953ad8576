"""Image classifiers: ResNet-50 (He et al. 2015) and MobileNetV2 1.0 (Sandler et al. 2018); [n, 3, h, w] to [n, classes]."""

from __future__ import annotations

import torch
from torch import Tensor, nn

# Expansion, output channels, repeats, stride of the first: Table 2 of the paper.
_MOBILENET_STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


def _make_convolution(
    in_channels: int,
    out_channels: int,
    size: int,
    stride: int = 1,
    activation: type[nn.Module] | None = None,
    groups: int = 1,
) -> list[nn.Module]:
    convolution = nn.Conv2d(in_channels, out_channels, size, stride, padding=size // 2, groups=groups, bias=False)
    return [convolution, nn.BatchNorm2d(out_channels), *([activation(inplace=True)] if activation else [])]


class Classifier(nn.Module):
    """Image classifier, which averages features over the image and maps them to class logits."""

    def __init__(self, features: list[nn.Module], channels: int, classes: int) -> None:
        super().__init__()
        self.features = nn.Sequential(*features)
        self.classifier = nn.Linear(channels, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.features(x).mean((2, 3)))
        return logits


class Bottleneck(nn.Module):
    """Block of 1x1, 3x3 and 1x1 convolutions with a shortcut; [n, in_channels, h, w] to [n, 4 width, h/stride, w/stride]."""

    def __init__(self, in_channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            *_make_convolution(in_channels, width, 1, activation=nn.ReLU),
            *_make_convolution(width, width, 3, stride, nn.ReLU),
            *_make_convolution(width, 4 * width, 1),
        )
        changes = stride != 1 or in_channels != 4 * width
        self.shortcut = nn.Sequential(*(_make_convolution(in_channels, 4 * width, 1, stride) if changes else []))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.residual(x) + self.shortcut(x))


def build_resnet50(width: int, classes: int) -> Classifier:
    """Build ResNet-50. The stride is in the 3x3 convolution, as is usual in training.

    Args:
        width: channels of the first stage (64 in the paper).
        classes: number of classes.
    """
    features = [*_make_convolution(3, width, 7, 2, nn.ReLU), nn.MaxPool2d(3, 2, padding=1)]
    channels = width
    for stage, count in enumerate((3, 4, 6, 3)):
        for block in range(count):
            features.append(Bottleneck(channels, width << stage, 2 if stage > 0 and block == 0 else 1))
            channels = 4 * (width << stage)
    return Classifier(features, channels, classes)


class InvertedResidual(nn.Module):
    """Block that expands channels, filters each, and projects them. Has a shortcut if input and output shapes are equal."""

    def __init__(self, in_channels: int, out_channels: int, stride: int, expansion: int) -> None:
        super().__init__()
        hidden_channels = in_channels * expansion
        self.layers = nn.Sequential(
            *(_make_convolution(in_channels, hidden_channels, 1, activation=nn.ReLU6) if expansion != 1 else []),
            *_make_convolution(hidden_channels, hidden_channels, 3, stride, nn.ReLU6, groups=hidden_channels),
            *_make_convolution(hidden_channels, out_channels, 1),
        )
        self.has_shortcut = stride == 1 and in_channels == out_channels

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layers(x)
        return x + y if self.has_shortcut else y


def build_mobilenet_v2(classes: int) -> Classifier:
    """Build MobileNetV2 1.0 without dropout, so that every measured step does the same work."""
    features, channels = _make_convolution(3, 32, 3, 2, nn.ReLU6), 32
    for expansion, out_channels, repeats, first_stride in _MOBILENET_STAGES:
        for repeat in range(repeats):
            features.append(InvertedResidual(channels, out_channels, 1 if repeat else first_stride, expansion))
            channels = out_channels
    features += _make_convolution(channels, 1280, 1, activation=nn.ReLU6)
    return Classifier(features, 1280, classes)
