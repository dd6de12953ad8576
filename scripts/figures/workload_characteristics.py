"""Table: characteristics of the workloads, such as size, arithmetic, bytes exchanged, domain, input, and planned batches."""

from collections.abc import Mapping
from typing import Any

import pandas as pd
import yaml

from campaign.analysis.statistics import comparable_cells
from campaign.common import wording
from campaign.common.errors import ConfigError
from campaign.report import columns, plot
from campaign.report.figure import (
    APPARATUS,
    Drawing,
    FigureData,
    describe_cell_coverage,
    nothing,
    select_first_and_last,
)
from campaign.workloads.trainer.model_catalog import MODELS, find_model_info

TITLE = "Workloads"
SECTION = "Which workloads were measured?"
PART = APPARATUS
PLACE = 210
UNITS = {"parameters": ""}
COUNTERPARTS = {
    "Falcon: Table II": "models: parameters, depth, domain, batch, data set",
}

# Layers with weights, as in the names of the models. Transformers: their layers. YOLOv5-L: layers that its own program counts.
_DEPTH = {
    "resnet50": 50,
    "resnet50w16": 50,
    "mobilenetv2": 53,
    "yolov5l": 392,
    "bert-base": 12,
    "bert-large": 24,
    "bert-nano": 2,
    "gpt2": 12,
    "gpt2-medium": 24,
    "gpt-nano": 2,
}
_DOMAIN = {
    "resnet": "vision",
    "mobilenet": "vision",
    "yolo": "vision",
    "torchvision": "vision",
    "bert": "language",
    "gpt": "language",
}
_MAX_LISTED_WORKLOADS = 4  # workloads without a size that a sentence lists
_TRAINING_FLOP_FACTOR = 3.0  # arithmetic of training, in forward passes
_NUMBER_COLUMNS = (
    "depth_layers",
    "parameters",
    "train_gflop_per_sample",
    "allreduce_mb_per_step",
    "gflop_per_allreduce_mb",
)


def draw(data: FigureData) -> Drawing:
    """List size, depth, arithmetic, traffic, domain and input of each workload."""
    rows = _tabulate_workloads(data)
    if rows.empty or not rows[[*_NUMBER_COLUMNS, "domain", "description"]].replace("", None).notna().any(axis=None):
        return nothing("only the names of the planned workloads are known")
    blank_note = " What an external program does not report is blank." if rows[_NUMBER_COLUMNS[0]].isna().any() else ""
    caption = f"GFLOP per MB: a device's arithmetic per all-reduced MB at the largest batch.{blank_note}"
    return plot.build_drawing(
        data,
        rows,
        None,
        {
            "Workload": columns.text_column("workload"),
            "Domain": columns.text_column("domain", wording.NO_VALUE),
            "Parameters": lambda row: _format_millions(row["parameters"]),
            "Layers": lambda row: (
                wording.NO_VALUE if pd.isna(row["depth_layers"]) else wording.format_count(row["depth_layers"])
            ),
            "Training GFLOP per sample": columns.number_column("train_gflop_per_sample"),
            "All-reduced per step (MB)": columns.number_column("allreduce_mb_per_step"),
            "GFLOP per MB": columns.number_column("gflop_per_allreduce_mb"),
            "Sample": columns.text_column("sample", wording.NO_VALUE),
            "Batch per device": columns.text_column("batches"),
            "Precision": columns.text_column("precisions"),
            "Valid runs": columns.count_column("n_ok"),
            "Description": columns.text_column("description", wording.NO_VALUE),
        },
        caption=caption,
        findings=_describe_sizes(rows),
        coverage=describe_cell_coverage(data.cells),
    )


def _format_millions(parameters: float) -> str:
    """Format a number of parameters in millions, or a placeholder if it is unknown."""
    return wording.NO_VALUE if pd.isna(parameters) else f"{wording.format_number(parameters / 1e6)} M"


def _tabulate_workloads(data: FigureData) -> pd.DataFrame:
    """Build one row per planned workload, in the order of the plan. Unknown values are NaN or an empty string."""
    files = _read_workload_files(data.context)
    ok = data.runs[data.runs["status"] == "ok"]
    rows = []
    for name, cells in data.cells.groupby("workload", sort=False):
        runs = ok[ok["workload"] == name]
        precisions = sorted(cells["precision"].unique(), key=comparable_cells.rank_precision)
        rows.append(
            {
                "workload": str(name),
                **_derive_characteristics(files.get(str(name), {})),
                **_collect_counts(runs),
                "batches": ", ".join(str(batch) for batch in sorted(cells["batch"].unique())),
                "precisions": ", ".join(precisions),
                "n_ok": len(runs),
                "n_planned": int(cells["n_planned"].sum()),
            }
        )
    return pd.DataFrame(rows)


def _read_workload_files(context: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the workload files of the campaign as it was used, by name. Return an empty mapping if they cannot be read."""
    try:
        document = yaml.safe_load(context.get("campaign_yaml") or "")
    except yaml.YAMLError:  # counts of runs are known without it
        return {}
    return document.get("workloads", {}) if isinstance(document, dict) else {}


def _derive_characteristics(file: Mapping[str, Any]) -> dict[str, Any]:
    """Derive characteristics from a workload file and its model. Unknown ones are NaN or an empty string.

    Counts of a model hold for its default options only, so they are left out with other options.
    """
    model = str(file.get("model") or "")
    characteristics: dict[str, Any] = {
        "description": str(file.get("description") or ""),
        "model": model,
        "domain": "",
        "sample": "",
    }
    characteristics |= dict.fromkeys(_NUMBER_COLUMNS, float("nan")) | {
        "depth_layers": float(_DEPTH.get(model, float("nan")))
    }
    if not model:
        return characteristics
    try:
        info = find_model_info(model)
    except ConfigError:  # a model of another version
        return characteristics
    options = file.get("options") or {}
    has_default_options = all(
        info.default_options.get(name) == value for name, value in options.items() if name in ("image_px", "seq_len")
    )
    characteristics |= {
        "description": characteristics["description"] or info.description,
        "domain": _DOMAIN.get(info.family, ""),
    }
    characteristics["sample"] = (
        info.input_description if model in MODELS and has_default_options else _describe_sample(options)
    )
    if info.parameters is not None:
        characteristics["parameters"] = float(info.parameters)
    if info.forward_flops_per_sample is not None and has_default_options:
        characteristics["train_gflop_per_sample"] = _TRAINING_FLOP_FACTOR * info.forward_flops_per_sample / 1e9
    return characteristics


def _describe_sample(options: Mapping[str, Any]) -> str:
    """Describe a sample by the options that differ from the defaults of the model."""
    templates = {"image_px": "image 3 x {0} x {0}", "seq_len": "{0} tokens"}
    return ", ".join(words.format(options[name]) for name, words in templates.items() if name in options)


def _collect_counts(runs: pd.DataFrame) -> dict[str, float]:
    """Return the counts that runs reported, as a mapping. Unknown ones are absent.

    Parameters and arithmetic are those of the model. Traffic is that of a step at the largest batch on several devices.
    """
    counts = {}
    if "parameters" in runs and runs["parameters"].notna().any():
        counts["parameters"] = float(runs["parameters"].max())
    if "flops_per_step" in runs and runs["flops_per_step"].notna().any():
        counts["train_gflop_per_sample"] = float((runs["flops_per_step"] / runs["batch_global"]).median() / 1e9)
    if "allreduce_bytes_per_step" in runs and runs["allreduce_bytes_per_step"].notna().any():
        largest = runs[runs["allreduce_bytes_per_step"].notna()]
        largest = largest[largest["batch"] == largest["batch"].max()]
        counts["allreduce_mb_per_step"] = float(largest["allreduce_bytes_per_step"].max() / 1e6)
        if "flops_per_allreduce_byte" in largest:
            counts["gflop_per_allreduce_mb"] = float(largest["flops_per_allreduce_byte"].median() / 1e3)
    return {name: number for name, number in counts.items() if not pd.isna(number)}


def _describe_sizes(rows: pd.DataFrame) -> tuple[str, ...]:
    """Return a sentence with the number of workloads and the range of their sizes."""
    sized_rows = rows.dropna(subset=["parameters"]).sort_values("parameters", kind="stable")
    if len(sized_rows):
        words = " to ".join(
            f"{_format_millions(row['parameters'])} ({row['workload']})" for row in select_first_and_last(sized_rows)
        )
        unknown = [str(name) for name in rows.loc[rows["parameters"].isna(), "workload"]]
        names_text = f"{', '.join(unknown[:_MAX_LISTED_WORKLOADS])}{' and others' if len(unknown) > _MAX_LISTED_WORKLOADS else ''}"
        unknown_text = f"; the size of {names_text} is unknown" if unknown else ""
        verb = "has" if len(rows) == 1 else "have"
        return (f"{wording.pluralize(len(rows), 'workload')} {verb} {words} parameters{unknown_text}.",)
    return (f"The number of parameters is unknown for all {wording.pluralize(len(rows), 'workload')}.",)
