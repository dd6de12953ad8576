"""Measured cells of a campaign, as the site compares them with those of other campaigns."""

from __future__ import annotations

import pandas as pd
import pytest

from campaign.analysis.statistics.comparable_cells import HARDWARE_COLUMNS
from campaign.report.site.history import select_measured_cells


@pytest.mark.parametrize(
    ("options", "words"), [({}, ["", ""]), ({"option_depth": ["2", "4"]}, ["depth 2", "depth 4"])], ids=["none", "one"]
)
def test_a_cell_is_named_by_its_options(options: dict[str, list[str]], words: list[str]) -> None:
    same = dict.fromkeys((*HARDWARE_COLUMNS, "workload", "batch", "precision", "mean", "ci_low", "ci_high", "n_ok"), 1)
    cells = pd.DataFrame({"configuration": ["a", "b"], "system": "", **same, **options})
    context = {"campaign": {"system": "here"}}
    measured = select_measured_cells(cells, context)
    assert list(measured["options"]) == words
    assert list(measured["system"]) == ["here", "here"]
