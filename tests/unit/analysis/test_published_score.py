"""One way of making its runs for all claims of a document; how many claims are reached."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pandas as pd
import pytest

from campaign.analysis.published.claims import evaluate_claims
from campaign.analysis.published.judgement import classify_nearness, score_claims
from campaign.analysis.tables.io import Tables
from campaign.spec.published_file import load_set
from tests import reference_campaign as reference


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
            concerned = kept["precision"] == "fp16-o2" if column == "precision" else kept["precision"] != ""
            fabric = (kept["attach"] == "fabric").map({True: factor, False: 1.0})
            numbers = {key: kept[key] * fabric for key in ("mean", "sd", "value", "throughput_per_s") if key in kept}
            ids = kept["cell_id"] + f"-{way}"
            changed = kept.assign(**numbers, cell_id=ids)
            changed[column] = kept[column].where(~concerned, way) if column in kept else way
            table.append(changed if way == first else changed[concerned])
    return replace(of, **{name: pd.concat(table, ignore_index=True) for name, table in frames.items()})


def held(of: Tables, claim: str) -> dict[str, Any]:
    whole = load_set("falcon")
    some = whole.model_copy(update={"claims": tuple(each for each in whole.claims if each.id == claim)})
    return dict(evaluate_claims([some], of)["claims"][0])


def test_runs_that_were_made_as_the_document_says_go_before_others() -> None:
    overlapped = held(planted("option_overlap", {"True": 1.0, "False": 0.8}), "falcon.f11.small_vision")
    assert (overlapped["verdict"], overlapped["other"], classify_nearness(overlapped)) == ("agrees", [], "inside")


@pytest.mark.parametrize(("column", "other"), [("option_overlap", "False"), ("precision", "fp16")])
def test_runs_that_were_made_otherwise_say_so(column: str, other: str) -> None:
    claim = held(planted(column, {other: 1.0}), "falcon.f11.small_vision")
    assert any(other in each for each in claim["other"])


def test_conditions_of_a_claim_win_over_those_of_its_study() -> None:
    claim = held(planted("precision", {"fp16-o2": 1.0, "fp16": 0.5}), "falcon.f16.amp_falcon")
    assert (claim["verdict"], claim["other"]) == ("agrees", [])  # both sides of the comparison are found


def claim(number: int, verdict: str, off_pct: float | None, scored: bool = True, **more: Any) -> dict[str, Any]:
    counted = {"confident": False, "direction": False, **more}
    return {"document": "d", "id": str(number), "verdict": verdict, "scored": scored, "off_pct": off_pct, **counted}


def test_the_score_counts_what_is_reached() -> None:
    claims = [
        claim(1, "agrees", 0.0),
        claim(2, "differs", 9.0, confident=True),  # off, and no direction
        claim(3, "differs", 11.0, confident=True, direction=True),
        claim(4, "undecided", None),
        claim(5, "agrees", 30.0),  # its interval reaches what is printed, its value does not
        claim(6, "agrees", 0.0, scored=False),
        claim(7, "not measured here", None),
    ]
    assert [classify_nearness(each) for each in claims] == ["inside", "near", "off", "off", "off", None, None]
    found = score_claims(claims)
    assert (found.claims, found.reached, found.inside, found.near, found.confident) == (7, 5, 1, 1, 1)
    assert str(found).startswith("5 of 7 claims can be checked: 1 inside the stated range, 1 within 10 % of it")
    assert str(found).endswith("1 direction reversed with confidence")


def test_a_claim_that_several_campaigns_reach_counts_once() -> None:
    twice = [claim(1, "not measured here", None), claim(1, "agrees", 0.0), claim(1, "differs", 50.0)]
    found = score_claims(twice)
    assert (found.claims, found.reached, found.inside) == (1, 1, 1)
