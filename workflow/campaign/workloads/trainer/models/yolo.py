"""One-stage detector of the CSP/PAN kind with the layers of YOLOv5 v6.0.

The code is written from the description of the architecture. The detector has a backbone of strided convolutions and
cross-stage-partial (C3) stages, spatial pyramid pooling, a path-aggregation neck (top-down, then bottom-up), and three
detection layers at strides 8, 16 and 32 with three anchors each. Multipliers of depth and width define the sizes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

CLASSES = 80
BOXES_PER_IMAGE = 8
_ANCHORS = 3
_OBJECTNESS = 4  # channel of a prediction: x, y, width, height, objectness, classes


@dataclass(frozen=True, slots=True)
class YoloSize:
    """Size of a detector, as multipliers of depth and width."""

    depth: float
    width: float

    def scale_channels(self, base_channels: int) -> int:
        """Scale a number of channels by the width multiplier, and round up to a multiple of 8."""
        return math.ceil(base_channels * self.width / 8) * 8

    def scale_repeats(self, base_repeats: int) -> int:
        """Scale a number of repeated blocks by the depth multiplier. The result is at least 1."""
        return max(round(base_repeats * self.depth), 1)


SIZES = {"cspn": YoloSize(0.33, 0.25), "yolov5s": YoloSize(0.33, 0.5), "yolov5l": YoloSize(1.0, 1.0)}


class ConvUnit(nn.Sequential):
    """Unit of a convolution, batch normalisation and SiLU."""

    def __init__(
        self, in_channels: int, out_channels: int, size: int = 1, stride: int = 1, padding: int | None = None
    ) -> None:
        padding = size // 2 if padding is None else padding
        super().__init__(
            nn.Conv2d(in_channels, out_channels, size, stride, padding, bias=False),
            nn.BatchNorm2d(out_channels, eps=1e-3, momentum=0.03),
            nn.SiLU(inplace=True),
        )


class Residual(nn.Module):
    """Block of a 1x1 and a 3x3 convolution with the same number of channels, with or without a shortcut."""

    def __init__(self, channels: int, shortcut: bool) -> None:
        super().__init__()
        self.path = nn.Sequential(ConvUnit(channels, channels), ConvUnit(channels, channels, 3))
        self.shortcut = shortcut

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.path(x)
        return x + y if self.shortcut else y


class CrossStagePartial(nn.Module):
    """Stage in which half of the channels pass through `repeats` residual blocks, and the other half bypasses them (C3).

    A 1x1 convolution joins both halves.
    """

    def __init__(self, in_channels: int, out_channels: int, repeats: int, shortcut: bool = True) -> None:
        super().__init__()
        half_channels = out_channels // 2
        self.deep = nn.Sequential(
            ConvUnit(in_channels, half_channels), *(Residual(half_channels, shortcut) for _ in range(repeats))
        )
        self.passing = ConvUnit(in_channels, half_channels)
        self.join = ConvUnit(2 * half_channels, out_channels)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.join(torch.cat((self.deep(x), self.passing(x)), 1))
        return output


class PyramidPooling(nn.Module):
    """Pooling over 5, 9 and 13 pixels by three successive 5x5 poolings. Input and results are concatenated (SPPF)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.reduce = ConvUnit(channels, channels // 2)
        self.pool = nn.MaxPool2d(5, stride=1, padding=2)
        self.join = ConvUnit(2 * channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        views = [self.reduce(x)]
        for _ in range(3):
            views.append(self.pool(views[-1]))
        output: Tensor = self.join(torch.cat(views, 1))
        return output


class Detector(nn.Module):
    """Detector: [n, 3, h, w] (multiples of 32) to three predictions [n, 3, 85, h/stride, w/stride], the finest first."""

    def __init__(self, size: YoloSize) -> None:
        super().__init__()
        c64, c128, c256, c512, c1024 = (size.scale_channels(full) for full in (64, 128, 256, 512, 1024))
        three = size.scale_repeats(3)
        self.to_stride8 = nn.Sequential(
            ConvUnit(3, c64, 6, 2, padding=2),
            ConvUnit(c64, c128, 3, 2),
            CrossStagePartial(c128, c128, three),
            ConvUnit(c128, c256, 3, 2),
            CrossStagePartial(c256, c256, size.scale_repeats(6)),
        )
        self.to_stride16 = nn.Sequential(
            ConvUnit(c256, c512, 3, 2), CrossStagePartial(c512, c512, size.scale_repeats(9))
        )
        self.to_stride32 = nn.Sequential(
            ConvUnit(c512, c1024, 3, 2), CrossStagePartial(c1024, c1024, three), PyramidPooling(c1024)
        )
        self.lateral32 = ConvUnit(c1024, c512)
        self.down16 = CrossStagePartial(2 * c512, c512, three, shortcut=False)
        self.lateral16 = ConvUnit(c512, c256)
        self.down8 = CrossStagePartial(2 * c256, c256, three, shortcut=False)
        self.shrink8 = ConvUnit(c256, c256, 3, 2)
        self.up16 = CrossStagePartial(2 * c256, c512, three, shortcut=False)
        self.shrink16 = ConvUnit(c512, c512, 3, 2)
        self.up32 = CrossStagePartial(2 * c512, c1024, three, shortcut=False)
        outputs = _ANCHORS * (5 + CLASSES)
        self.detect = nn.ModuleList(nn.Conv2d(channels, outputs, 1) for channels in (c256, c512, c1024))
        self._lower_objectness_bias()

    def _lower_objectness_bias(self) -> None:
        # Nearly every cell is background. Without this bias, the first steps would only unlearn objects everywhere.
        for layer in self.detect:
            if isinstance(layer, nn.Conv2d) and layer.bias is not None:
                with torch.no_grad():
                    layer.bias.view(_ANCHORS, 5 + CLASSES)[:, _OBJECTNESS:] -= 4.0

    def forward(self, x: Tensor) -> list[Tensor]:
        stride8 = self.to_stride8(x)
        stride16 = self.to_stride16(stride8)
        top = self.lateral32(self.to_stride32(stride16))
        middle = self.lateral16(self.down16(torch.cat((_upsample(top), stride16), 1)))
        fine = self.down8(torch.cat((_upsample(middle), stride8), 1))
        medium = self.up16(torch.cat((self.shrink8(fine), middle), 1))
        coarse = self.up32(torch.cat((self.shrink16(medium), top), 1))
        return [
            layer(features).unflatten(1, (_ANCHORS, 5 + CLASSES))
            for layer, features in zip(self.detect, (fine, medium, coarse), strict=True)
        ]


def _upsample(x: Tensor) -> Tensor:
    return functional.interpolate(x, scale_factor=2.0, mode="nearest")


def draw_boxes(generator: torch.Generator) -> Tensor:
    """Draw random objects in one image, [8, 5]: class, centre x and y, width and height as shares of the image."""
    kinds = torch.randint(CLASSES, (BOXES_PER_IMAGE, 1), generator=generator).float()
    centres = torch.rand((BOXES_PER_IMAGE, 2), generator=generator)
    sizes = 0.05 + 0.45 * torch.rand((BOXES_PER_IMAGE, 2), generator=generator)
    return torch.cat((kinds, centres, sizes), 1)


def detection_loss(predictions: list[Tensor], objects: Tensor) -> Tensor:
    """Return the sum of the box, objectness and class losses over all three outputs, a scalar.

    At each stride, an object is assigned to the cell of its centre and to the anchor of its index. The objectness loss is computed
    in every cell, the box and class losses in the assigned cells. The loss is deliberately simple: every output contributes to the
    gradient at a realistic cost, and the detector's accuracy does not matter.
    """
    total = objects.new_zeros(())
    count = objects.shape[1]
    image = torch.arange(objects.shape[0], device=objects.device)[:, None].expand(-1, count)
    anchor = (torch.arange(count, device=objects.device) % _ANCHORS).expand_as(image)
    for output in predictions:
        prediction = output.float()
        rows, columns = prediction.shape[-2:]
        scale = objects.new_tensor((columns, rows))
        position = objects[..., 1:3] * scale
        cell = torch.minimum(position.long(), scale.long() - 1)
        assigned_predictions = prediction[image, anchor, :, cell[..., 1], cell[..., 0]]
        predicted_boxes = torch.cat(
            (assigned_predictions[..., :2].sigmoid(), assigned_predictions[..., 2:4].sigmoid()), -1
        )
        target_boxes = torch.cat((position - cell, objects[..., 3:5]), -1)
        target = torch.zeros_like(prediction[:, :, _OBJECTNESS])
        target[image, anchor, cell[..., 1], cell[..., 0]] = 1.0
        kinds = functional.one_hot(objects[..., 0].long(), CLASSES).float()
        total = total + functional.smooth_l1_loss(predicted_boxes, target_boxes)
        total = total + functional.binary_cross_entropy_with_logits(prediction[:, :, _OBJECTNESS], target)
        total = total + functional.binary_cross_entropy_with_logits(assigned_predictions[..., _OBJECTNESS + 1 :], kinds)
    return total
