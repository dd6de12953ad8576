"""Settings that built-in readers find in logs, such as the request rate, compared with the labels that an import gives."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from campaign.spec.cell import Scalar
from campaign.workloads.parsers.reading import is_close

_MAX_NAMES_SHOWN = 4
_PRINTED_ROUNDING_ERROR = 0.0051
"""Slightly more than half of the last digit of a setting that is printed with two decimals."""
_SIZE_PATTERN = re.compile(r"([\d.]+)\s*([kmgt]?)(?:i?b|bytes)?", re.IGNORECASE)
_NAME_UNIT_PATTERN = re.compile(r"_(?:([kmgt])i?b|b|bytes)$")
_PREFIX_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_AXIS_SETTINGS = ("precision", "batch", "ranks", "hosts")
_PRECISIONS_BY_TYPE: Mapping[str, frozenset[str]] = {
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

    title: str
    labels: frozenset[str]
    form: Literal["number", "rate", "size", "word", "precision"] = "number"

    def agrees_with_label(self, label: str, value: Scalar, stated_value: float | str, is_rounded: bool) -> bool:
        """Return True if a label may mean the stated value, or if the two cannot be compared.

        Args:
            label: name of the axis or option.
            value: value of the label.
            stated_value: value in the log.
            is_rounded: True if the value in the log was printed with few digits.
        """
        if self.form == "precision":
            return str(value) in _PRECISIONS_BY_TYPE.get(str(stated_value).lower(), {str(value)})
        if self.form == "word" or isinstance(stated_value, str):
            return _get_last_part(value) == _get_last_part(stated_value)
        if self.form == "size":
            sizes = _parse_sizes(value, label)
            return not sizes or any(is_close(size, stated_value, 1e-6) for size in sizes)
        try:
            number = float(value)
        except ValueError:
            return True
        if math.isinf(stated_value):
            return math.isinf(number) or number <= 0  # Programs write either of them for sending all requests at once.
        # A label such as 0.33 is a rounded third.
        decimals = len(str(value).partition(".")[2])
        label_error = 0.51 * 10.0**-decimals if decimals else 0.0
        return self.is_same_value(number, stated_value, is_rounded) or is_close(number, stated_value, 0.0, label_error)

    def is_same_value(self, first: float | str, second: float | str, is_rounded: bool) -> bool:
        """Return True if two logs state the same value.

        Args:
            first: value in one log.
            second: value in the other log.
            is_rounded: True if one of them was printed with few digits.
        """
        if isinstance(first, str) or isinstance(second, str):
            return _get_last_part(first) == _get_last_part(second)
        return first == second or is_close(
            first, second, 1e-6, _PRINTED_ROUNDING_ERROR if is_rounded and self.form == "rate" else 0.0
        )


def _make_setting(
    title: str, *labels: str, form: Literal["number", "rate", "size", "word", "precision"] = "number"
) -> Setting:
    return Setting(title, frozenset(labels), form)


SETTINGS: Mapping[str, Setting] = {
    "request_rate_per_s": _make_setting(
        "request rate", "rate_per_s", "request_rate", "request_rate_per_s", "offered_per_s", "qps", form="rate"
    ),
    "max_concurrency": _make_setting("maximum concurrency", "max_concurrency", "concurrency", "concurrent_requests"),
    "requests": _make_setting("number of requests", "requests", "num_requests", "num_prompts", "request_count"),
    "burstiness": _make_setting("burstiness", "burstiness"),
    "input_tokens": _make_setting(
        "input length", "input_len", "random_input_len", "isl", "input_tokens", "prompt_tokens"
    ),
    "output_tokens": _make_setting("output length", "output_len", "random_output_len", "osl", "output_tokens"),
    "scenario": _make_setting("scenario", "scenario", form="word"),
    "model": _make_setting("model", "model", "model_id", "model_name", form="word"),
    "precision": _make_setting("number format", "precision", form="precision"),
    "ranks": _make_setting("number of ranks", "ranks"),
    "hosts": _make_setting("number of hosts", "hosts"),
    "batch": _make_setting("batch per device", "batch"),
    "micro_batch": _make_setting("micro batch", "micro_batch_size", "micro_batch", "mbs"),
    "tensor_parallel": _make_setting(
        "tensor parallelism", "tensor_parallel", "tensor_parallel_size", "tensor_model_parallel_size", "tp", "tp_size"
    ),
    "pipeline_parallel": _make_setting(
        "pipeline parallelism",
        "pipeline_parallel",
        "pipeline_parallel_size",
        "pipeline_model_parallel_size",
        "pp",
        "pp_size",
    ),
    "sequence_length": _make_setting("sequence length", "seq_length", "seq_len", "sequence_length", "max_seq_length"),
    "layers": _make_setting("number of layers", "layers", "num_layers"),
    "hidden_size": _make_setting("hidden size", "hidden", "hidden_size"),
    "attention_heads": _make_setting("number of attention heads", "attention_heads", "heads", "num_attention_heads"),
    "image_size": _make_setting("image size", "image_size", "img_size", "imgsz", "image_px"),
    "message_size": _make_setting("message size", "message_size", "message", "msg_size", "size", form="size"),
    "queue_pairs": _make_setting("number of queue pairs", "qps", "queue_pairs", "num_qps"),
    "block_size": _make_setting("block size", "block_size", "block", "bs", form="size"),
    "transfer_size": _make_setting("transfer size", "transfer_size", "transfer", "xfer_size", "xfersize", form="size"),
    "queue_depth": _make_setting("queue depth", "queue_depth", "iodepth", "io_depth", "depth"),
    "jobs": _make_setting("number of jobs", "jobs", "numjobs", "num_jobs"),
    "access": _make_setting("access pattern", "rw", "readwrite", "access", form="word"),
    "problem_size": _make_setting("problem size N", "n", "hpl_n", "problem_size"),
    "matrix_block": _make_setting("block size NB", "matrix_block", "nb", "hpl_nb"),
    "grid_rows": _make_setting("grid rows P", "grid_rows", "p", "grid_p"),
    "grid_columns": _make_setting("grid columns Q", "grid_columns", "q", "grid_q"),
    "scale": _make_setting("scale", "scale"),
    "edge_factor": _make_setting("edge factor", "edgefactor", "edge_factor"),
    "elements": _make_setting("array size in elements", "elements", "array_elements", "stream_array_size"),
    "threads": _make_setting("number of threads", "threads", "omp_num_threads"),
    "atoms": _make_setting("number of atoms", "atoms"),
    "steps": _make_setting("number of steps", "steps"),
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
    are_rounded: bool = False


def find_contradiction(
    log_settings: StatedSettings, labels: Mapping[str, Scalar], defaults: Mapping[str, Scalar]
) -> str:
    """Return a sentence about the first label that the log contradicts, or an empty string.

    Args:
        log_settings: settings in the log.
        labels: axes and options of the run from the path, the map or `read`.
        defaults: default options of its workload, used where `labels` lacks them.
    """
    for name, value in log_settings.values.items():
        setting = SETTINGS[name]
        for label, label_value in {**defaults, **labels}.items():
            stem = _NAME_UNIT_PATTERN.sub("", label) if setting.form == "size" else label
            if stem in setting.labels and not setting.agrees_with_label(
                label, label_value, value, log_settings.are_rounded
            ):
                source = "its label" if label in labels else "the default of its workload's options"
                return (
                    f"{label} is {label_value} according to {source}, but the log states a "
                    f"{setting.title} of {_format_value(value)}; correct the "
                    f"label, or take {label} from the log with 'read' of the pattern"
                )
    return ""


def find_difference(runs: Sequence[tuple[str, StatedSettings]]) -> str:
    """Return a sentence about the first setting in which runs of one cell differ, or an empty string.

    Args:
        runs: file name and settings in the log of each run.
    """
    for name, setting in SETTINGS.items():
        groups: list[tuple[float | str, bool, list[str]]] = []
        for file, log_settings in runs:
            if (value := log_settings.values.get(name)) is None:
                continue
            for group_value, is_rounded, files in groups:
                if setting.is_same_value(group_value, value, is_rounded or log_settings.are_rounded):
                    files.append(file)
                    break
            else:
                groups.append((value, log_settings.are_rounded, [file]))
        if len(groups) > 1:
            values = "; ".join(f"{_format_value(value)}: {_join_names(files)}" for value, _, files in groups)
            option = "rate_per_s" if setting.form == "rate" else name
            label = f"their {name}" if name in _AXIS_SETTINGS else f"an option of the workload, such as '{option}'"
            return (
                f"logs of one cell state different values of the {setting.title} ({values}); distinguish them by {label}, in the "
                "path, under 'read' or by 'tests' of the pattern"
            )
    return ""


def _join_names(files: Sequence[str]) -> str:
    hidden_count = len(files) - _MAX_NAMES_SHOWN
    return ", ".join(files[:_MAX_NAMES_SHOWN]) + (f" and {hidden_count} more" if hidden_count > 0 else "")


def _format_value(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.10g}"


def _get_last_part(value: Scalar) -> str:
    """Return the last component of a path or model name in lower case, without directories or organisation."""
    return str(value).rstrip("/").rpartition("/")[2].lower()


def _parse_sizes(value: Scalar, label: str) -> Sequence[float]:
    """Return the bytes that a label may mean, by powers of 1024 and of 1000. The result is empty if it is not a size."""
    match = _SIZE_PATTERN.fullmatch(str(value).strip())
    if match is None or match[1].count(".") > 1 or match[1] == ".":
        return ()
    unit = _NAME_UNIT_PATTERN.search(label)
    power = _PREFIX_POWERS[(match[2] or (unit and unit[1]) or "").lower()]
    return [float(match[1]) * base**power for base in (1024, 1000)]
