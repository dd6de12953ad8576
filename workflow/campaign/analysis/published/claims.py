"""Published claims and the campaign's measurements in words: the part `published` of a report's context document."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from campaign.analysis.published import NOT_MEASURED
from campaign.analysis.published.judgement import (
    compute_distance_pct,
    differs_confidently,
    judge_claim,
    list_condition_differences,
)
from campaign.analysis.published.quantities import ClaimValue, ClaimValues, evaluate_claim
from campaign.analysis.published.selection import NotMeasuredError, is_about_model, is_only_program_different
from campaign.analysis.statistics.comparable_cells import list_option_columns
from campaign.analysis.tables.cells import PLAN_COLUMNS
from campaign.analysis.tables.io import Tables
from campaign.common import wording
from campaign.spec.published_file import CampaignMapping, Claim, ReferenceSet, from_document

# Number of conditions or values that a table cell lists; further ones are only counted.
_MAX_TEXTS = 4
_BASIS_WORDS = {"less_than": "less than ", "more_than": "more than ", "almost": "almost ", "about": "about "}
_UNIT_SUFFIXES = {
    "percent": "\u202f%",
    "1": "×",
    "us": "\u202fµs",
    "gpus": " devices",
    "runs": " runs",
    "count": "",
    "samples": "",
}
_READ_COLUMNS = ("state", "failures", "n_ok", "mean")
# Quantities that are not about a training step.
_NOT_STEP_PREFIXES = ("planned_runs", "host_", "link")
_OUTCOME_WORDS = {"ok": "fits", "out_of_memory": "runs out of memory"}
# Names of computed quantities, since the claim's words may lack them.
_QUANTITY_NAMES = {
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
_CONDITION_FORMATS = {
    **dict.fromkeys(("model", "models", "gpu", "precision", "link", "order", "scope", "path", "network"), "{}"),
    **dict.fromkeys(("gpus", "gpus_total"), "{} device{s}"),
    "nodes": "{} host{s}",
    "baseline_nodes": "against {} host{s}",
    "gpus_per_node": "{} device{s} per host",
    "batch_per_gpu": "batch {}",
    "baseline": "against {}",
    "config": "{}",
    "pair": "{}",
}
_CONFIGURATION_KEYS = ("config", "baseline", "pair", "num", "den")


def evaluate_claims(sets: Iterable[ReferenceSet], tables: Tables) -> dict[str, Any]:
    """Evaluate all claims of published studies with the tables of a campaign.

    Return a JSON-serialisable dict with the studies (`documents`) and one record per claim (`claims`).
    """
    reference_sets = list(sets)
    # There are many claims, and each selects rows. Columns that no claim reads are dropped to save time.
    columns = [
        name
        for name in (*PLAN_COLUMNS, *list_option_columns(tables.cells), *_READ_COLUMNS)
        if name in tables.cells.columns
    ]
    tables = replace(tables, cells=tables.cells[columns])
    return {
        "documents": [
            {"name": reference_set.name, **reference_set.document.model_dump()} for reference_set in reference_sets
        ],
        "claims": [
            _build_claim_record(claim, reference_set, tables)
            for reference_set in reference_sets
            for claim in reference_set.claims
        ],
    }


def add_evaluated_claims(tables: Tables) -> Mapping[str, Any]:
    """Return the tables' context document with the campaign's `references` evaluated as `published`."""
    references = tables.context.get("references", ())
    if not references:
        return tables.context
    sets = [from_document(document, "references of the campaign") for document in references]
    return {**tables.context, "published": evaluate_claims(sets, tables)}


def _build_claim_record(claim: Claim, references: ReferenceSet, tables: Tables) -> dict[str, Any]:
    """Build the record of a claim; its verdict is NOT_MEASURED, with the reason, if the campaign has no value for it."""
    claim_fields = {
        "id": claim.id,
        "document": references.name,
        "where": claim.where,
        "figure": claim.figure,
        "says": claim.says,
        "published": format_published_value(claim),
        "told": describe_claim(claim),
        "conditions": describe_conditions(claim.conditions),
        "note": claim.note,
    }
    empty_fields: dict[str, Any] = {"other": [], "here": "", "of": "", "cells": []}
    try:
        match_fields = _build_match_fields(claim, claim.here, evaluate_claim(claim, references, tables))
    except NotMeasuredError as reason:
        return {**claim_fields, **empty_fields, "verdict": NOT_MEASURED, "reason": str(reason)}
    return {**claim_fields, **match_fields}


def _build_match_fields(claim: Claim, mapping: CampaignMapping | None, claim_values: ClaimValues) -> dict[str, Any]:
    """Build the part of a claim's record that depends on the measured values."""
    assert mapping is not None  # `evaluate_claim` rejects claims without it
    verdict: str
    verdict, agreeing = judge_claim(claim, mapping, claim_values)
    is_counted = len(claim_values.values) > 1 and claim_values.trend is None
    count_note = f" ({agreeing} of {len(claim_values.values)} agree)" if is_counted and verdict != "agrees" else ""
    mismatches = list_condition_differences(claim, mapping, claim_values)
    cell_ids = list(dict.fromkeys(cell for value in claim_values.values for cell in value.cells))
    words = list(dict.fromkeys(value.words for value in claim_values.values))
    noun = "cell" if mapping.compute in ("metric", "outcome") else "comparison"
    return {
        "verdict": verdict,
        "other": list(mismatches),
        "other_program": is_only_program_different(mismatches),
        "here": f"{describe_measured_values(claim, claim_values)}{count_note}",
        "of": join_first_texts(words) if len(words) <= _MAX_TEXTS else wording.pluralize(len(words), noun),
        "cells": cell_ids[:20],
        "off_pct": compute_distance_pct(claim, mapping, claim_values),
        "confident": differs_confidently(claim, mapping, claim_values),
        "direction": claim.kind == "direction",
        "scored": not is_about_model(mapping) and not mapping.compute.startswith(_NOT_STEP_PREFIXES),
    }


def format_published_value(claim: Claim) -> str:
    """Format the number as the document prints it, such as 'almost 2×' or 'less than 7 %'.

    Return '' if the document prints no number. For a claim that is judged as an efficiency, the text states which efficiency is
    used: 'near linear up to 20 devices, judged as an efficiency of at least 90 %'.
    """
    value = claim.value
    if value is None:
        return ""
    if isinstance(value, str):
        return _describe_outcome(value)
    unit = _UNIT_SUFFIXES.get(claim.unit, f" {claim.unit}")
    number = " to ".join(_format_printed_number(bound) for bound in (value if isinstance(value, tuple) else (value,)))
    if claim.here is not None and claim.here.compute == "near_linear_up_to":
        limit = wording.format_percent(claim.here.limit, 0)
        return f"near linear up to {number}{unit}, judged as an efficiency of at least {limit}"
    return f"{_BASIS_WORDS.get(claim.basis, '')}{number}{unit}"


def describe_claim(claim: Claim) -> str:
    """Return the claim in words, with its number added if the words lack it.

    For example: 'write latency between two local GPUs: 1.85 µs'.
    """
    number = format_published_value(claim)
    values = claim.value if isinstance(claim.value, tuple) else (claim.value,)
    printed_numbers = [_format_printed_number(value) for value in values if isinstance(value, float)]
    is_in_words = all(re.search(rf"(?<![\d.,]){re.escape(text)}(?![\d,]|\.\d)", claim.says) for text in printed_numbers)
    return claim.says if is_in_words or not number else f"{claim.says}: {number}"


def _format_printed_number(value: float) -> str:
    """Format a number with the digits that the document prints."""
    return f"{value:,.0f}" if value == int(value) else wording.use_minus_signs(f"{value:,}")


def describe_measured_values(claim: Claim, claim_values: ClaimValues) -> str:
    """Describe the measured values of a claim, such as 'loss of throughput 7.4 % [6.8 %, 8.1 %]'.

    Of several values, the smallest and the largest are given; of an order, the number of its pairs.
    """
    if claim_values.trend is not None:
        opposite_note = f", {claim_values.trend.opposite} significantly reversed" if claim_values.trend.opposite else ""
        return f"{claim_values.trend.in_order} of {claim_values.trend.pairs} pairs in order{opposite_note}"
    if isinstance(claim_values.values[0].value, str):
        return join_first_texts([_describe_outcome(str(value.value)) for value in claim_values.values])
    sorted_values = sorted(claim_values.values, key=lambda value: float(value.value))
    ends = dict.fromkeys(_format_value(claim, value) for value in (sorted_values[0], sorted_values[-1]))
    return f"{_name_quantity(claim)} {' to '.join(ends)}".lstrip()


def _name_quantity(claim: Claim) -> str:
    """Return the name of the quantity that a claim computes, or an empty string if it has none."""
    if claim.here is None:
        return ""
    is_difference = claim.here.compute == "spread_cv_pct" and claim.here.against_models
    return f"{'difference of ' if is_difference else ''}{_QUANTITY_NAMES.get(claim.here.compute, '')}"


def _describe_outcome(status: str) -> str:
    """Describe the outcome of a run, such as 'fits' or 'runs out of memory'."""
    return _OUTCOME_WORDS.get(status, status.replace("_", " "))


def _format_value(claim: Claim, value: ClaimValue) -> str:
    """Format a measured value with its interval."""
    format_number = partial(_format_with_unit, claim)
    number = format_number(float(value.value))
    if math.isinf(value.high):
        return f"{number}, the largest that was tried"
    if value.exact or value.low == value.high:
        return number
    if math.isnan(value.low):
        return f"{number}, one run"
    return f"{number} [{format_number(value.low)}, {format_number(value.high)}]{'' if value.tested else ', not tested'}"


def _format_with_unit(claim: Claim, number: float) -> str:
    """Format a number in the unit of the computed quantity."""
    compute = claim.here.compute if claim.here else ""
    if compute.endswith("_pct") or compute == "near_linear_up_to" or claim.unit == "percent":
        return wording.format_percent(number)
    if compute.endswith("ratio"):
        return wording.format_ratio(number)
    if compute in ("planned_runs", "largest_batch"):
        return f"{number:,.0f}{_UNIT_SUFFIXES.get(claim.unit, '')}"
    return f"{wording.format_number(number, 4)}{_UNIT_SUFFIXES.get(claim.unit, f' {claim.unit}')}"


def join_first_texts(texts: Iterable[str]) -> str:
    """Join distinct texts; if there are more than four, join the first ones and state how many remain."""
    distinct_texts = list(dict.fromkeys(texts))
    remainder = f" and {len(distinct_texts) - _MAX_TEXTS} more" if len(distinct_texts) > _MAX_TEXTS else ""
    return "; ".join(distinct_texts[:_MAX_TEXTS]) + remainder


def describe_conditions(values_by_name: Mapping[str, Any]) -> str:
    """Join the conditions of a claim into one text.

    Conditions that belong together (`num` and `den`, `from` and `to`) are joined as one.
    """
    parts = []
    for name, value in values_by_name.items():
        if name == "den" and "num" in values_by_name:
            continue
        if name == "num" and "den" in values_by_name:
            parts.append(f"{_format_condition(name, value)} over {_format_condition(name, values_by_name['den'])}")
        elif name in ("from", "to"):
            # The second of the two continues the text of the first.
            parts += [
                f"{parts.pop()} to {_format_condition(name, value)}"
                if name == "to" and "from" in values_by_name
                else f"{name} {value}"
            ]
        else:
            template = _CONDITION_FORMATS.get(name, f"{name.replace('_', ' ')} {{}}")
            parts.append(template.format(_format_condition(name, value), s="" if value == 1 else "s"))
    return ", ".join(parts)


def _format_condition(name: str, value: Any) -> str:
    """Format the value of a condition, joining lists with 'and'."""
    if isinstance(value, list):
        return _join_with_and([_format_condition(name, item) for item in value])
    return _format_configuration(str(value)) if name in _CONFIGURATION_KEYS else str(value)


def _format_configuration(name: str) -> str:
    """Format a configuration, or a pair of devices, as the study of the Falcon names it.

    Examples are 'Falcon GPUs' and 'local to local'.
    """
    spaced_name = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name) if re.match(r"(local|falcon|hybrid)[A-Z]", name) else name
    pair = re.fullmatch(r"(local|falcon)-(local|falcon)", spaced_name)
    return re.sub(r"\bfalcon\b", "Falcon", f"{pair[1]} to {pair[2]}" if pair else spaced_name)


def _join_with_and(words: Sequence[str]) -> str:
    """Join words as 'a', 'a and b' or 'a, b and c'."""
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))
