"""What one training run is asked to do, and the models it can name. Without torch: it validates and documents."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from campaign.cell import Scalar
from campaign.errors import ConfigError

Precision = Literal["fp32", "tf32", "fp16", "bf16"]
Family = Literal["resnet", "mobilenet", "yolo", "bert", "transformers", "torchvision"]


@dataclass(frozen=True, slots=True)
class Option:
    """One key of `options`: its kind, what it may be, and what it does.

    choices: allowed words of a text option; minimum: smallest allowed number; multiple_of: what it has to be divisible by.
    """

    kind: type[int] | type[float] | type[str]
    description: str
    minimum: float | None = None
    maximum: float | None = None
    multiple_of: int | None = None
    choices: tuple[str, ...] = ()

    def objection(self, value: Scalar) -> str | None:
        """Why the value is not allowed, or None."""
        # YAML and JSON write 1 for 1.0; True is an int to Python and a number to nobody.
        numeric = isinstance(value, int | float) and not isinstance(value, bool)
        fits = numeric if self.kind is float else isinstance(value, self.kind) and not isinstance(value, bool)
        if not fits:
            return f"has to be {self.kind.__name__}, not {value!r}"
        if self.choices and value not in self.choices:
            return f"has to be one of {', '.join(self.choices)}, not {value!r}"
        if isinstance(value, str):
            return None
        if self.minimum is not None and value < self.minimum:
            return f"has to be at least {self.minimum:g}, not {value!r}"
        if self.maximum is not None and value > self.maximum:
            return f"has to be at most {self.maximum:g}, not {value!r}"
        if self.multiple_of is not None and value % self.multiple_of:
            return f"has to be a multiple of {self.multiple_of}, not {value!r}"
        return None


COMMON_OPTIONS: Mapping[str, Option] = {
    "learning_rate": Option(float, "step size of the optimizer; the model's own default without it", minimum=0.0),
    "input": Option(
        str,
        "resident: one batch stays on the device; h2d: a pinned host batch is copied to the device every step. "
        "With a storage directory every batch is read from there, and this key is not used",
        choices=("resident", "h2d"),
    ),
    "emulation": Option(
        str,
        "refuse: a precision the device has no instructions for is unsupported; allow: it is computed slowly (a rehearsal)",
        choices=("refuse", "allow"),
    ),
}
_IMAGE_PX = Option(int, "height and width of the input images, pixels", minimum=32, maximum=4096)
_SEQ_LEN = Option(int, "tokens in a sequence", minimum=2, maximum=512)

FAMILY_OPTIONS: Mapping[Family, Mapping[str, Option]] = {
    "resnet": {"image_px": _IMAGE_PX},
    "mobilenet": {"image_px": _IMAGE_PX},
    "yolo": {"image_px": Option(int, "height and width of the input images, pixels", 32, 4096, multiple_of=32)},
    "bert": {
        "seq_len": _SEQ_LEN,
        "dropout": Option(float, "probability of dropping an activation", minimum=0.0, maximum=0.9),
    },
    "transformers": {
        "seq_len": Option(int, "tokens in a sequence (language models)", minimum=2),
        "image_px": Option(int, "height and width of the input images, pixels (vision models)", minimum=8),
    },
    "torchvision": {"image_px": _IMAGE_PX},
}


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


_COMMON_DEFAULTS: dict[str, Scalar] = {"input": "resident", "emulation": "refuse"}
_IMAGENET: dict[str, Scalar] = {"image_px": 224, "learning_rate": 0.01, **_COMMON_DEFAULTS}
_SMALL_IMAGE: dict[str, Scalar] = {"image_px": 32, "learning_rate": 0.01, **_COMMON_DEFAULTS}
_SQUAD: dict[str, Scalar] = {"seq_len": 384, "dropout": 0.1, "learning_rate": 3e-5, **_COMMON_DEFAULTS}
_DETECTION: dict[str, Scalar] = {"image_px": 640, "learning_rate": 0.001, **_COMMON_DEFAULTS}

_TABLE = (
    ModelInfo(
        "resnet50",
        "resnet",
        "ResNet-50 (stride in the 3x3 convolution), image classification, 1000 classes",
        "image 3 x 224 x 224 and its class",
        True,
        25_557_032,
        8.18e9,
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
        0.602e9,
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
        109.0e9,
        _DETECTION,
    ),
    ModelInfo(
        "yolov5s",
        "yolo",
        "CSP/PAN one-stage detector of the size of YOLOv5-S (v6.0), 80 classes",
        "image 3 x 640 x 640 and eight boxes",
        True,
        7_235_389,
        16.4e9,
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
        70.7e9,
        _SQUAD,
    ),
    ModelInfo(
        "bert-large",
        "bert",
        "BERT-large with a question-answering head (24 layers, width 1024)",
        "384 token ids, their segments, start and end of the answer",
        True,
        334_094_338,
        246.4e9,
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


class TrainSpec(BaseModel):
    """One training run. Closed and frozen; every rank of the run reads the same file.

    batch: samples per rank and step; warmup_steps come before the window, measured_steps make it up; time_out_s: how long
    a collective operation may take before the run counts as stuck; storage_dir: read every batch from a file there.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str
    batch: int = Field(ge=1)
    precision: Precision = "fp32"
    warmup_steps: int = Field(default=5, ge=0)
    measured_steps: int = Field(ge=1)
    seed: int = Field(default=1234, ge=0)
    options: dict[str, Scalar] = Field(default_factory=dict)
    device: Literal["cpu", "cuda"] = "cpu"
    storage_dir: Path | None = None
    time_out_s: float = Field(default=120.0, gt=0)

    @model_validator(mode="after")
    def _options_fit_the_model(self) -> TrainSpec:
        try:
            resolve_options(self.model, self.options)
        except ConfigError as error:
            raise ValueError(str(error)) from error
        return self

    @property
    def info(self) -> ModelInfo:
        return model_info(self.model)

    def resolved_options(self) -> dict[str, Scalar]:
        """The model's default options with this run's on top."""
        return resolve_options(self.model, self.options)
