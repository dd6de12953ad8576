"""Writes what people read: plan files, figures and the report. The rules and the command line both come here."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

from campaign.errors import RecordError
from campaign.plan import Plan
from campaign.plan_shown import plan_document, plan_rows
from campaign.project import SCRIPTS


def write_plan(plan: Plan, json_path: Path, tsv_path: Path) -> None:
    """plan.json (`plan/1`) and plan.tsv (every cell)."""
    json_path.write_text(json.dumps(plan_document(plan), indent=1) + "\n")
    with tsv_path.open("w") as file:
        for row in plan_rows(plan):
            file.write("\t".join(row) + "\n")


def figure_names() -> list[str]:
    """Names of the figures, one script each."""
    return sorted(path.stem for path in (SCRIPTS / "figures").glob("[a-z]*.py"))


def draw_figures(tables: Path, figures: Path) -> None:
    """Draw all figures from tables, as the rule `figure` does one by one."""
    from campaign.figure import Figure, write

    figures.mkdir(parents=True, exist_ok=True)
    inputs = {
        name: tables / f"{name}.{'parquet' if name in ('runs', 'cells', 'telemetry') else 'json'}" for name in _INPUTS
    }
    for name in figure_names():
        module = _script(name)
        outputs = {kind: figures / f"{name}.{kind}" for kind in ("svg", "csv", "json")}
        write(Figure(module.ANCHOR, module.TITLE, module.SECTION, module.draw), inputs, outputs)


_INPUTS = ("runs", "cells", "telemetry", "leases", "links", "context")


def _script(name: str) -> ModuleType:
    path = SCRIPTS / "figures" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"campaign_figure_{name}", path)
    if spec is None or spec.loader is None:
        raise RecordError(f"{path}: cannot be loaded; reinstall the package or use a checkout")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def render_report(tables: Path, figures: Path, out: Path) -> None:
    """The page from tables and figures."""
    import pandas as pd

    from campaign.report import assemble, read_drawings, write_report

    try:
        runs, cells = pd.read_parquet(tables / "runs.parquet"), pd.read_parquet(tables / "cells.parquet")
        leases: list[dict[str, Any]] = json.loads((tables / "leases.json").read_bytes())
        context: dict[str, Any] = json.loads((tables / "context.json").read_bytes())
    except (OSError, ValueError) as error:
        raise RecordError(f"{tables}: the tables cannot be read ({error}); delete them and run again") from error
    drawings = read_drawings((figures / f"{name}.svg", figures / f"{name}.json") for name in figure_names())
    write_report(out, assemble(runs, cells, leases, context, drawings))
