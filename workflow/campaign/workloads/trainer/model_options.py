"""What can be asked of a model beside its precision: options of all models and of families of them. Without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from campaign.documents.cell import Scalar

Family = Literal["resnet", "mobilenet", "yolo", "bert", "gpt", "transformers", "torchvision"]


@dataclass(frozen=True, slots=True)
class Option:
    """One key of `options`: its kind, what it may be, and what it does.

    choices: allowed words of a text option; minimum: smallest allowed number; multiple_of: what it has to be divisible by.
    """

    kind: type[int] | type[float] | type[str] | type[bool]
    description: str
    minimum: float | None = None
    maximum: float | None = None
    multiple_of: int | None = None
    choices: tuple[str, ...] = ()

    def objection(self, value: Scalar) -> str | None:
        """Why the value is not allowed, or None."""
        # YAML and JSON write 1 for 1.0; True is an int to Python and a number to nobody.
        boolean = isinstance(value, bool)
        numeric = isinstance(value, int | float) and not boolean
        fits = numeric if self.kind is float else isinstance(value, self.kind) and boolean == (self.kind is bool)
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

    def words(self) -> str:
        """What may stand for the value, for people."""
        if self.choices:
            return " or ".join(f"`{choice}`" for choice in self.choices)
        kind = {int: "whole number", float: "number", str: "text", bool: "`true` or `false`"}[self.kind]
        least = "" if self.minimum is None else f"{self.minimum:g}"
        most = "" if self.maximum is None else f"{self.maximum:g}"
        limits = f", {least} to {most}" if least and most else f" ≥ {least}" if least else f" ≤ {most}" if most else ""
        return kind + limits + (f", multiple of {self.multiple_of}" if self.multiple_of else "")


COMMON_OPTIONS: Mapping[str, Option] = {
    "learning_rate": Option(float, "step size of the optimizer; default: that of the model", minimum=0.0),
    "input": Option(
        str,
        "resident: one batch stays on the device; h2d: a pinned host batch is copied to the device every step; storage: every rank "
        "reads every batch from a dataset that it has written to the configuration's storage",
        choices=("resident", "h2d", "storage"),
    ),
    "loader_workers": Option(
        int,
        "input storage: 0: the step itself reads, so storage time is fully exposed; n: n threads read up to 2n batches ahead",
        minimum=0,
        maximum=64,
    ),
    "page_cache": Option(
        str,
        "input storage: drop: reads come from the storage (O_DIRECT if the file system supports it, else the cache is dropped "
        "before and after every read); keep: reads come from the page cache as far as it holds the dataset",
        choices=("drop", "keep"),
    ),
    "dataset_mib": Option(
        int,
        "input storage: size of each rank's dataset in MiB; default: as much as the run reads, at most 256",
        minimum=1,
        maximum=2**20,
    ),
    "emulation": Option(
        str,
        "refuse: a precision without device instructions is unsupported; allow: it is computed slowly (for rehearsals)",
        choices=("refuse", "allow"),
    ),
    "parallel": Option(
        str,
        "how ranks share the work: ddp: DistributedDataParallel; dp: DataParallel, one process for the devices of one host; "
        "zero1: ddp with the optimizer's state sharded (ZeroRedundancyOptimizer); fsdp: weights, gradients and optimizer "
        "state sharded (fully_shard). A single rank is not wrapped",
        choices=("ddp", "dp", "zero1", "fsdp"),
    ),
    "accumulation": Option(
        int,
        "micro-steps per optimizer step, each with its share of `batch`; only the last one communicates gradients",
        minimum=1,
        maximum=4096,
    ),
    "channels_last": Option(
        bool,
        "channels-last memory format of images and convolutions; default: true on CUDA (except with fsdp), false on CPUs",
    ),
    "compile": Option(bool, "use torch.compile; compilation happens in the warm-up steps"),
    "activation_checkpointing": Option(
        bool,
        "recompute the activations inside layers in the backward pass instead of keeping them: less memory, more work",
    ),
    "bucket_mib": Option(
        float,
        "MiB of gradients that ddp and zero1 reduce together; with 25, torch's default, the first bucket is smaller",
        minimum=0.001,
        maximum=65536,
    ),
    "measure_communication": Option(
        bool,
        "after the timed steps of ddp, also time steps without all-reduce, and the all-reduce of as many bytes alone",
    ),
}
_IMAGE_PX = Option(int, "height and width of the input images, pixels", minimum=32, maximum=4096)
_DROPOUT = Option(float, "probability of dropping an activation", minimum=0.0, maximum=0.9)
_SEQ_LEN = Option(int, "tokens in a sequence", minimum=2, maximum=512)

FAMILY_OPTIONS: Mapping[Family, Mapping[str, Option]] = {
    "resnet": {"image_px": _IMAGE_PX},
    "mobilenet": {"image_px": _IMAGE_PX},
    "yolo": {"image_px": Option(int, "height and width of the input images, pixels", 32, 4096, multiple_of=32)},
    "bert": {
        "seq_len": _SEQ_LEN,
        "dropout": _DROPOUT,
    },
    "gpt": {"seq_len": Option(int, "tokens in a sequence", minimum=2, maximum=1024), "dropout": _DROPOUT},
    "transformers": {
        "seq_len": Option(int, "tokens in a sequence (language models)", minimum=2),
        "image_px": Option(int, "height and width of the input images, pixels (vision models)", minimum=8),
    },
    "torchvision": {"image_px": _IMAGE_PX},
}
