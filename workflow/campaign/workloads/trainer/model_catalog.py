"""The built-in models: what is known of each without building it, and its options. Without torch."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field

from campaign.documents.cell import Scalar
from campaign.errors import ConfigError
from campaign.workloads.trainer.model_options import COMMON_OPTIONS, FAMILY_OPTIONS, Family, Option


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What is known of a model without building it.

    parameters: exact count; forward_flops_per_sample: 2 x multiply-adds of one sample's forward pass at the default options
    (training costs about three times as much); both None where a foreign package defines the model.
    """

    name: str
    family: Family
    description: str
    input_description: str
    full_size: bool
    parameters: int | None = None
    forward_flops_per_sample: float | None = None
    default_options: Mapping[str, Scalar] = field(default_factory=dict)

    @property
    def options(self) -> Mapping[str, Option]:
        """Every option the model knows, by name."""
        return {**FAMILY_OPTIONS[self.family], **COMMON_OPTIONS}


_COMMON_DEFAULTS: dict[str, Scalar] = {
    "input": "resident",
    "loader_workers": 0,
    "page_cache": "drop",
    "emulation": "refuse",
    "parallel": "ddp",
    "accumulation": 1,
    "compile": False,
    "activation_checkpointing": False,
    "bucket_mib": 25.0,
    "measure_communication": False,
}
_IMAGENET: dict[str, Scalar] = {"image_px": 224, "learning_rate": 0.01, **_COMMON_DEFAULTS}
_SMALL_IMAGE: dict[str, Scalar] = {"image_px": 32, "learning_rate": 0.01, **_COMMON_DEFAULTS}
_SQUAD: dict[str, Scalar] = {"seq_len": 384, "dropout": 0.1, "learning_rate": 3e-5, **_COMMON_DEFAULTS}
_TEXT: dict[str, Scalar] = {"seq_len": 1024, "dropout": 0.1, "learning_rate": 6e-4, **_COMMON_DEFAULTS}
_DETECTION: dict[str, Scalar] = {"image_px": 640, "learning_rate": 0.001, **_COMMON_DEFAULTS}

_TABLE = (
    ModelInfo(
        "resnet50",
        "resnet",
        "ResNet-50 (stride in the 3x3 convolution), image classification, 1000 classes",
        "image 3 x 224 x 224 and its class",
        True,
        25_557_032,
        8_178_368_512.0,
        _IMAGENET,
    ),
    ModelInfo(
        "resnet50w16",
        "resnet",
        "ResNet-50 at a quarter of its width, 100 classes: a reduced size that a CPU core trains in a second",
        "image 3 x 32 x 32 and its class",
        False,
        1_532_276,
        11_431_936.0,
        _SMALL_IMAGE,
    ),
    ModelInfo(
        "mobilenetv2",
        "mobilenet",
        "MobileNetV2 1.0, image classification, 1000 classes",
        "image 3 x 224 x 224 and its class",
        True,
        3_504_872,
        601_548_544.0,
        _IMAGENET,
    ),
    ModelInfo(
        "mobilenetv2-32px",
        "mobilenet",
        "the whole of MobileNetV2 1.0 on images of 32 pixels: a reduced input, not a reduced model",
        "image 3 x 32 x 32 and its class",
        False,
        3_504_872,
        14_784_256.0,
        _SMALL_IMAGE,
    ),
    ModelInfo(
        "yolov5l",
        "yolo",
        "CSP/PAN one-stage detector of the size of YOLOv5-L (v6.0), 80 classes",
        "image 3 x 640 x 640 and eight boxes",
        True,
        46_563_709,
        108_993_740_800.0,
        _DETECTION,
    ),
    ModelInfo(
        "yolov5s",
        "yolo",
        "CSP/PAN one-stage detector of the size of YOLOv5-S (v6.0), 80 classes",
        "image 3 x 640 x 640 and eight boxes",
        True,
        7_235_389,
        16_433_561_600.0,
        _DETECTION,
    ),
    ModelInfo(
        "cspn",
        "yolo",
        "CSP/PAN one-stage detector of the size of YOLOv5-N on images of 64 pixels: a reduced size and input",
        "image 3 x 64 x 64 and eight boxes",
        False,
        1_872_157,
        44_681_216.0,
        {**_DETECTION, "image_px": 64},
    ),
    ModelInfo(
        "bert-base",
        "bert",
        "BERT-base with a question-answering head (12 layers, width 768)",
        "384 token ids, their segments, start and end of the answer",
        True,
        108_893_186,
        70_666_813_440.0,
        _SQUAD,
    ),
    ModelInfo(
        "bert-large",
        "bert",
        "BERT-large with a question-answering head (24 layers, width 1024)",
        "384 token ids, their segments, start and end of the answer",
        True,
        334_094_338,
        246_425_321_472.0,
        _SQUAD,
    ),
    ModelInfo(
        "bert-nano",
        "bert",
        "BERT with a question-answering head, 2 layers of width 128, 2048 tokens: a reduced size, a second on a CPU core",
        "64 token ids, their segments, start and end of the answer",
        False,
        724_994,
        54_558_720.0,
        {"seq_len": 64, "dropout": 0.0, "learning_rate": 1e-3, **_COMMON_DEFAULTS},
    ),
    ModelInfo(
        "gpt2",
        "gpt",
        "GPT-2 (12 layers, width 768), next token",
        "1024 token ids and the ids that follow them",
        True,
        124_439_808,
        291_648_307_200.0,
        _TEXT,
    ),
    ModelInfo(
        "gpt2-medium",
        "gpt",
        "GPT-2 medium (24 layers, width 1024), next token",
        "1024 token ids and the ids that follow them",
        True,
        354_823_168,
        826_951_073_792.0,
        _TEXT,
    ),
    ModelInfo(
        "gpt-nano",
        "gpt",
        "GPT-2 with 2 layers of width 128 and 2048 tokens: a reduced size, a fraction of a second on a CPU core",
        "64 token ids and the ids that follow them",
        False,
        790_016,
        88_080_384.0,
        {**_TEXT, "seq_len": 64, "dropout": 0.0, "learning_rate": 1e-3},
    ),
)
MODELS: dict[str, ModelInfo] = {info.name: info for info in _TABLE}


def model_info(name: str) -> ModelInfo:
    """The model of that name, also `transformers:NAME` and `torchvision:NAME`; ConfigError names the nearest known ones."""
    if name in MODELS:
        return MODELS[name]
    package, colon, foreign = name.partition(":")
    if colon and foreign and package == "transformers":
        defaults: dict[str, Scalar] = {"seq_len": 128, "image_px": 224, "learning_rate": 1e-4, **_COMMON_DEFAULTS}
        return ModelInfo(
            name,
            "transformers",
            f"{foreign} of transformers, random weights",
            "by its configuration",
            True,
            default_options=defaults,
        )
    if colon and foreign and package == "torchvision":
        return ModelInfo(
            name,
            "torchvision",
            f"{foreign} of torchvision.models, random weights",
            "image and class",
            True,
            default_options=_IMAGENET,
        )
    near = difflib.get_close_matches(name, MODELS, n=1)
    hint = f" (did you mean {near[0]}?)" if near else ""
    known = ", ".join(sorted(MODELS))
    raise ConfigError(f"model {name!r} is not known{hint}; known: {known}, transformers:NAME, torchvision:NAME")


def resolve_options(model: str, options: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """The model's defaults overlaid with `options`; ConfigError for an unknown key or a value that is not allowed."""
    info = model_info(model)
    for name, value in options.items():
        option = info.options.get(name)
        if option is None:
            raise ConfigError(f"{model} has no option {name!r}; it has: {', '.join(sorted(info.options))}")
        if objection := option.objection(value):
            raise ConfigError(f"option {name} of {model} {objection}")
    return {**info.default_options, **options}
