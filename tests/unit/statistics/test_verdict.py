"""What may be said of a comparison: a difference only where it stands among all of its figure, and never more than that."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from campaign import statistics
from campaign.statistics import verdict

NAN = float("nan")


def row(p: float, p_holm: float, **more: Any) -> dict[str, Any]:
    given = {"p": p, "p_holm": p_holm, "n_tests": 33, "least_detectable_pct": 1.5, "paired": False, "n_pairs": 0}
    return {**given, "method": statistics.BETWEEN, **more}


@pytest.mark.parametrize(
    ("compared", "low", "high", "words"),
    [
        (row(0.001, 0.02), 1.0, 3.0, ""),
        (row(NAN, NAN), NAN, NAN, ""),
        (row(0.4, 1.0), -0.31, 0.24, ": no difference larger than 0.31\u202f%"),
        (row(0.4, 1.0), -1.2, 3.44, ": no difference larger than 3.4\u202f%"),
        (row(0.01, 0.12), 0.1, 3.0, ", not significant among all 33 comparisons of this figure (p = 0.12, Holm)"),
        (row(0.4, 1.0, least_detectable_pct=80.0), -95.0, 1900.0,
         ": inconclusive, with too few or too uneven runs; a difference of 80\u202f% would have been detected"),
        (row(0.4, 1.0, least_detectable_pct=float("inf")), -95.0, float("inf"),
         ": inconclusive, with too few or too uneven runs; no difference of any size would have been detected"),
    ],
)  # fmt: skip
def test_doubt_follows_from_the_adjusted_p_and_the_interval(
    compared: dict[str, Any], low: float, high: float, words: str
) -> None:
    assert verdict.doubt(compared, low, high) == words


def test_several_without_a_difference_are_said_together() -> None:
    rows = pd.DataFrame([row(0.4, 1.0, low=-1.0, high=0.5), row(0.2, 1.0, low=-0.2, high=2.26), row(NAN, NAN)])
    words = "no significant difference in 2 cells, and none larger than 2.3\u202f% (each at 95\u202f%)"
    assert verdict.together(rows, "low", "high") == words
    assert verdict.together(rows[:1], "low", "high") == ""
    assert verdict.together(rows.assign(p_holm=[0.01, 1.0, NAN]), "low", "high") == ""
    assert verdict.together(rows.assign(high=[500.0, 1.0, NAN]), "low", "high") == ""


def test_a_caption_counts_what_differs_and_how_it_was_compared() -> None:
    rows = pd.DataFrame(
        [
            row(0.0, 0.001, paired=True, method=statistics.PAIRED),
            row(0.03, 0.06),
            row(NAN, NAN, method=statistics.ITSELF),
        ]
    )
    said = verdict.counted(rows, {"order": "blocks"}, "fp32")
    assert said.startswith(
        "1 of 2 cells differs significantly from fp32 (within one composition, t paired by block: 1; t over compositions: 1;"
    )
    assert "Holm" in said
    assert "difference of 1.5\u202f% in 80 of 100 cases" in said
    assert "drift" not in said
    assert "drift" in verdict.counted(rows, {"order": "sequential"}, "fp32")
    assert verdict.counted(rows[2:], {}, "fp32") == "No comparison with fp32 has an interval."


def test_a_table_says_how_each_was_compared() -> None:
    say = verdict.COLUMNS["Compared"]
    assert say(row(0, 0, paired=True, n_pairs=4, method=statistics.PAIRED)) == "paired, 4 blocks"
    assert say(row(0, 0, paired=True, n_pairs=3)) == "paired, 3 leases"
    assert say(row(0, 0)) == "t over compositions"
    assert say(row(0, 0, method=statistics.ITSELF)) == statistics.ITSELF
    assert [verdict.p_value(p) for p in (0.0, 0.0344, 1.0, NAN)] == ["< 0.001", "0.034", "1.0", "–"]
    assert [verdict.COLUMNS["Detectable"](row(0, 0, least_detectable_pct=least)) for least in (0.123, 7.0, NAN)] == [
        "0.12\u202f%", "7.0\u202f%", "–",
    ]  # fmt: skip
