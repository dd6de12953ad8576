"""Which numbers of a report are predictions, of a replay or a simulation: the column `predicted` of runs and cells says so.

A figure's own rows say which cells it is of; its title, axes, findings and caption are marked here, not in its file. Where a figure
shows both, predicted workloads are named so in its panels, labels, sentences and table.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import pandas as pd

from campaign import wording


@dataclass(frozen=True)
class Prediction:
    """What some numbers are (`wording.basis`), and of which workloads, predicted and measured ones."""

    basis: str = wording.MEASURED
    predicted: tuple[str, ...] = ()
    measured: tuple[str, ...] = ()

    def caption(self) -> str:
        """For the beginning of a caption, with a space at its end; empty where everything was measured."""
        if self.basis == wording.MEASURED:
            return ""
        rest = f" Measured: {', '.join(self.measured)}." if self.measured else ""
        return f"Predicted, no device was measured: {', '.join(self.predicted)}.{rest} "

    def finding(self, sentence: str) -> str:
        """A sentence, marked by the workloads that it names; by all of the figure where it names none."""
        if f"({wording.PREDICTED})" in sentence:
            return sentence  # it names the workload as such
        named = {
            name
            for name in (*self.predicted, *self.measured)
            if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", sentence)
        }
        basis = wording.basis(name in self.predicted for name in named) if named else self.basis
        return wording.told(sentence, basis)


def of_cells(cells: pd.DataFrame) -> Prediction:
    """What rows of the cells or runs table are."""
    if "predicted" not in cells or not cells["predicted"].any():
        return Prediction()
    flags = cells["predicted"].astype(bool)
    names = [tuple(cells.loc[of, "workload"].drop_duplicates().astype("str")) for of in (flags, ~flags)]
    return Prediction(wording.basis(flags), *names)


def of_rows(rows: pd.DataFrame, cells: pd.DataFrame) -> Prediction:
    """What the rows of a figure are, by the cells or else the workloads that they name; measured where they name neither."""
    predicted = "predicted" in cells and cells["predicted"].any()
    for column in ("cell_id", "workload"):
        if predicted and column in rows:
            return of_cells(cells[cells[column].isin(rows[column])])
    return Prediction()


_MEASURED = Prediction()
_drawn: ContextVar[Prediction] = ContextVar("drawn", default=_MEASURED)


def drawn() -> Prediction:
    """What the figure that is being drawn shows."""
    return _drawn.get()


@contextmanager
def drawn_as(prediction: Prediction) -> Iterator[None]:
    """Figures drawn inside are marked as this."""
    token = _drawn.set(prediction)
    try:
        with wording.predicted_beside_measured(prediction.predicted if prediction.measured else ()):
            yield
    finally:
        _drawn.reset(token)


_CATEGORIES = re.compile(r"cell|operation|host|from|workload|share of steps|configuration.*")


def mark_axes(panels: Sequence[Any]) -> None:
    """Mark the axes that carry values: those upwards, or those across where categories stand upwards."""
    basis = drawn().basis
    if basis == wording.MEASURED:
        return
    upwards = any(axes.get_ylabel() and not _CATEGORIES.fullmatch(axes.get_ylabel()) for axes in panels)
    for axes in panels:
        if upwards:
            axes.set_ylabel(wording.marked(axes.get_ylabel(), basis).replace(f", {basis}", f",\n{basis}"))
        else:
            axes.set_xlabel(wording.marked(axes.get_xlabel(), basis))
