"""Table: characteristics of the workloads, such as size, arithmetic, bytes exchanged, domain, input, and planned batches."""

from collections.abc import Mapping
from typing import Any

import pandas as pd
import yaml

from campaign.analysis.statistics import comparable_cells
from campaign.common import wording
from campaign.common.errors import ConfigError
from campaign.report import columns, plot
from campaign.report.figure import APPARATUS, Drawing, FigureData, coverage_of_cells, first_and_last, nothing
from campaign.workloads.trainer.model_catalog import MODELS, model_info

TITLE = "Workloads"
SECTION = "Which workloads were measured? What an external program does not report is left open."
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
_NAMED = 4  # workloads without a size that a sentence lists
_TRAINING = 3.0  # arithmetic of training, in forward passes
_NUMBERS = ("depth_layers", "parameters", "train_gflop_per_sample", "allreduce_mb_per_step", "gflop_per_allreduce_mb")


def draw(data: FigureData) -> Drawing:
    """List size, depth, arithmetic, traffic, domain and input of each workload."""
    rows = _rows(data)
    if rows.empty or not rows[[*_NUMBERS, "domain", "description"]].replace("", None).notna().any(axis=None):
        return nothing("only the names of the planned workloads are known")
    caption = (
        "Parameters, arithmetic and bytes are exact counts. GFLOP for each MB: a device's arithmetic in a step over what it "
        "all-reduces, at the largest batch. Layers: as their authors count them."
    )
    return plot.drawn(
        data,
        rows,
        None,
        {
            "Workload": columns.text("workload"),
            "Domain": columns.text("domain", wording.NONE),
            "Parameters": lambda row: _millions(row["parameters"]),
            "Layers": lambda row: wording.NONE if pd.isna(row["depth_layers"]) else wording.count(row["depth_layers"]),
            "Training GFLOP a sample": columns.number("train_gflop_per_sample"),
            "All-reduced a step (MB)": columns.number("allreduce_mb_per_step"),
            "GFLOP for each MB": columns.number("gflop_per_allreduce_mb"),
            "A sample": columns.text("sample", wording.NONE),
            "Batch per device": columns.text("batches"),
            "Precision": columns.text("precisions"),
            "Valid runs": columns.count("n_ok"),
            "What it is": columns.text("description", wording.NONE),
        },
        caption=caption,
        findings=_findings(rows),
        coverage=coverage_of_cells(data.cells),
    )


def _millions(parameters: float) -> str:
    """Format a number of parameters in millions, or a placeholder if it is unknown."""
    return wording.NONE if pd.isna(parameters) else f"{wording.number(parameters / 1e6)} M"


def _rows(data: FigureData) -> pd.DataFrame:
    """Build one row per planned workload, in the order of the plan. Unknown values are NaN or an empty string."""
    files = _files(data.context)
    ok = data.runs[data.runs["status"] == "ok"]
    rows = []
    for name, cells in data.cells.groupby("workload", sort=False):
        runs = ok[ok["workload"] == name]
        precisions = sorted(cells["precision"].unique(), key=comparable_cells.precision_rank)
        rows.append(
            {
                "workload": str(name),
                **_known(files.get(str(name), {})),
                **_counted(runs),
                "batches": ", ".join(str(batch) for batch in sorted(cells["batch"].unique())),
                "precisions": ", ".join(precisions),
                "n_ok": len(runs),
                "n_planned": int(cells["n_planned"].sum()),
            }
        )
    return pd.DataFrame(rows)


def _files(context: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the workload files of the campaign as it was used, by name. Return an empty mapping if they cannot be read."""
    try:
        document = yaml.safe_load(context.get("campaign_yaml") or "")
    except yaml.YAMLError:  # counts of runs are known without it
        return {}
    return document.get("workloads", {}) if isinstance(document, dict) else {}


def _known(file: Mapping[str, Any]) -> dict[str, Any]:
    """Derive characteristics from a workload file and its model. Unknown ones are NaN or an empty string.

    Counts of a model hold for its default options only, so they are left out with other options.
    """
    model = str(file.get("model") or "")
    known: dict[str, Any] = {
        "description": str(file.get("description") or ""),
        "model": model,
        "domain": "",
        "sample": "",
    }
    known |= dict.fromkeys(_NUMBERS, float("nan")) | {"depth_layers": float(_DEPTH.get(model, float("nan")))}
    if not model:
        return known
    try:
        info = model_info(model)
    except ConfigError:  # a model of another version
        return known
    options = file.get("options") or {}
    default = all(
        info.default_options.get(name) == value for name, value in options.items() if name in ("image_px", "seq_len")
    )
    known |= {"description": known["description"] or info.description, "domain": _DOMAIN.get(info.family, "")}
    known["sample"] = info.input_description if model in MODELS and default else _sample(options)
    if info.parameters is not None:
        known["parameters"] = float(info.parameters)
    if info.forward_flops_per_sample is not None and default:
        known["train_gflop_per_sample"] = _TRAINING * info.forward_flops_per_sample / 1e9
    return known


def _sample(options: Mapping[str, Any]) -> str:
    """Describe a sample by the options that differ from the defaults of the model."""
    said = {"image_px": "image 3 x {0} x {0}", "seq_len": "{0} tokens"}
    return ", ".join(words.format(options[name]) for name, words in said.items() if name in options)


def _counted(runs: pd.DataFrame) -> dict[str, float]:
    """Return the counts that runs reported, as a mapping. Unknown ones are absent.

    Parameters and arithmetic are those of the model. Traffic is that of a step at the largest batch on several devices.
    """
    found = {}
    if "parameters" in runs and runs["parameters"].notna().any():
        found["parameters"] = float(runs["parameters"].max())
    if "flops_per_step" in runs and runs["flops_per_step"].notna().any():
        found["train_gflop_per_sample"] = float((runs["flops_per_step"] / runs["batch_global"]).median() / 1e9)
    if "allreduce_bytes_per_step" in runs and runs["allreduce_bytes_per_step"].notna().any():
        largest = runs[runs["allreduce_bytes_per_step"].notna()]
        largest = largest[largest["batch"] == largest["batch"].max()]
        found["allreduce_mb_per_step"] = float(largest["allreduce_bytes_per_step"].max() / 1e6)
        if "flops_per_allreduce_byte" in largest:
            found["gflop_per_allreduce_mb"] = float(largest["flops_per_allreduce_byte"].median() / 1e3)
    return {name: number for name, number in found.items() if not pd.isna(number)}


def _findings(rows: pd.DataFrame) -> tuple[str, ...]:
    """Return a sentence with the number of workloads and the range of their sizes."""
    sized = rows.dropna(subset=["parameters"]).sort_values("parameters", kind="stable")
    if len(sized):
        words = " to ".join(f"{_millions(row['parameters'])} ({row['workload']})" for row in first_and_last(sized))
        unknown = [str(name) for name in rows.loc[rows["parameters"].isna(), "workload"]]
        named = f"{', '.join(unknown[:_NAMED])}{' and others' if len(unknown) > _NAMED else ''}"
        rest = f"; the size of {named} is unknown" if unknown else ""
        return (f"{wording.plural(len(rows), 'workload')}, of {words} parameters{rest}.",)
    return (f"{wording.plural(len(rows), 'workload')}; sizes are unknown.",)
