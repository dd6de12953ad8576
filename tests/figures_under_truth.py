"""What figures, comparisons and advice say of campaigns of which the truth is known (`tests.planted_records`).

Judged is what a reader sees: the numbers that a figure draws and the sentences that it prints, not what they are made with.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cache
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd

from campaign.analysis import compare as comparing
from campaign.analysis.recommend.advise import build_recommendation
from campaign.analysis.recommend.objectives import parse_request
from campaign.analysis.tables.io import Tables
from campaign.common.intervals import SIGNIFICANCE_LEVEL
from campaign.plan.matrix import expand_matrix
from campaign.report import plot
from campaign.report.figure import Drawing, Figure, FigureData, build_figure_data, load_figure
from tests.planted_records import RATE, Planted
from tests.planted_records import tables as planted_tables
from tests.statements_under_truth import Statements


@dataclass
class Told:
    """Of many campaigns: how many intervals there are and cover; how many campaigns have a test, and one that is wrong; how many
    true differences there are and are found."""

    intervals: int = 0
    covering: int = 0
    campaigns: int = 0
    tested: int = 0
    wrong: int = 0
    true: int = 0
    found: int = 0
    widths_pct: list[float] = field(default_factory=list)

    def add(self, other: Told) -> None:
        for name in ("intervals", "covering", "campaigns", "tested", "wrong", "true", "found"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.widths_pct += other.widths_pct

    def statements(self) -> Statements:
        def pct(part: float, of: int) -> float:
            return 100 * part / of if of else float("nan")

        half = float(np.median(self.widths_pct)) if self.widths_pct else float("nan")
        cover, wrong = pct(self.covering, self.intervals), pct(self.wrong, self.campaigns)
        return Statements(cover, wrong, pct(self.found, self.true), half, pct(self.tested, self.campaigns))


@cache
def _figure(name: str) -> Figure:
    return load_figure(name)


_DRAWN = plot.build_drawing


def _no_picture(of: FigureData, rows: pd.DataFrame, picture: object, *columns: Any, **said: Any) -> Drawing:
    return _DRAWN(of, rows, (lambda: "<svg/>") if picture else None, *columns, **said)


@contextmanager
def _no_pictures() -> Iterator[None]:
    with (
        mock.patch("campaign.report.plot.build_drawing", _no_picture),
        mock.patch("campaign.report.plot.use_style", return_value=nullcontext()),
    ):
        yield


def drawn(name: str, data: FigureData) -> Drawing:
    """A figure as it is drawn, but for its picture."""
    figure = _figure(name)
    with _no_pictures():
        return figure.draw_function(data)


def over(of: Planted, figures: Sequence[str], campaigns: int, seed: int = 1) -> dict[str, Statements]:
    """What figures say of many campaigns; also `cells`, `recommend`, `hosts`, `dips`, and `compare` and `fail-on` of one campaign
    with another one of the same truth."""
    total: dict[str, Told] = {}
    for number in range(campaigns):
        tables = planted_tables(of, seed + number)
        found = told(tables, of, [name for name in figures if name not in ("compare", "fail-on")])
        if "compare" in figures:
            found |= of_comparison(tables, planted_tables(of, seed + 100_000 + number), {})
        for name, each in found.items():
            total.setdefault(name, Told()).add(each)
    return {name: each.statements() for name, each in total.items()}


def told(tables: Tables, of: Planted, figures: Iterable[str]) -> dict[str, Told]:
    """By figure, and for `cells`, `recommend` and `hosts`, where asked."""
    speeds = {cell.id: RATE * of.speed(cell) for cell in expand_matrix(of.campaign()).cells}
    found: dict[str, Told] = {}
    data = build_figure_data(tables)
    for name in figures:
        if name == "cells":
            found[name] = of_cells(tables.cells, speeds, of)
        elif name == "recommend":
            found[name] = of_advice(tables, speeds)
        elif name == "hosts":
            found[name] = of_hosts(drawn("variance", data), of)
        elif name == "dips":
            found[name] = of_dips(drawn("scaling", data))
        else:
            found[name] = of_ratios(drawn(name, data).data, speeds, scaled=name in ("scaling", "speedup_by_batch"))
    return found


@cache
def led(shape: str, run_sd: float, slow: tuple[float, float]) -> float:
    """The location that cells lead with, against their speed without noise: of very many runs."""
    many = Planted(compositions=1, repetitions=999, lease_sd=0.0, run_sd=run_sd, shape=shape, slow=slow)
    found = planted_tables(many, 1).cells
    return float((found["mean"] / (RATE * found["ranks"])).mean())


def of_cells(cells: pd.DataFrame, speeds: Mapping[str, float], of: Planted) -> Told:
    known = cells[cells["ci_low"].notna()]
    plain = of.shape == "normal" and not of.slow[0]
    middle = float(np.exp(-of.drift / 200))
    true = known["cell_id"].map(speeds) * middle * (1.0 if plain else led(of.shape, of.run_sd, of.slow))
    inside = (known["ci_low"] <= true) & (true <= known["ci_high"])
    half = 50 * (known["ci_high"] - known["ci_low"]) / known["mean"]
    return Told(len(known), int(inside.sum()), 1, 1, 0, widths_pct=half.tolist())


def of_ratios(rows: pd.DataFrame, speeds: Mapping[str, float], scaled: bool = False) -> Told:
    """Of the rows of a figure that compares cells."""
    if "against_cell" not in rows:
        return Told(campaigns=1)
    known = rows[rows["ratio_low"].notna() & (rows["cell_id"] != rows["against_cell"])]
    true = (known["cell_id"].map(speeds) / known["against_cell"].map(speeds)).to_numpy()
    none = (known["ranks"] / known["against_ranks"]).to_numpy() if scaled else np.ones(len(known))
    return _told(true, none, known["ratio_low"], known["ratio_high"], known["p_holm"])


def _told(true: np.ndarray, none: np.ndarray, low: pd.Series, high: pd.Series, p_holm: pd.Series) -> Told:
    tie, differs = np.isclose(true, none), (p_holm < SIGNIFICANCE_LEVEL).to_numpy()
    inside = (low <= true * (1 + 1e-12)) & (true <= high * (1 + 1e-12))
    half = (50 * (high - low) / true).tolist()
    wrong = bool((tie & differs).any())
    return Told(
        len(true), int(inside.sum()), 1, int(p_holm.notna().any()), int(wrong),
        int((~tie).sum()), int((~tie & differs).sum()), half,
    )  # fmt: skip


def of_advice(tables: Tables, speeds: Mapping[str, float]) -> Told:
    """Wrong: a configuration that is as fast as the fastest is not named beside it. Found: a slower one is told apart."""
    measured = tables.cells.loc[tables.cells["n_ok"] > 0, "workload"].unique()
    document = build_recommendation(tables, parse_request(["throughput"], [], [], [str(name) for name in measured], []))
    result = Told(campaigns=1)
    for answer in document.answers:
        if answer.choice is None or not answer.comparable:
            continue
        result.tested = 1
        tied = {each.configuration for each in answer.alternatives} | {answer.choice.configuration}
        rows = tables.cells[(tables.cells["n_ok"] > 0) & tables.cells["workload"].isin(answer.workloads)]
        true = rows["cell_id"].map(speeds).groupby(rows["configuration"]).max()
        fastest = set(true.index[np.isclose(true, true.max())])
        result.wrong |= bool(fastest - tied) or (
            answer.choice.configuration not in fastest and fastest.isdisjoint(tied)
        )
        slower = set(true.index) - fastest
        result.true += len(slower)
        result.found += len(slower - tied)
    result.wrong = int(result.wrong)
    return result


def of_hosts(drawing: Drawing, of: Planted) -> Told:
    named = [sentence.split()[0] for sentence in drawing.findings if " is slower than the other hosts" in sentence]
    true = {"host1"} if of.slow_host else set()
    compared = any("host" in sentence and "slower" in sentence for sentence in drawing.findings)
    return Told(0, 0, 1, int(compared), int(bool(set(named) - true)), len(true), len(true & set(named)))


def of_dips(drawing: Drawing) -> Told:
    rows = drawing.data
    if "dip" not in rows:
        return Told(campaigns=1)
    return Told(0, 0, 1, int(rows["dip_p_holm"].notna().any()), int(rows["dip"].any()))


def of_comparison(
    first: Tables, second: Tables, change: Mapping[str, float], rule: str = "throughput < -1%"
) -> dict[str, Told]:
    """change: true ratio of cells, by id, where it is not 1."""
    comparison = comparing.compare(first, second, [comparing.parse_rule(rule)])
    rows = comparison.rows[comparison.rows["low"].notna()]
    true = rows["cell_id"].map(lambda cell: change.get(cell, 1.0)).to_numpy(dtype=float)
    ratios = _told(true, np.ones(len(rows)), rows["low"], rows["high"], rows["p_holm"])
    gate = Told(0, 0, 1, int(rows["p"].notna().any()), int(bool(comparison.violations) and not change))
    if change:
        gate.true, gate.found = 1, int(bool(comparison.violations))
    return {"compare": ratios, "fail-on": gate}
