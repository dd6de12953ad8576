"""A comparison as one JSON document (`comparison/1`)."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

import pandas as pd

from campaign.insight.compare.comparison import Comparison
from campaign.insight.compare.gate import Broken

SCHEMA = "comparison/1"


def document(comparison: Comparison) -> dict[str, Any]:
    """JSON-serialisable; what is unknown is null. Ratios are those of `other` over `base`."""
    return {
        "schema_version": SCHEMA,
        "base": comparison.base,
        "other": comparison.other,
        "metric": comparison.metric.document(),
        "cells": _records(comparison.rows),
        "means": _records(comparison.means),
        "only_base": _records(comparison.only_base),
        "only_other": _records(comparison.only_other),
        "surroundings": [asdict(each) for each in comparison.surroundings],
        "rules": list(comparison.rules),
        "broken": [_rule(each) for each in comparison.broken],
        "untested": [_rule(each) for each in comparison.untested],
    }


def _rule(each: Broken) -> dict[str, Any]:
    return {name: value for name, value in asdict(each).items() if name != "tested"}


def _records(rows: pd.DataFrame) -> list[dict[str, Any]]:
    return [{str(name): _plain(value) for name, value in row.items()} for row in rows.to_dict("records")]


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value.item() if hasattr(value, "item") else value
