"""Figures of tests are drawn once, where a page has them for a phone and for a sheet of paper, too."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from campaign.report import plot

DRAWN_AGAIN = ("test_figures_of_odd_sizes", "test_same_bytes", "test_paper")
"""Tests of what is drawn again: its words, its bytes, its files."""


@pytest.fixture(scope="module", autouse=True)
def drawn_once(request: pytest.FixtureRequest) -> Iterator[None]:
    """Drawing again takes as long as drawing."""
    with pytest.MonkeyPatch.context() as patch:
        if request.path.stem not in DRAWN_AGAIN:
            patch.setattr(plot, "MAX_CELLS_TO_REDRAW", 0)
        yield
