"""The default campaign measured again and again, with a planted change: results directories, as far as a site reads them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from campaign.analysis.tables import io
from campaign.analysis.tables.cells import build_cells_table
from campaign.analysis.tables.io import Tables
from campaign.common.files import write_json
from campaign.report.figure import build_figure_data, load_all_figures, write_figure
from tests.simulated_campaigns import Simulated
from tests.unit.report.report_data import HOSTILE

DAY_S = 86_400.0
FINDING = f"Devices behind the fabric cost 7 % {HOSTILE}."


def measured(
    of: Simulated, number: int, slower: float = 0.0, changed: str = "", lease: float = 0.01, **about: Any
) -> Tables:
    """The number-th campaign, a week after the one before. slower: by how much configurations with `changed` in their name are."""
    tables = of.tables(np.random.default_rng(number), lease=lease, run=0.003)
    rates = ["value", "throughput_per_s", "throughput_per_device_per_s"]
    factor = np.where(tables.runs["configuration"].str.contains(changed, regex=False), 1 - slower, 1.0)
    away = 7 * DAY_S * number
    runs = tables.runs.assign(
        **{name: tables.runs[name] * factor for name in rates},
        started=tables.runs["started"] + away,
        ended=tables.runs["ended"] + away,
    )
    said = {"name": "demo", "title": "What does the fabric cost?", "system": "emulated", **about}
    context = {**tables.context, "campaign": {**tables.context["campaign"], **said}}
    return replace(tables, runs=runs, cells=build_cells_table(of._plan, runs), context=context)


def results(tables: Tables, directory: Path, figures: Iterable[str] = ()) -> Path:
    """Results with tables, a page that stands for the report, and these figures; without any, one whose finding is FINDING."""
    io.write_all_tables(tables, directory / "tables")
    (directory / "figures").mkdir()
    known = load_all_figures()
    for name in figures:
        write_figure(known[name], build_figure_data(tables), directory / "figures")
    if not figures:
        shown = {"shown": True, "place": 1, "title": "Overhead", "findings": [FINDING]}
        write_json(directory / "figures" / "overhead.json", shown)
        for kind in ("svg", "csv", "pdf"):
            (directory / "figures" / f"overhead.{kind}").write_text(kind)
    (directory / "report.html").write_text(f"<title>{directory.name}</title>")
    return directory
