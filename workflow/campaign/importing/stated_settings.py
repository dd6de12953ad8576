"""Settings that built-in readers find in logs, such as the request rate, compared with the labels that an import gives."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from campaign.spec.cell import Scalar
from campaign.workloads.parsers.reading import agree

_MAX_NAMES_SHOWN = 4
_PRINTED_ERROR = 0.0051
"""Slightly more than half of the last digit of a setting that is printed with two decimals."""
_SIZE = re.compile(r"([\d.]+)\s*([kmgt]?)(?:i?b|bytes)?", re.IGNORECASE)
_UNIT_OF_NAME = re.compile(r"_(?:([kmgt])i?b|b|bytes)$")
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_AXES = ("precision", "batch", "ranks", "hosts")
_PRECISIONS: Mapping[str, frozenset[str]] = {
    **dict.fromkeys(("float", "float32", "fp32"), frozenset({"fp32", "tf32"})),
    **dict.fromkeys(("half", "float16", "fp16"), frozenset({"fp16", "fp16-o2"})),
    **dict.fromkeys(("bfloat16", "bf16"), frozenset({"bf16"})),
}
"""Possible precisions by the name of the type in programs."""


@dataclass(frozen=True)
class Setting:
    """Setting of programs.

    Attributes:
        title: name of the setting in messages.
        labels: names of axes and options with this meaning. Names of sizes have no unit.
        form: type of the value, which determines the comparison.
    """

    words: str
    labels: frozenset[str]
    form: Literal["number", "rate", "size", "word", "precision"] = "number"

    def agrees(self, label: str, value: Scalar, stated: float | str, rounded: bool) -> bool:
        """Return True if a label may mean the stated value, or if the two cannot be compared.

        Args:
            label: name of the axis or option.
            value: value of the label.
            stated_value: value in the log.
            is_rounded: True if the value in the log was printed with few digits.
        """
        if self.form == "precision":
            return str(value) in _PRECISIONS.get(str(stated).lower(), {str(value)})
        if self.form == "word" or isinstance(stated, str):
            return _last_part(value) == _last_part(stated)
        if self.form == "size":
            sizes = _sizes(value, label)
            return not sizes or any(agree(size, stated, 1e-6) for size in sizes)
        try:
            number = float(value)
        except ValueError:
            return True
        if math.isinf(stated):
            return math.isinf(number) or number <= 0  # all requests at once is written as either
        # A label such as 0.33 is a rounded third.
        decimals = len(str(value).partition(".")[2])
        label_error = 0.51 * 10.0**-decimals if decimals else 0.0
        return self.same(number, stated, rounded) or agree(number, stated, 0.0, label_error)

    def same(self, one: float | str, other: float | str, rounded: bool) -> bool:
        """Return True if two logs state the same value.

        Args:
            first: value in one log.
            second: value in the other log.
            is_rounded: True if one of them was printed with few digits.
        """
        if isinstance(one, str) or isinstance(other, str):
            return _last_part(one) == _last_part(other)
        return one == other or agree(one, other, 1e-6, _PRINTED_ERROR if rounded and self.form == "rate" else 0.0)


def _setting(
    words: str, *labels: str, form: Literal["number", "rate", "size", "word", "precision"] = "number"
) -> Setting:
    return Setting(words, frozenset(labels), form)


SETTINGS: Mapping[str, Setting] = {
    "request_rate_per_s": _setting(
        "request rate", "rate_per_s", "request_rate", "request_rate_per_s", "offered_per_s", "qps", form="rate"
    ),
    "max_concurrency": _setting("maximum concurrency", "max_concurrency", "concurrency", "concurrent_requests"),
    "requests": _setting("number of requests", "requests", "num_requests", "num_prompts", "request_count"),
    "burstiness": _setting("burstiness", "burstiness"),
    "input_tokens": _setting("input length", "input_len", "random_input_len", "isl", "input_tokens", "prompt_tokens"),
    "output_tokens": _setting("output length", "output_len", "random_output_len", "osl", "output_tokens"),
    "scenario": _setting("scenario", "scenario", form="word"),
    "model": _setting("model", "model", "model_id", "model_name", form="word"),
    "precision": _setting("number format", "precision", form="precision"),
    "ranks": _setting("number of ranks", "ranks"),
    "hosts": _setting("number of hosts", "hosts"),
    "batch": _setting("batch per device", "batch"),
    "micro_batch": _setting("micro batch", "micro_batch_size", "micro_batch", "mbs"),
    "tensor_parallel": _setting(
        "tensor parallelism", "tensor_parallel", "tensor_parallel_size", "tensor_model_parallel_size", "tp", "tp_size"
    ),
    "pipeline_parallel": _setting(
        "pipeline parallelism",
        "pipeline_parallel",
        "pipeline_parallel_size",
        "pipeline_model_parallel_size",
        "pp",
        "pp_size",
    ),
    "sequence_length": _setting("sequence length", "seq_length", "seq_len", "sequence_length", "max_seq_length"),
    "layers": _setting("number of layers", "layers", "num_layers"),
    "hidden_size": _setting("hidden size", "hidden", "hidden_size"),
    "attention_heads": _setting("number of attention heads", "attention_heads", "heads", "num_attention_heads"),
    "image_size": _setting("image size", "image_size", "img_size", "imgsz", "image_px"),
    "message_size": _setting("message size", "message_size", "message", "msg_size", "size", form="size"),
    "queue_pairs": _setting("number of queue pairs", "qps", "queue_pairs", "num_qps"),
    "block_size": _setting("block size", "block_size", "block", "bs", form="size"),
    "transfer_size": _setting("transfer size", "transfer_size", "transfer", "xfer_size", "xfersize", form="size"),
    "queue_depth": _setting("queue depth", "queue_depth", "iodepth", "io_depth", "depth"),
    "jobs": _setting("number of jobs", "jobs", "numjobs", "num_jobs"),
    "access": _setting("access pattern", "rw", "readwrite", "access", form="word"),
    "problem_size": _setting("problem size N", "n", "hpl_n", "problem_size"),
    "matrix_block": _setting("block size NB", "matrix_block", "nb", "hpl_nb"),
    "grid_rows": _setting("grid rows P", "grid_rows", "p", "grid_p"),
    "grid_columns": _setting("grid columns Q", "grid_columns", "q", "grid_q"),
    "scale": _setting("scale", "scale"),
    "edge_factor": _setting("edge factor", "edgefactor", "edge_factor"),
    "elements": _setting("array size in elements", "elements", "array_elements", "stream_array_size"),
    "threads": _setting("number of threads", "threads", "omp_num_threads"),
    "atoms": _setting("number of atoms", "atoms"),
    "steps": _setting("number of steps", "steps"),
}
"""Settings by the names that readers give them in `LogReading.settings`."""


@dataclass(frozen=True)
class StatedSettings:
    """Settings that the log of one run states.

    Attributes:
        values: value by name in SETTINGS.
        are_rounded: True if the values were printed with few digits.
    """

    values: Mapping[str, float | str] = field(default_factory=dict)
    rounded: bool = False


def find_contradiction(stated: StatedSettings, labels: Mapping[str, Scalar], defaults: Mapping[str, Scalar]) -> str:
    """Return a sentence about the first label that the log contradicts, or an empty string.

    Args:
        log_settings: settings in the log.
        labels: axes and options of the run from the path, the map or `read`.
        defaults: default options of its workload, used where `labels` lacks them.
    """
    for name, value in stated.values.items():
        setting = SETTINGS[name]
        for label, given in {**defaults, **labels}.items():
            stem = _UNIT_OF_NAME.sub("", label) if setting.form == "size" else label
            if stem in setting.labels and not setting.agrees(label, given, value, stated.rounded):
                source = "its label" if label in labels else "the default of its workload's options"
                return (
                    f"{label} is {given} by {source}, and the log states a {setting.words} of {_text(value)}; correct the "
                    f"label, or have 'read' of its pattern take {label} from the log"
                )
    return ""


def find_difference(runs: Sequence[tuple[str, StatedSettings]]) -> str:
    """Return a sentence about the first setting in which runs of one cell differ, or an empty string.

    Args:
        runs: file name and settings in the log of each run.
    """
    for name, setting in SETTINGS.items():
        groups: list[tuple[float | str, bool, list[str]]] = []
        for file, stated in runs:
            if (value := stated.values.get(name)) is None:
                continue
            for known, rounded, files in groups:
                if setting.same(known, value, rounded or stated.rounded):
                    files.append(file)
                    break
            else:
                groups.append((value, stated.rounded, [file]))
        if len(groups) > 1:
            values = "; ".join(f"{_text(value)}: {_listed(files)}" for value, _, files in groups)
            option = "rate_per_s" if setting.form == "rate" else name
            label = f"their {name}" if name in _AXES else f"an option of the workload, such as '{option}'"
            return (
                f"logs of one cell state different values of the {setting.words} ({values}); tell them apart by {label}, in the "
                "path, under 'read' or by 'tests' of the pattern"
            )
    return ""


def _listed(files: Sequence[str]) -> str:
    more = len(files) - _MAX_NAMES_SHOWN
    return ", ".join(files[:_MAX_NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _text(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.10g}"


def _last_part(value: Scalar) -> str:
    """Return a word in lower case, without the directories or the organisation before it."""
    return str(value).rstrip("/").rpartition("/")[2].lower()


def _sizes(value: Scalar, label: str) -> Sequence[float]:
    """Return the bytes that a label may mean, by powers of 1024 and of 1000. The result is empty if it is no size."""
    found = _SIZE.fullmatch(str(value).strip())
    if found is None or found[1].count(".") > 1 or found[1] == ".":
        return ()
    unit = _UNIT_OF_NAME.search(label)
    power = _POWERS[(found[2] or (unit and unit[1]) or "").lower()]
    return [float(found[1]) * base**power for base in (1024, 1000)]
