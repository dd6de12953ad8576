"""The cells of a claim under each way in which the document's runs may have been made (`Choice`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

import pandas as pd

from campaign.config.published_file import Choice, ChoiceValue, Claim, ReferenceSet
from campaign.insight.published.selection import NotHere, column, of_models, where
from campaign.tables.io import Tables


@dataclass(frozen=True)
class Case:
    """The tables under one value of each choice; words: which, '' without a choice; stated: whether the document says so.

    Where the document states none of the values of a choice, each of them counts as stated.
    """

    words: str
    stated: bool
    tables: Tables


def cases(claim: Claim, names: ReferenceSet, tables: Tables) -> Iterator[Case]:
    """One case for each combination of values that all workloads of the claim were measured under."""
    if claim.here is None:
        yield Case("", True, tables)
        return
    cells = tables.cells
    mine = of_models(cells, names, (*claim.here.models, *claim.here.against_models))
    marks = [_Marks(choice, names, mine[mine["n_ok"] > 0]) for choice in names.choices if _has(cells, names, choice)]
    varied = [each for each in marks if each.values]
    workloads = set(mine.loc[mine["n_ok"] > 0, "workload"])
    for values in product(*(each.values for each in varied)):
        kept = pd.Series(True, index=cells.index)
        for mark, value in zip(varied, values, strict=True):
            kept &= mark.keeps(cells, value)
        under = cells[kept].reset_index(drop=True)
        if varied and not workloads <= set(under.loc[under["n_ok"] > 0, "workload"]):
            continue
        yield Case(
            ", ".join(value.words for value in values),
            all(mark.is_stated(value) for mark, value in zip(varied, values, strict=True)),
            replace(tables, cells=under) if varied else tables,
        )


class _Marks:
    """One choice among the measured cells of a claim. values: those that are there, where there are several."""

    def __init__(self, choice: Choice, names: ReferenceSet, measured: pd.DataFrame) -> None:
        self._choice, self._names = choice, names
        concerned = where(measured, names, choice.when)
        found = _text(concerned[column(measured, choice.axis)])
        several = found.groupby(concerned["workload"]).agg(lambda of: of[of.isin(self._known)].nunique() > 1)
        # A workload that was run in one way only, such as one that reads no input, is not what the choice is about.
        self._concerned = set(several.index[several.astype(bool)])
        of_these = set(found[concerned["workload"].isin(self._concerned)])
        self.values: Sequence[ChoiceValue] = [value for value in choice.values if str(value.value) in of_these]

    @property
    def _known(self) -> list[str]:
        return [str(value.value) for value in self._choice.values]

    def is_stated(self, value: ChoiceValue) -> bool:
        return value.stated or not any(each.stated for each in self._choice.values)

    def keeps(self, cells: pd.DataFrame, value: ChoiceValue) -> pd.Series[bool]:
        """Cells with this value, and those that the choice is not about."""
        found = _text(cells[column(cells, self._choice.axis)])
        concerned = set(where(cells, self._names, self._choice.when)["cell_id"])
        free = ~cells["cell_id"].isin(concerned) | ~cells["workload"].isin(self._concerned) | ~found.isin(self._known)
        return free | (found == str(value.value))


def _has(cells: pd.DataFrame, names: ReferenceSet, choice: Choice) -> bool:
    """Whether a campaign has the axes of a choice."""
    try:
        column(cells, choice.axis)
        where(cells.iloc[:0], names, choice.when)
    except NotHere:
        return False
    return True


def _text(values: pd.Series) -> pd.Series:
    return values.map(str)
