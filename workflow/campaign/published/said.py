"""Published claims and what was measured here, in words: the part `published` of a report's context document."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from campaign import wording
from campaign.comparison import option_columns
from campaign.published.document import Claim, Here, ReferenceSet
from campaign.published.judgement import judge, others
from campaign.published.selection import NotHere
from campaign.published.values import Found, Value, found
from campaign.report_document import NOT_HERE
from campaign.tables import PLAN_COLUMNS
from campaign.tableset import Tables

# Of so many conditions and values a table's cell holds the first ones, and says how many more there are.
_MOST = 4
_BASIS = {"less_than": "less than ", "more_than": "more than ", "almost": "almost ", "about": "about "}
_UNIT = {
    "percent": "\u202f%",
    "1": "×",
    "us": "\u202fµs",
    "gpus": " devices",
    "runs": " runs",
    "count": "",
    "samples": "",
}
_READ = ("state", "failures", "n_ok", "mean", "sd")
_PLAIN = ("model", "models", "gpu", "config", "precision", "pair", "link")


def held_against(sets: Iterable[ReferenceSet], tables: Tables) -> dict[str, Any]:
    """JSON-serialisable: the documents, and every claim of each beside what the tables say of it."""
    known = list(sets)
    # Claims are many and each picks rows anew: what none of them reads would only be carried along.
    read = [name for name in (*PLAN_COLUMNS, *option_columns(tables.cells), *_READ) if name in tables.cells.columns]
    tables = replace(tables, cells=tables.cells[read])
    return {
        "documents": [{"name": each.name, **each.document.model_dump()} for each in known],
        "claims": [_claim(claim, each, tables) for each in known for claim in each.claims],
    }


def _claim(claim: Claim, names: ReferenceSet, tables: Tables) -> dict[str, Any]:
    said = {
        "id": claim.id,
        "document": names.name,
        "where": claim.where,
        "figure": claim.figure,
        "says": claim.says,
        "published": published(claim),
        "conditions": conditions(claim.conditions),
        "note": claim.note,
    }
    try:
        of = found(claim, names, tables)
    except NotHere as reason:
        return {**said, "verdict": NOT_HERE, "other": [], "here": "", "of": "", "reason": str(reason), "cells": []}
    return {**said, **_found(claim, of)}


def _found(claim: Claim, of: Found) -> dict[str, Any]:
    assert claim.here is not None
    verdict, agreeing = judge(claim, claim.here, of)
    several = len(of.values) > 1 and of.trend is None
    counted = f" ({agreeing} of {len(of.values)} agree)" if several and verdict != "agrees" else ""
    cells = list(dict.fromkeys(cell for value in of.values for cell in value.cells))
    words = [value.words for value in of.values]
    return {
        "verdict": verdict,
        "other": list(others(claim, claim.here, of)),
        "here": f"{here(claim, of)}{counted}",
        "of": first(words) if len(words) <= _MOST else wording.plural(len(words), _noun(claim.here)),
        "reason": "",
        "cells": cells[:20],
    }


def _noun(here: Here) -> str:
    return "cell" if here.compute in ("metric", "outcome") else "comparison"


def published(claim: Claim) -> str:
    """The number as the document has it: 'almost 2×', 'less than 7 %'; '' where it prints none."""
    value = claim.value
    if value is None:
        return ""
    if isinstance(value, str):
        return value.replace("_", " ")
    unit = _UNIT.get(claim.unit, f" {claim.unit}")
    number = " to ".join(_printed(each) for each in (value if isinstance(value, tuple) else (value,)))
    return f"{_BASIS.get(claim.basis, '')}{number}{unit}"


def _printed(value: float) -> str:
    """The digits that the document prints, not as many as we like."""
    return f"{value:,.0f}" if value == int(value) else wording.minus(f"{value:,}")


def conditions(of: Mapping[str, Any]) -> str:
    """'TF-ResNet50, A100, gpus total 4, nodes 2'."""
    told = []
    for name, value in of.items():
        text = " ".join(map(str, value)) if isinstance(value, list) else str(value)
        told.append(text if name in _PLAIN else f"{name.replace('_', ' ')} {text}")
    return ", ".join(told)


def here(claim: Claim, of: Found) -> str:
    """'7.4 % [6.8 %, 8.1 %]'; of several values the smallest and the largest; of a trend its rank correlation."""
    if of.trend is not None:
        p = min(of.trend.p_up, of.trend.p_down)
        much = "p < 0.001" if p < 0.001 else f"p = {p:.2g}"
        return f"rank correlation {wording.minus(f'{of.trend.tau:.2f}')} over {len(of.values)} values ({much})"
    if isinstance(of.values[0].value, str):
        return first([str(value.value).replace("_", " ") for value in of.values])
    ordered = sorted(of.values, key=lambda value: float(value.value))
    least, most = ordered[0], ordered[-1]
    if len(ordered) == 1 or least.value == most.value:
        return _said(claim, least)
    return f"{_said(claim, least)} to {_said(claim, most)}"


def _said(claim: Claim, value: Value) -> str:
    def say(number: float) -> str:
        return _with_unit(claim, number)

    number = say(float(value.value))
    if math.isinf(value.high):
        return f"{number}, and no larger one was tried"
    if value.exact or value.low == value.high:
        return number
    return f"{number}, one run" if math.isnan(value.low) else f"{number} [{say(value.low)}, {say(value.high)}]"


def _with_unit(claim: Claim, number: float) -> str:
    """A number in the unit of what was computed."""
    compute = claim.here.compute if claim.here else ""
    if compute.endswith("_pct") or compute == "near_linear_up_to" or claim.unit == "percent":
        return wording.percent(number)
    if compute.endswith("ratio"):
        return wording.times(number)
    if compute in ("planned_runs", "largest_batch"):
        return f"{number:,.0f}{_UNIT.get(claim.unit, '')}"
    return f"{wording.number(number, 4)}{_UNIT.get(claim.unit, f' {claim.unit}')}"


def first(words: Iterable[str]) -> str:
    """Different texts, joined; of many the first ones."""
    told = list(dict.fromkeys(words))
    more = f" and {len(told) - _MOST} more" if len(told) > _MOST else ""
    return "; ".join(told[:_MOST]) + more
