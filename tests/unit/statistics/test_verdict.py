"""What may be said of a comparison: a difference only where it stands among all of its figure, and never more than that."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from campaign.statistics import intervals, verdict

NAN = float("nan")


def row(p: float, p_holm: float, **more: Any) -> dict[str, Any]:
    given = {"p": p, "p_holm": p_holm, "n_tests": 33, "least_detectable_pct": 1.5, "paired": False, "n_pairs": 0}
    basis = {
        "compositions": 3,
        "against_compositions": 3,
        "freedom": 8.0,
        "unlike": "",
        "in_order": False,
        "ratio": 1.1,
    }
    return {**given, "tested": p == p, "method": intervals.BETWEEN, **basis, **more}


@pytest.mark.parametrize(
    ("compared", "low", "high", "words"),
    [
        (row(0.001, 0.02), 1.0, 3.0, ""),
        (row(NAN, NAN), NAN, NAN, ""),
        (row(0.4, 1.0), -0.31, 0.24, ": no difference larger than 0.31\u202f%"),
        (row(0.4, 1.0), -1.2, 3.44, ": no difference larger than 3.4\u202f%"),
        (row(0.01, 0.12), 0.1, 3.0, ", not significant among all 33 comparisons of this figure (p = 0.12, Holm)"),
        (row(0.4, 1.0), -50.0, 3.0, ": no difference larger than 50.0\u202f%"),
        (row(0.4, 1.0, least_detectable_pct=20.0), -3.0, 50.1,
         ": inconclusive, with too few or too uneven runs; a difference of 20\u202f% would have been detected"),
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
    assert "none larger than 50.0" in verdict.together(rows.assign(high=[50.0, 1.0, NAN]), "low", "high")
    assert verdict.together(rows.assign(high=[50.1, 1.0, NAN]), "low", "high") == ""


@pytest.mark.parametrize(
    ("different", "quoted", "words"),
    [
        ((), (-4.0, 9.0), ""),
        ((1, 2), (2.0, 5.0), "; 2 of 4 cells differ significantly"),
        ((2,), (5.0,), "; 1 of 4 cells differs significantly"),
        ((0, 1, 2, 3), (-4.0, 9.0), ""),
    ],
)
def test_a_sentence_quotes_what_differs_where_anything_does(
    different: tuple[int, ...], quoted: tuple[float, ...], words: str
) -> None:
    sizes = (-4.0, 2.0, 5.0, 9.0)
    rows = pd.DataFrame(
        [row(0.4, 0.01 if n in different else 1.0, size=size, ratio=1 + size / 100) for n, size in enumerate(sizes)]
    )
    ends, said = verdict.quoted(rows, "size")
    assert (tuple(each["size"] for each in ends), said) == (quoted, words)
    named = rows.assign(
        workload=[f"w{n}" for n in range(4)], ratio_low=rows["ratio"] - 0.2, ratio_high=rows["ratio"] + 0.2
    )
    sentence = verdict.speed_ups(named, ["workload"])
    assert sentence.endswith(words)
    assert all(f"w{sizes.index(size)}" in sentence for size in quoted)


def test_what_limits_comparisons_is_said_and_nothing_else() -> None:
    rows = pd.DataFrame(
        [
            row(0.0, 0.001, paired=True, method=intervals.PAIRED),
            row(0.03, 0.06),
            row(NAN, NAN, method=intervals.ITSELF),
        ]
    )
    assert verdict.limits(rows, {"order": "blocks"}) == ("1 statement holds for one composition only.",)
    assert verdict.limits(rows[1:], {"order": "blocks"}) == ()
    assert verdict.limits(rows[1:], {"order": "sequential"}) == (verdict.SEQUENTIAL,)
    assert verdict.limits(rows[2:], {}) == ("No comparison has an interval.",)


ONE = {"compositions": 1, "against_compositions": 1}
LENT = "one composition each, spread borrowed"


@pytest.mark.parametrize(
    ("compared", "words"),
    [
        (row(0.1, 0.2), "3 compositions each"),
        (row(0.1, 0.2, compositions=2), "2 against 3 compositions"),
        (row(0.1, 0.2, method=intervals.PAIRED_BY_LEASE, paired=True), "within 3 compositions"),
        (row(0.1, 0.2, method=intervals.PAIRED, paired=True, **ONE), "within one composition"),
        (row(0.1, 0.2, method=intervals.RUNS_OF_ONE, **ONE), "within one composition"),
        (row(0.1, 0.2, method=intervals.BORROWED, **ONE), LENT),
        (row(0.1, 0.2, method=intervals.BORROWED_EARLIER, lent_by="pilot", **ONE),
         f"{LENT} from pilot"),
        (row(NAN, NAN, method=intervals.ONE_EACH, **ONE), ""),
        (row(0.1, 0.2, in_order=True),
         "3 compositions each; order not random or not known, so that drift can pose as an effect"),
        (row(0.1, 0.2, unlike="5 warm-up steps against 10"),
         "3 compositions each; measured unlike: 5 warm-up steps against 10"),
    ],
)  # fmt: skip
def test_a_statement_says_on_how_many_compositions_it_rests(compared: dict[str, Any], words: str) -> None:
    assert verdict.basis(compared) == words


def test_one_composition_each_is_said_instead_of_a_result() -> None:
    alone = row(NAN, NAN, method=intervals.ONE_EACH, freedom=NAN, **ONE)
    assert verdict.doubt(alone, -1.0, 2.0, "no significant difference in 4 cells") == f" ({verdict.ONE_EACH})"
    (said,) = verdict.limits(pd.DataFrame([alone]), {})
    assert said.startswith("Comparisons not tested: one composition of each")
    assert verdict.basis({**alone, "in_order": True}) == ""
    assert "differ" not in said
    assert "degrees" not in said
    of_table = [verdict.COLUMNS[name](alone) for name in ("p (Holm)", "Compositions", "Degrees of freedom", "Compared")]
    assert of_table == ["–", "1 / 1", "–", intervals.ONE_EACH.removesuffix(", 95 %")]


def test_a_caption_says_what_all_comparisons_rest_on() -> None:
    lent = row(0.4, 1.0, method=intervals.BORROWED, **ONE)
    rows = pd.DataFrame([row(0.4, 1.0), lent, row(0.4, 1.0, method=intervals.PAIRED, **ONE)])
    said = verdict.rests_on(rows)
    assert said.startswith("Each cell was measured on 1 to 3 compositions. 1 statement holds for one composition only.")
    assert "In 1 comparison, the spread of compositions is borrowed from other cells (8.0 degrees" in said
    steps = verdict.unlike(rows.assign(unlike=["", "5 warm-up steps against 10", "20 measured steps against 8"]))
    assert steps.startswith(
        " 2 comparisons are between cells that were measured unlike (such as 5 warm-up steps against 10)"
    )
    assert verdict.unlike(rows) == ""
    planned = {"compositions": 3, "lease_order": "least-recomposition"}
    assert verdict.LEASES_IN_ORDER in verdict.limits(rows, planned)
    assert verdict.ORDER_UNKNOWN in verdict.limits(rows, {"compositions": 3})
    assert "drift" not in " ".join(verdict.limits(rows, {"compositions": 3, "lease_order": "blocks"}))


def test_a_table_says_how_each_was_compared() -> None:
    say = verdict.COLUMNS["Compared"]
    assert say(row(0, 0, paired=True, n_pairs=4, method=intervals.PAIRED)) == "paired, 4 blocks"
    assert say(row(0, 0, paired=True, n_pairs=3)) == "paired, 3 leases"
    assert say(row(0, 0)) == "t over compositions"
    assert say(row(0, 0, method=intervals.ITSELF)) == intervals.ITSELF
    assert [verdict.p_value(p) for p in (0.0, 0.0344, 1.0, NAN)] == ["< 0.001", "0.034", "1.0", "–"]
    assert [verdict.COLUMNS["Detectable"](row(0, 0, least_detectable_pct=least)) for least in (0.123, 7.0, NAN)] == [
        "0.12\u202f%", "7.0\u202f%", "–",
    ]  # fmt: skip
