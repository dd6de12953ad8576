"""A trace as the text of its workload file: layers that repeat are folded, and rows are added to a file that is there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple, TypeAlias

import yaml

from campaign.documents.cell import Scalar
from campaign.errors import ConfigError
from campaign.files import read_text
from campaign.workloads.protocol import Workload
from campaign.workloads.replay import ComputeRow, ReplayLayer, ReplayWorkload
from campaign.workloads.trainer.model_catalog import REPLAY_OPTIONS

Trace: TypeAlias = ReplayWorkload
"""There is no other format for a trace."""
_DIGITS = 5
_LONGEST_S = 86400.0
_SIZES = ("input_bytes", "host_to_device_bytes")
_ORDER = ("name", "kind", "description", "precisions", "options", *_SIZES, "layers", "optimizer", "compute")


class TracedLayer(NamedTuple):
    """One layer of a model. kind: layers in a row of one kind, with the same tensors, are written once; shares in any common unit.

    unit: whether fsdp shards it by itself; activations, masks: as in a replay.
    """

    name: str
    kind: str
    tensors: tuple[int, ...]
    forward: float
    backward: float
    unit: bool = False
    activations: float | None = None
    masks: float = 0.0


def folded(layers: Iterable[TracedLayer]) -> tuple[ReplayLayer, ...]:
    """Layers of a file; what repeats has the mean of the shares."""
    found = []
    for _, alike in groupby(layers, key=lambda layer: (layer.kind, layer.tensors, layer.unit)):
        group = list(alike)
        first, repeat = group[0], len(group)
        found.append(
            ReplayLayer(
                name=first.name,
                repeat=repeat,
                tensors=first.tensors,
                forward=_rounded(fmean(layer.forward for layer in group)),
                backward=_rounded(fmean(layer.backward for layer in group)),
                # The default is that what repeats is a unit.
                unit=None if first.unit == (repeat > 1) else first.unit,
                activations=None if first.activations is None else fmean(layer.activations or 0.0 for layer in group),
                masks=fmean(layer.masks for layer in group),
            )
        )
    return tuple(found)


def compute_row(device: str, precision: str, batch: int, seconds: float, source: str) -> ComputeRow:
    """ConfigError for a time that no step can take."""
    if not 0 < seconds < _LONGEST_S:
        raise ConfigError(
            f"a step of {seconds:g} s is no time that can be replayed; allowed: above 0 and below {_LONGEST_S:g} s"
        )
    row = {"device": device, "precision": precision, "batch": batch, "seconds": _rounded(seconds), "source": source}
    return ComputeRow.model_validate(row)


def make_trace(
    name: str,
    description: str,
    layers: Iterable[TracedLayer],
    optimizer: float,
    compute: Iterable[ComputeRow],
    sample_bytes: int = 0,
    options: Mapping[str, Scalar] | None = None,
) -> Trace:
    """The document of a trace. sample_bytes: of a sample as it is stored, which goes to the device as it is; options: of the
    traced model."""
    rows = tuple(compute)
    return Trace(
        name=name,
        kind="replay",
        description=description,
        precisions=tuple(dict.fromkeys(row.precision for row in rows)),
        layers=folded(layers),
        optimizer=_rounded(optimizer),
        compute=rows,
        input_bytes=sample_bytes,
        host_to_device_bytes=sample_bytes,
        options={name: value for name, value in (options or {}).items() if _replayed(name, value)},
    )


def _replayed(option: str, value: Scalar) -> bool:
    return option in REPLAY_OPTIONS and REPLAY_OPTIONS[option].objection(value) is None


def text_of(trace: Trace) -> str:
    """The file: one line a layer, one a row of compute time."""
    document, lines = _document(trace), []
    for key in sorted(document, key=_ORDER.index):
        value = document[key]
        if key in ("layers", "compute"):
            lines += [f"{key}:", *(f"  - {_flow(item)}" for item in value)]
        else:
            lines.append(f"{key}: {_flow(int(value) if key in _SIZES else value)}")
    return "\n".join(lines) + "\n"


def with_rows(there: Workload, path: Path, trace: Trace) -> str:
    """The text of a trace's file that is `there`, with the rows of another trace of the same model, and all else as it was.

    ConfigError where the file is of other layers or has a row for the same device, precision and batch.
    """
    if not isinstance(there, ReplayWorkload):
        raise ConfigError(f"{path}: is of kind {there.kind}; compute times can only be added to one of kind replay")
    if [(layer.repeat, layer.tensors) for layer in there.layers] != [(x.repeat, x.tensors) for x in trace.layers]:
        raise ConfigError(
            f"{path}: its layers are not those of {trace.name}; a file has the rows of one model. Name another file"
        )
    known = {(row.device, row.precision, row.batch) for row in there.compute}
    for row in trace.compute:
        if (row.device, row.precision, row.batch) in known:
            where = f"{row.device}, {row.precision}, batch {row.batch}"
            raise ConfigError(f"{path}: 'compute' has a row for {where}; remove that row first, or name another file")
    text = read_text(path)
    root: Any = yaml.compose(text, yaml.SafeLoader)
    nodes = {key.value: value for key, value in root.value}
    precisions = list(dict.fromkeys([*there.precisions, *trace.precisions]))
    changes = [_rows_after(text, nodes["compute"], trace.compute)]
    if len(precisions) > len(there.precisions):
        changes.append(_instead_of(nodes["precisions"], precisions))
    # From the end of the file to its begin, so that places found before stay right.
    for start, end, new in sorted(changes, reverse=True):
        text = text[:start] + new + text[end:]
    return text


def _rows_after(text: str, node: yaml.SequenceNode, rows: Iterable[ComputeRow]) -> tuple[int, int, str]:
    """The place where the last item of a list ends, twice, and the text to put there."""
    last = node.value[-1]
    if node.flow_style:
        return last.end_mark.index, last.end_mark.index, "".join(f", {_flow(_document(row))}" for row in rows)
    while isinstance(last, yaml.CollectionNode) and not last.flow_style:
        last = last.value[-1] if isinstance(last, yaml.SequenceNode) else last.value[-1][1]
    # A text of several lines ends with its line break. A comment stays on the line of its item.
    place = len(text[: last.end_mark.index].rstrip())
    place += len(text[place:].partition("\n")[0])
    indent = " " * node.start_mark.column
    return place, place, "".join(f"\n{indent}- {_flow(_document(row))}" for row in rows)


def _instead_of(node: yaml.CollectionNode, value: object) -> tuple[int, int, str]:
    return node.start_mark.index, node.end_mark.index, _flow(value) + ("" if node.flow_style else "\n")


def _document(model: ReplayWorkload | ComputeRow) -> dict[str, Any]:
    return model.model_dump(mode="json", exclude_defaults=True)


def _rounded(number: float) -> float:
    return float(f"{number:.{_DIGITS}g}")


def _flow(value: object) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=10**9, allow_unicode=True)
    # A scalar alone ends with YAML's mark of the end of a document.
    return text.removesuffix("...\n").rstrip("\n")
