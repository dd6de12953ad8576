"""A claim under each way in which the document's runs may have been made; inputs; and how many claims are reached."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pandas as pd
import pytest

from campaign.config.published_file import load
from campaign.insight.published.claims import held_against
from campaign.insight.published.judgement import nearness, score
from campaign.tables.io import Tables
from campaign.tables.report_context import claims_used
from tests import reference_campaign as reference

DURING, AFTER = "with overlap", "without overlap"
SHORT, LONG = "16-bit gradients", "32-bit gradients"


def planted(column: str, ways: dict[str, float], only: str = "True") -> Tables:
    """The Falcon study as published, once for each value of an axis; devices behind the fabric are that much faster.

    only: workloads that are run in all ways; the others are run in the first alone.
    """
    of = reference.tables("falcon")
    first = next(iter(ways))
    frames: dict[str, list[pd.DataFrame]] = {"cells": [], "runs": []}
    for way, factor in ways.items():
        for name, table in frames.items():
            kept = getattr(of, name)
            kept = kept[kept["storage"] == "local"]
            kept = kept if way == first else kept.query(only if only != "True" else "ranks > 0")
            concerned = kept["precision"] == "fp16" if column == "precision" else kept["precision"] != ""
            fabric = (kept["attach"] == "fabric").map({True: factor, False: 1.0})
            numbers = {key: kept[key] * fabric for key in ("mean", "sd", "value", "throughput_per_s") if key in kept}
            ids = kept["cell_id"] + f"-{way}"
            changed = kept.assign(**numbers, cell_id=ids)
            changed[column] = kept[column].where(~concerned, way) if column in kept else way
            table.append(changed if way == first else changed[concerned])
    return replace(of, **{name: pd.concat(table, ignore_index=True) for name, table in frames.items()})


def held(of: Tables, claim: str, **context: Any) -> dict[str, Any]:
    whole = load("falcon")
    some = whole.model_copy(update={"claims": tuple(each for each in whole.claims if each.id == claim)})
    return dict(held_against([some], replace(of, context={**of.context, **context}))["claims"][0])


def told(claim: dict[str, Any]) -> dict[str, tuple[str, bool]]:
    return {case["words"]: (case["verdict"], case["stated"]) for case in claim["cases"]}


def test_a_way_that_the_document_does_not_state_is_shown_and_does_not_count() -> None:
    claim = held(planted("option_overlap", {"True": 1.0, "False": 0.8}), "falcon.f11.small_vision")
    assert told(claim) == {DURING: ("agrees", True), AFTER: ("differs", False)}
    assert (claim["verdict"], nearness(claim)) == ("agrees", "inside")
    assert AFTER in claim["here"]


@pytest.mark.parametrize("wrong", ["fp16", "fp16-o2"])
def test_of_ways_that_are_open_one_that_agrees_is_not_enough(wrong: str) -> None:
    ways = {each: 0.8 if each == wrong else 1.0 for each in ("fp16", "fp16-o2")}
    claim = held(planted("precision", ways), "falcon.f11.small_vision")
    words = {"fp16": LONG, "fp16-o2": SHORT}
    assert told(claim)[words[wrong]] == ("differs", True)
    assert sorted(verdict for verdict, _ in told(claim).values()) == ["agrees", "differs"]
    assert (claim["verdict"], nearness(claim)) == ("differs", "off")


def test_ways_that_all_agree_are_an_agreement() -> None:
    claim = held(planted("precision", {"fp16": 1.0, "fp16-o2": 0.995}), "falcon.f11.small_vision")
    assert told(claim) == {SHORT: ("agrees", True), LONG: ("agrees", True)}
    assert claim["verdict"] == "agrees"


def test_the_other_side_of_a_comparison_is_no_part_of_the_choice() -> None:
    claim = held(planted("precision", {"fp16": 1.0, "fp16-o2": 1.0}), "falcon.f16.amp_falcon")
    assert told(claim) == {SHORT: ("agrees", True), LONG: ("agrees", True)}  # both against fp32


def test_a_workload_that_was_run_in_one_way_has_no_such_choice() -> None:
    vision = "workload in ['mobilenetv2', 'resnet50', 'yolov5l']"
    claim = held(planted("option_input", {"resident": 1.0, "storage": 1.0}, only=vision), "falcon.f11.order")
    assert set(told(claim)) == {"input read", "input resident"}
    assert all("over 10 values" in case["here"] for case in claim["cases"])  # five models, fabric and hybrid


def test_a_claim_that_is_an_input_has_no_verdict() -> None:
    of = planted("option_overlap", {"True": 1.0})
    claim = held(of, "falcon.f11.bertlarge", inputs={"falcon.f11.bertlarge": ["workloads.bert-large.compute"]})
    assert (claim["verdict"], claim["reason"]) == ("input", "taken as given: workloads.bert-large.compute")
    assert nearness(claim) is None


def test_inputs_are_what_files_say_that_they_use() -> None:
    rows = [{"seconds": 1.0}, {"seconds": 2.0, "uses": ["b.two", "a.one"]}, {"seconds": 3.0, "uses": ["b.two"]}]
    document = {
        "system": {"links": {"fabric": {"uses": ["a.one"]}, "local": None}},
        "workloads": {"m": {"compute": rows}},
    }
    assert claims_used(document) == {
        "a.one": ["system.links.fabric", "workloads.m.compute"],
        "b.two": ["workloads.m.compute"],
    }


def claim(verdict: str, *off: float | None, stated: bool = True, scored: bool = True) -> dict[str, Any]:
    cases = [{"verdict": "differs", "stated": stated, "off_pct": each, "words": ""} for each in off]
    return {"verdict": verdict, "scored": scored, "cases": cases}


def test_the_score_counts_what_is_reached() -> None:
    claims = [
        claim("agrees", 0.0),
        claim("differs", 9.0),
        claim("differs", 9.0, 11.0),  # one of several ways is too far off
        claim("undecided", None),
        claim("agrees", 30.0),  # its interval reaches what is printed, its value does not
        claim("agrees", 0.0, stated=False),  # only as the document does not have it
        claim("agrees", 0.0, scored=False),
        claim("not measured here"),
        claim("input"),
    ]
    assert [nearness(each) for each in claims] == ["inside", "near", "off", "off", "off", None, None, None, None]
    found = score(claims)
    assert (found.claims, found.reached, found.inside, found.near) == (8, 5, 1, 1)
    assert str(found).startswith("5 of 8 claims can be reached: 1 inside the stated range, 1 within 10 % of it")
