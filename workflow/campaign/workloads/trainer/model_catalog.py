"""Catalog of the built-in models and their options. The module needs no torch and builds no model."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, cast

from campaign.common.errors import ConfigError
from campaign.spec.cell import Scalar
from campaign.workloads.trainer.transformer_sizes import TRANSFORMER_SIZES

Family = Literal["resnet", "mobilenet", "yolo", "bert", "gpt", "transformers", "torchvision"]
_TYPE_NAMES = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}


@dataclass(frozen=True, slots=True)
class ModelOption:
    """Option of a model, as a key of `options`, with its allowed values.

    Attributes:
        kind: type of the value.
        description: effect of the option.
        minimum: minimum of a number.
        maximum: maximum of a number.
        multiple_of: number of which allowed values are multiples.
        choices: allowed values of a text option.
        default: default value.
    """

    kind: type[int] | type[float] | type[str] | type[bool]
    description: str
    minimum: float | None = None
    maximum: float | None = None
    multiple_of: int | None = None
    choices: tuple[str, ...] = ()
    default: Scalar | None = None

    def find_problem(self, value: Scalar) -> str | None:
        """Return the reason why a value is not allowed for this option, or None if it is."""
        # YAML and JSON may write 1 for 1.0. In Python True is an int, but it is not accepted as a number.
        boolean = isinstance(value, bool)
        numeric = isinstance(value, int | float) and not boolean
        fits = numeric if self.kind is float else isinstance(value, self.kind) and boolean == (self.kind is bool)
        if not fits:
            return f"must be {_TYPE_NAMES[self.kind]}, not {value!r}"
        if self.choices and value not in self.choices:
            return f"must be one of {', '.join(self.choices)}, not {value!r}"
        if isinstance(value, str):
            return None
        if self.minimum is not None and value < self.minimum:
            return f"must be at least {self.minimum:g}, not {value!r}"
        if self.maximum is not None and value > self.maximum:
            return f"must be at most {self.maximum:g}, not {value!r}"
        if self.multiple_of is not None and value % self.multiple_of:
            return f"must be a multiple of {self.multiple_of}, not {value!r}"
        return None

    def format_values(self) -> str:
        """Format the allowed values of the option for the reference page."""
        if self.choices:
            return " or ".join(f"`{choice}`" for choice in self.choices)
        kind = {int: "whole number", float: "number", str: "text", bool: "`true` or `false`"}[self.kind]
        min_text = "" if self.minimum is None else f"{self.minimum:g}"
        max_text = "" if self.maximum is None else f"{self.maximum:g}"
        limits = (
            f", {min_text} to {max_text}"
            if min_text and max_text
            else f" ≥ {min_text}"
            if min_text
            else f" ≤ {max_text}"
            if max_text
            else ""
        )
        return kind + limits + (f", multiple of {self.multiple_of}" if self.multiple_of else "")


COMMON_OPTIONS: Mapping[str, ModelOption] = {
    "learning_rate": ModelOption(float, "Step size of the optimizer. Default: that of the model.", minimum=0.0),
    "input": ModelOption(
        str,
        "Source of the batches. `resident`: one batch stays on the device. `h2d`: a pinned host batch is copied to the device at "
        "the start of every step, which is an upper bound of the cost of host input, because real programs copy the next batch "
        "during a step. `storage`: every rank writes a dataset to the configuration's storage and reads every batch from it, "
        "bypassing the page cache (with O_DIRECT if the file system supports it, else by dropping the cache around every read).",
        choices=("resident", "h2d", "storage"),
        default="resident",
    ),
    "loader_workers": ModelOption(
        int,
        "With `input: storage`: number of threads that read ahead, each up to two batches. With 0, the step itself reads, so the "
        "storage time is fully exposed.",
        minimum=0,
        maximum=64,
        default=0,
    ),
    "dataset_mib": ModelOption(
        int,
        "With `input: storage`: size of each rank's dataset in MiB. Default: as much as the run reads, at most 256.",
        minimum=1,
        maximum=2**20,
    ),
    "emulation": ModelOption(
        str,
        "Handling of a precision for which the device has no instructions. `refuse`: it is unsupported. `allow`: it is computed "
        "slowly, for rehearsals.",
        choices=("refuse", "allow"),
        default="refuse",
    ),
    "parallel": ModelOption(
        str,
        "Strategy by which ranks share the work. `ddp`: DistributedDataParallel. `dp`: DataParallel, one process for the devices "
        "of one host. `zero1`: ddp with sharded optimizer state (ZeroRedundancyOptimizer). `fsdp`: sharded weights, gradients "
        "and optimizer state (fully_shard). A single rank needs no strategy.",
        choices=("ddp", "dp", "zero1", "fsdp"),
        default="ddp",
    ),
    "fsdp_precision": ModelOption(
        str,
        "With `parallel: fsdp` in bf16: precision of the collectives. `autocast`: weights are gathered in fp32 and cast in each "
        "product. `mixed`: weights are gathered and layers computed in bf16, and gradients are reduced in fp32 (torch's "
        "MixedPrecisionPolicy, usual for large models).",
        choices=("autocast", "mixed"),
        default="autocast",
    ),
    "accumulation": ModelOption(
        int,
        "Number of micro-steps per optimizer step, each with its share of `batch`. Only the last one communicates gradients.",
        minimum=1,
        maximum=4096,
        default=1,
    ),
    "channels_last": ModelOption(
        bool,
        "If true, images and convolutions have the channels-last memory format. Default: true on CUDA (except with fsdp), false "
        "on CPUs.",
    ),
    "compile": ModelOption(
        bool, "If true, torch.compile is used. The compilation is part of the warm-up steps.", default=False
    ),
    "activation_checkpointing": ModelOption(
        bool,
        "If true, activations inside layers are recomputed in the backward pass instead of stored, which trades computation for "
        "memory.",
        default=False,
    ),
    "bucket_mib": ModelOption(
        float,
        "Size in MiB of the buckets in which ddp and zero1 reduce gradients. With 25, torch's default, the first bucket is "
        "smaller.",
        minimum=0.001,
        maximum=65536,
        default=25.0,
    ),
    "overlap": ModelOption(
        bool,
        "With ddp and zero1: if true, gradients are reduced in buckets during the backward pass. If false, all of them are reduced "
        "after it.",
        default=True,
    ),
    "measure_communication": ModelOption(
        bool,
        "If true, ddp also times steps without all-reduce, and an all-reduce of as many bytes alone, after the timed steps.",
        default=False,
    ),
}
_COMMON_DEFAULTS = {name: option.default for name, option in COMMON_OPTIONS.items() if option.default is not None}
_IMAGE_PX = ModelOption(int, "Height and width of the input images in pixels.", minimum=32, maximum=4096)
_DROPOUT = ModelOption(float, "Probability of dropping an activation.", minimum=0.0, maximum=0.9)

FAMILY_OPTIONS: Mapping[Family, Mapping[str, ModelOption]] = {
    "resnet": {"image_px": _IMAGE_PX},
    "mobilenet": {"image_px": _IMAGE_PX},
    "yolo": {"image_px": ModelOption(int, "Height and width of the input images in pixels.", 32, 4096, multiple_of=32)},
    "bert": {
        "seq_len": ModelOption(int, "Number of tokens per sequence.", minimum=2, maximum=512),
        "dropout": _DROPOUT,
    },
    "gpt": {
        "seq_len": ModelOption(int, "Number of tokens per sequence; at most 1024 for GPT-2.", minimum=2, maximum=2048),
        "dropout": _DROPOUT,
    },
    "transformers": {
        "seq_len": ModelOption(int, "Number of tokens per sequence (language models).", minimum=2),
        "image_px": ModelOption(int, "Height and width of the input images in pixels (vision models).", minimum=8),
    },
    "torchvision": {"image_px": _IMAGE_PX},
}


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """Properties of a model that are known without building it.

    Attributes:
        parameters: exact number of parameters; None for an external model.
        forward_flops_per_sample: 2 x multiply-adds of one sample's forward pass at the default options; None for an external
            model. Training takes about three times as many.
    """

    name: str
    family: Family
    description: str
    input_description: str
    parameters: int | None = None
    forward_flops_per_sample: float | None = None
    default_options: Mapping[str, Scalar] = field(default_factory=dict)

    @property
    def options(self) -> Mapping[str, ModelOption]:
        """All options that the model has, by name."""
        options = {**FAMILY_OPTIONS[self.family], **COMMON_OPTIONS}
        if size := TRANSFORMER_SIZES.get(self.name):
            options["seq_len"] = replace(options["seq_len"], maximum=size.positions)
        return options


# Family -> description of one sample, and default options except for the size of a sample.
_FAMILIES: Mapping[str, tuple[str, Mapping[str, Scalar]]] = {
    "resnet": ("image of 3 x {0} x {0} and its class", {"learning_rate": 0.01}),
    "mobilenet": ("image of 3 x {0} x {0} and its class", {"learning_rate": 0.01}),
    "yolo": ("image of 3 x {0} x {0} and eight boxes", {"learning_rate": 0.001}),
    "bert": (
        "{0} token ids, their segments, and start and end of the answer",
        {"dropout": 0.1, "learning_rate": 3e-5},
    ),
    "gpt": ("{0} token ids and the id after each of them", {"dropout": 0.1, "learning_rate": 6e-4}),
}
_NANO_DEFAULTS: Mapping[str, Scalar] = {"dropout": 0.0, "learning_rate": 1e-3}
_MODEL_DEFAULTS: Mapping[str, Mapping[str, Scalar]] = {
    "bert-nano": _NANO_DEFAULTS,
    "gpt-nano": _NANO_DEFAULTS,
    "gpt3-1.3b": {"dropout": 0.0, "learning_rate": 2e-4},
    "gpt3-6.7b": {"dropout": 0.0, "learning_rate": 1.2e-4},
}
# Name, family, parameters, operations of a sample's forward pass, size of a sample (pixels or tokens), description.
_TABLE = """\
resnet50         resnet     25_557_032   8_178_368_512  224 ResNet-50 (stride in the 3x3 convolution), image classification, 1000 classes
resnet50w16      resnet      1_532_276      11_431_936   32 ResNet-50 with a quarter of the width, 100 classes (reduced size; trains in a second on a CPU core)
mobilenetv2      mobilenet   3_504_872     601_548_544  224 MobileNetV2 1.0, image classification, 1000 classes
mobilenetv2-32px mobilenet   3_504_872      14_784_256   32 full MobileNetV2 1.0 on images of 32 pixels (reduced input)
yolov5l          yolo       46_563_709 108_993_740_800  640 CSP/PAN one-stage detector with the size of YOLOv5-L (v6.0), 80 classes
yolov5s          yolo        7_235_389  16_433_561_600  640 CSP/PAN one-stage detector with the size of YOLOv5-S (v6.0), 80 classes
cspn             yolo        1_872_157      44_681_216   64 CSP/PAN one-stage detector with the size of YOLOv5-N on images of 64 pixels (reduced size and input)
bert-base        bert      108_893_186  70_666_813_440  384 BERT-base with a question-answering head (12 layers, width 768)
bert-large       bert      334_094_338 246_425_321_472  384 BERT-large with a question-answering head (24 layers, width 1024)
bert-nano        bert          724_994      54_558_720   64 BERT with a question-answering head, 2 layers of width 128, vocabulary of 2048 (reduced size; a second on a CPU core)
gpt2             gpt       124_439_808 291_648_307_200 1024 GPT-2 (12 layers, width 768), next-token prediction
gpt2-medium      gpt       354_823_168 826_951_073_792 1024 GPT-2 medium (24 layers, width 1024), next-token prediction
gpt3-1.3b        gpt     1_315_723_264 6_194_022_318_080 2048 GPT-3 with 1.3 billion parameters (24 layers, width 2048), next-token prediction; allocated after sharding
gpt3-6.7b        gpt     6_658_404_352 29_430_474_866_688 2048 GPT-3 with 6.7 billion parameters (32 layers, width 4096), next-token prediction; allocated after sharding
gpt-nano         gpt           790_016      88_080_384   64 GPT-2 with 2 layers of width 128, vocabulary of 2048 (reduced size; a fraction of a second on a CPU core)
"""  # noqa: E501


def _parse_model_row(row: str) -> ModelInfo:
    name, family, parameters, flops, size, description = row.split(maxsplit=5)
    sample, family_defaults = _FAMILIES[family]
    size_option: dict[str, Scalar] = {"seq_len" if family in ("bert", "gpt") else "image_px": int(size)}
    options = {**size_option, **family_defaults, **_MODEL_DEFAULTS.get(name, {}), **_COMMON_DEFAULTS}
    return ModelInfo(
        name, cast(Family, family), description, sample.format(size), int(parameters), float(flops), options
    )


MODELS: dict[str, ModelInfo] = {info.name: info for info in map(_parse_model_row, _TABLE.splitlines())}


def find_model_info(name: str) -> ModelInfo:
    """Return the properties of a model by its name, which may be `transformers:NAME` or `torchvision:NAME`.

    Raises ConfigError, which suggests the most similar name, if there is no such model.
    """
    if name in MODELS:
        return MODELS[name]
    package, _, foreign = name.partition(":")
    if foreign and package == "transformers":
        options: dict[str, Scalar] = {"seq_len": 128, "image_px": 224, "learning_rate": 1e-4, **_COMMON_DEFAULTS}
        words = f"{foreign} of transformers, random weights", "depends on the model's configuration"
        return ModelInfo(name, "transformers", *words, default_options=options)
    if foreign and package == "torchvision":
        words = f"{foreign} of torchvision.models, random weights", "image and class"
        return ModelInfo(name, "torchvision", *words, default_options=MODELS["resnet50"].default_options)
    near = difflib.get_close_matches(name, MODELS, n=1)
    hint = f" (did you mean {near[0]}?)" if near else ""
    names = ", ".join(sorted(MODELS))
    raise ConfigError(f"model {name!r} is not known{hint}; known models: {names}, transformers:NAME, torchvision:NAME")


def resolve_options(model: str, options: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Return the default values of all options of a model, overridden by `options`.

    Raises ConfigError for an unknown key or a value that is not allowed.
    """
    info = find_model_info(model)
    model_options, values = info.options, {**info.default_options, **options}
    for name, value in values.items():
        option = model_options.get(name)
        if option is None:
            raise ConfigError(f"{model} has no option {name!r}; its options are {', '.join(sorted(model_options))}")
        if objection := option.find_problem(value):
            raise ConfigError(f"option {name} of {model} {objection}")
    return values
