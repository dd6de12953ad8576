"""Figures and the report page, made from tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

LAST_PLACE = 1_000_000
"""The place of a figure that declares none."""


def sort_by_page_order(drawings: Mapping[str, Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Sort the documents of figures (`build_page_document`) by their order on the page."""
    return [
        drawings[name] for name in sorted(drawings, key=lambda name: (drawings[name].get("place", LAST_PLACE), name))
    ]
