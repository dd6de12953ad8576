"""MobileNetV2 1.0 (Sandler et al. 2018)."""

from __future__ import annotations

from torch import Tensor, nn

# expansion, output channels, repeats, stride of the first: Table 2 of the paper
_STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
_STEM_CHANNELS = 32
_LAST_CHANNELS = 1280


def _convolution(in_channels: int, out_channels: int, size: int, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    return [
        nn.Conv2d(in_channels, out_channels, size, stride, padding=size // 2, groups=groups, bias=False),
        nn.BatchNorm2d(out_channels),
        nn.ReLU6(inplace=True),
    ]


class InvertedResidual(nn.Module):
    """Expand, filter each channel, project; with a shortcut where input and output have one shape."""

    def __init__(self, in_channels: int, out_channels: int, stride: int, expansion: int) -> None:
        super().__init__()
        hidden = in_channels * expansion
        layers = _convolution(in_channels, hidden, 1) if expansion != 1 else []
        layers += _convolution(hidden, hidden, 3, stride, groups=hidden)
        layers += [nn.Conv2d(hidden, out_channels, 1, bias=False), nn.BatchNorm2d(out_channels)]
        self.layers = nn.Sequential(*layers)
        self.has_shortcut = stride == 1 and in_channels == out_channels

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layers(x)
        return x + y if self.has_shortcut else y


class MobileNetV2(nn.Module):
    """[n, 3, h, w] to [n, classes]. No dropout: a measured step has to be the same work every time."""

    def __init__(self, classes: int = 1000) -> None:
        super().__init__()
        layers = _convolution(3, _STEM_CHANNELS, 3, 2)
        channels = _STEM_CHANNELS
        for expansion, out_channels, repeats, first_stride in _STAGES:
            for repeat in range(repeats):
                stride = first_stride if repeat == 0 else 1
                layers.append(InvertedResidual(channels, out_channels, stride, expansion))
                channels = out_channels
        layers += _convolution(channels, _LAST_CHANNELS, 1)
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Linear(_LAST_CHANNELS, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out")

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.features(x).mean((2, 3)))
        return logits
