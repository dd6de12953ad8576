"""Published claims and the campaign's measurements in words: the part `published` of a report's context document."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from campaign.analysis.published import NOT_HERE
from campaign.analysis.published.judgement import confident, judge, off_pct, others
from campaign.analysis.published.quantities import ClaimValues, Value, found
from campaign.analysis.published.selection import NotHere, of_model, only_the_program
from campaign.analysis.statistics.comparable_cells import option_columns
from campaign.analysis.tables.cells import PLAN_COLUMNS
from campaign.analysis.tables.io import Tables
from campaign.common import wording
from campaign.spec.published_file import Claim, Here, ReferenceSet, from_document

# Number of conditions or values that a table cell lists; further ones are only counted.
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
_READ = ("state", "failures", "n_ok", "mean")
# Quantities that are not about a training step.
_NO_STEP = ("planned_runs", "host_", "link")
_OUTCOME = {"ok": "fits", "out_of_memory": "runs out of memory"}
# Names of computed quantities, since the claim's words may lack them.
_QUANTITY = {
    "throughput_drop_pct": "loss of throughput",
    "throughput_gain_pct": "gain of throughput",
    "throughput_ratio": "throughput",
    "time_increase_pct": "change of time",
    "time_ratio": "time",
    "near_linear_up_to": "efficiency",
    "spread_cv_pct": "variation",
    "largest_batch": "batch",
}

# Formats of conditions; conditions that are not listed are given by name.
_TOLD = {
    **dict.fromkeys(("model", "models", "gpu", "precision", "link", "order", "scope", "path", "network"), "{}"),
    **dict.fromkeys(("gpus", "gpus_total"), "{} device{s}"),
    "nodes": "{} host{s}",
    "baseline_nodes": "against {} host{s}",
    "gpus_per_node": "{} device{s} a host",
    "batch_per_gpu": "batch {}",
    "baseline": "against {}",
    "config": "{}",
    "pair": "{}",
}
_NAMES = ("config", "baseline", "pair", "num", "den")


def held_against(sets: Iterable[ReferenceSet], tables: Tables) -> dict[str, Any]:
    """Evaluate all claims of published studies with the tables of a campaign.

    Return a JSON-serialisable dict with the studies (`documents`) and one record per claim (`claims`).
    """
    known = list(sets)
    # There are many claims, and each selects rows. Columns that no claim reads are dropped to save time.
    read = [name for name in (*PLAN_COLUMNS, *option_columns(tables.cells), *_READ) if name in tables.cells.columns]
    tables = replace(tables, cells=tables.cells[read])
    return {
        "documents": [{"name": each.name, **each.document.model_dump()} for each in known],
        "claims": [_claim(claim, each, tables) for each in known for claim in each.claims],
    }


def with_claims(tables: Tables) -> Mapping[str, Any]:
    """Return the tables' context document with the campaign's `references` evaluated as `published`."""
    references = tables.context.get("references", ())
    if not references:
        return tables.context
    sets = [from_document(each, "references of the campaign") for each in references]
    return {**tables.context, "published": held_against(sets, tables)}


def _claim(claim: Claim, names: ReferenceSet, tables: Tables) -> dict[str, Any]:
    """Build the record of a claim; its verdict is NOT_MEASURED, with the reason, if the campaign has no value for it."""
    said = {
        "id": claim.id,
        "document": names.name,
        "where": claim.where,
        "figure": claim.figure,
        "says": claim.says,
        "published": published(claim),
        "told": told(claim),
        "conditions": conditions(claim.conditions),
        "note": claim.note,
    }
    nothing: dict[str, Any] = {"other": [], "here": "", "of": "", "cells": []}
    try:
        found_here = _found(claim, claim.here, found(claim, names, tables))
    except NotHere as reason:
        return {**said, **nothing, "verdict": NOT_HERE, "reason": str(reason)}
    return {**said, **found_here}


def _found(claim: Claim, here_: Here | None, of: ClaimValues) -> dict[str, Any]:
    """Build the fields of a claim's record that depend on the measured values."""
    assert here_ is not None  # `evaluate_claim` rejects claims without it
    verdict: str
    verdict, agreeing = judge(claim, here_, of)
    several = len(of.values) > 1 and of.trend is None
    counted = f" ({agreeing} of {len(of.values)} agree)" if several and verdict != "agrees" else ""
    missed = others(claim, here_, of)
    found_cells = list(dict.fromkeys(cell for value in of.values for cell in value.cells))
    words = list(dict.fromkeys(value.words for value in of.values))
    noun = "cell" if here_.compute in ("metric", "outcome") else "comparison"
    return {
        "verdict": verdict,
        "other": list(missed),
        "other_program": only_the_program(missed),
        "here": f"{here(claim, of)}{counted}",
        "of": first(words) if len(words) <= _MOST else wording.pluralize(len(words), noun),
        "cells": found_cells[:20],
        "off_pct": off_pct(claim, here_, of),
        "confident": confident(claim, here_, of),
        "direction": claim.kind == "direction",
        "scored": not of_model(here_) and not here_.compute.startswith(_NO_STEP),
    }


def published(claim: Claim) -> str:
    """Format the number as the document prints it, such as 'almost 2×' or 'less than 7 %'.

    Return '' if the document prints no number. For a claim that is judged as an efficiency, the text states which efficiency is
    used: 'near linear up to 20 devices, taken as at least 90 %'.
    """
    value = claim.value
    if value is None:
        return ""
    if isinstance(value, str):
        return _outcome(value)
    unit = _UNIT.get(claim.unit, f" {claim.unit}")
    number = " to ".join(_printed(each) for each in (value if isinstance(value, tuple) else (value,)))
    if claim.here is not None and claim.here.compute == "near_linear_up_to":
        return f"near linear up to {number}{unit}, taken as at least {wording.format_percent(claim.here.limit, 0)}"
    return f"{_BASIS.get(claim.basis, '')}{number}{unit}"


def told(claim: Claim) -> str:
    """Return the claim in words, with its number added if the words lack it.

    For example: 'write latency between two local GPUs: 1.85 µs'.
    """
    number = published(claim)
    values = claim.value if isinstance(claim.value, tuple) else (claim.value,)
    printed = [_printed(value) for value in values if isinstance(value, float)]
    in_words = all(re.search(rf"(?<![\d.,]){re.escape(each)}(?![\d,]|\.\d)", claim.says) for each in printed)
    return claim.says if in_words or not number else f"{claim.says}: {number}"


def _printed(value: float) -> str:
    """Format a number with the digits that the document prints."""
    return f"{value:,.0f}" if value == int(value) else wording.use_minus_signs(f"{value:,}")


def here(claim: Claim, of: ClaimValues) -> str:
    """Describe the measured values of a claim, such as 'loss of throughput 7.4 % [6.8 %, 8.1 %]'.

    Of several values, the smallest and the largest are given; of an order, the number of its pairs.
    """
    if of.trend is not None:
        certain = f", {of.trend.opposite} surely not" if of.trend.opposite else ""
        return f"{of.trend.in_order} of {of.trend.pairs} pairs in order{certain}"
    if isinstance(of.values[0].value, str):
        return first([_outcome(str(value.value)) for value in of.values])
    ordered = sorted(of.values, key=lambda value: float(value.value))
    ends = dict.fromkeys(_said(claim, value) for value in (ordered[0], ordered[-1]))
    return f"{_quantity(claim)} {' to '.join(ends)}".lstrip()


def _quantity(claim: Claim) -> str:
    """Return the name of the quantity that a claim computes, or ''."""
    if claim.here is None:
        return ""
    difference = claim.here.compute == "spread_cv_pct" and claim.here.against_models
    return f"{'difference of ' if difference else ''}{_QUANTITY.get(claim.here.compute, '')}"


def _outcome(status: str) -> str:
    """Describe the outcome of a run, such as 'fits' or 'runs out of memory'."""
    return _OUTCOME.get(status, status.replace("_", " "))


def _said(claim: Claim, value: Value) -> str:
    """Format a measured value with its interval."""
    say = partial(_with_unit, claim)
    number = say(float(value.value))
    if math.isinf(value.high):
        return f"{number}, and no larger one was tried"
    if value.exact or value.low == value.high:
        return number
    if math.isnan(value.low):
        return f"{number}, one run"
    return f"{number} [{say(value.low)}, {say(value.high)}]{'' if value.tested else ', not tested'}"


def _with_unit(claim: Claim, number: float) -> str:
    """Format a number in the unit of the computed quantity."""
    compute = claim.here.compute if claim.here else ""
    if compute.endswith("_pct") or compute == "near_linear_up_to" or claim.unit == "percent":
        return wording.format_percent(number)
    if compute.endswith("ratio"):
        return wording.format_ratio(number)
    if compute in ("planned_runs", "largest_batch"):
        return f"{number:,.0f}{_UNIT.get(claim.unit, '')}"
    return f"{wording.format_number(number, 4)}{_UNIT.get(claim.unit, f' {claim.unit}')}"


def first(words: Iterable[str]) -> str:
    """Join different texts; of more than four, the first ones and the number of the others."""
    told = list(dict.fromkeys(words))
    more = f" and {len(told) - _MOST} more" if len(told) > _MOST else ""
    return "; ".join(told[:_MOST]) + more


def conditions(of: Mapping[str, Any]) -> str:
    """Join all conditions of a claim to one text.

    Conditions that belong together (`num` and `den`, `from` and `to`) are joined as one.
    """
    told = []
    for name, value in of.items():
        if name == "den" and "num" in of:
            continue
        if name == "num" and "den" in of:
            told.append(f"{_text(name, value)} over {_text(name, of['den'])}")
        elif name in ("from", "to"):
            # The second of the two continues the text of the first.
            told += [f"{told.pop()} to {_text(name, value)}" if name == "to" and "from" in of else f"{name} {value}"]
        else:
            form = _TOLD.get(name, f"{name.replace('_', ' ')} {{}}")
            told.append(form.format(_text(name, value), s="" if value == 1 else "s"))
    return ", ".join(told)


def _text(name: str, value: Any) -> str:
    """Format the value of a condition, joining lists with 'and'."""
    if isinstance(value, list):
        return _listed([_text(name, each) for each in value])
    return _configuration(str(value)) if name in _NAMES else str(value)


def _configuration(name: str) -> str:
    """Format a configuration, or a pair of devices, as the study of the Falcon names it.

    Examples are 'Falcon GPUs' and 'local to local'.
    """
    apart = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name) if re.match(r"(local|falcon|hybrid)[A-Z]", name) else name
    pair = re.fullmatch(r"(local|falcon)-(local|falcon)", apart)
    return re.sub(r"\bfalcon\b", "Falcon", f"{pair[1]} to {pair[2]}" if pair else apart)


def _listed(words: Sequence[str]) -> str:
    """Join words as 'a', 'a and b' or 'a, b and c'."""
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))
