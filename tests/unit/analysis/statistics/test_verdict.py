"""What may be said of a comparison: a difference only where it stands among all of its figure, and never more than that."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pandas as pd
import pytest

from campaign.analysis.statistics import comparisons, verdict
from campaign.common import intervals, wording
from tests import planted_campaigns as planted
from tests.planted_campaigns import Truth

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
    return {**given, "tested": p == p, "method": intervals.T_OVER_COMPOSITIONS, **basis, **more}


@pytest.mark.parametrize(
    ("compared", "low", "high", "words"),
    [
        (row(0.001, 0.02), 1.0, 3.0, ""),
        (row(0.4, 1.0), -0.31, 0.24, ", and differences above 0.31\u202f% are ruled out"),
        (row(0.4, 1.0), -1.2, 3.44, ", and differences above 3.4\u202f% are ruled out"),
        (row(0.01, 0.12), 0.1, 3.0,
         ", with p of no difference = 0.12 over the 33 comparisons of this figure (Holm)"),
        (row(0.4, 1.0), -50.0, 3.0, ", and differences above 50.0\u202f% are ruled out"),
        (row(0.4, 1.0, least_detectable_pct=20.0), -3.0, 50.1,
         ", and a difference of 20\u202f% would have been detected"),
        (row(0.4, 1.0, least_detectable_pct=80.0), -95.0, 1900.0,
         ", and a difference of 80\u202f% would have been detected"),
    ],
)  # fmt: skip
def test_doubt_follows_from_the_adjusted_p_and_the_interval(
    compared: dict[str, Any], low: float, high: float, words: str
) -> None:
    ratios = (1 + (low + high) / 200, 1 + low / 100, 1 + high / 100)
    said = verdict.describe_comparison(compared, ratios, *ABOUT, subject="w")
    assert said.startswith("No significant difference of b: the estimate is " if words else "b reaches ")
    assert said.endswith(f"(w){words}.")


def _several(effect: tuple[float, ...], compositions: int = 3) -> tuple[pd.DataFrame, comparisons.Design]:
    """Return configurations against the first one, as a figure has them."""
    truth = Truth(
        configurations=len(effect), effect=effect, compositions=compositions, runs=2 * compositions, lease=0.002
    )
    design = comparisons.build_design(planted.runs(replace(truth, run=0.002), 1, 3))
    of, to = planted.pairs(truth, 1)
    found = comparisons.compute_ratios(of, to, design).build_columns(of.index)
    return pd.DataFrame({"cell_id": of, "against_cell": to, "workload": [f"w{n}" for n in of], **found}), design


ABOUT = ("b reaches {} the speed of a", "difference of b")


def test_of_several_cells_the_mean_has_an_interval_and_the_extremes_have_none() -> None:
    rows, design = _several((1.0, 0.5, 0.25, 1.0))
    said = verdict.summarize_effects(rows, design, ["workload"], *ABOUT)
    pattern = (
        r"b reaches 2\.0\d× \[\S+ to \S+\] the speed of a on average over 3 cells\. Single cells range from (\S+) "
        r"\(w3\) to (\S+) \(w2\); 2 of 3 differ significantly\."
    )
    found = re.fullmatch(pattern, said)
    assert found, said
    assert [float(each[:-1]) for each in found.groups()] == pytest.approx([1, 4], abs=0.03)
    in_time = verdict.summarize_effects(
        rows, design, ["workload"], *ABOUT, lambda ratio: 100 * (1 / ratio - 1), wording.format_percent
    )
    low, high = re.search(r"\[−(\S+)\u202f% to −(\S+)\u202f%\]", in_time).groups()  # type: ignore[union-attr]
    assert 49 < float(high) < 50.1 < float(low) < 51


def test_one_cell_has_its_own_interval_and_what_it_rests_on() -> None:
    rows, design = _several((1.0, 0.5))
    said = verdict.summarize_effects(rows, design, ["workload"], *ABOUT)
    assert re.fullmatch(r"b reaches \S+× \[\S+ to \S+\] the speed of a \(w1\)\.", said)
    borrowed = rows.assign(method=intervals.T_BORROWED_SPREAD)
    said = verdict.summarize_effects(borrowed, design, ["workload"], *ABOUT)
    assert said.endswith(" the speed of a (w1; variance estimated from other cells).")


@pytest.mark.parametrize(
    ("p", "words"),
    [
        (0.4, r", and differences above \S+\u202f% are ruled out\."),
        (0.01, r", with p of no difference = 0\.12 over the \d+ comparisons of this figure \(Holm\)\."),
    ],
)
def test_a_cell_without_a_significant_difference_begins_with_that(p: float, words: str) -> None:
    rows, design = _several((1.0, 1.0))
    rows = rows.assign(p=p, p_holm=0.12, n_tests=5)
    said = verdict.summarize_effects(rows, design, ["workload"], *ABOUT)
    assert re.fullmatch(r"No significant difference of b: the estimate is \S+× \[\S+ to \S+\] \(w1\)" + words, said), (
        said
    )


def test_few_cells_of_a_picture_are_described_by_their_own_numbers() -> None:
    rows, design = _several((1.0, 0.5, 0.25, 1.0))
    said = verdict.summarize_shown_cells(rows, design, ["workload"], *ABOUT)
    found = re.fullmatch(
        r"b reaches (\S+)× \(w3\) to (\S+)× \(w2\) the speed of a; 2 of 3 differ significantly\.", said
    )
    assert found, said
    assert [float(each) for each in found.groups()] == pytest.approx(
        [rows["ratio"].min(), rows["ratio"].max()], abs=0.006
    )
    alone = verdict.summarize_shown_cells(rows.head(1), design, ["workload"], *ABOUT)
    assert alone == verdict.summarize_effects(rows.head(1), design, ["workload"], *ABOUT)
    none = verdict.summarize_shown_cells(rows.assign(p=0.4, p_holm=1.0), design, ["workload"], *ABOUT)
    assert re.fullmatch(r"No significant difference of b: \S+× \(w3\) to \S+× \(w2\)\.", none)
    equal = verdict.summarize_shown_cells(rows.assign(ratio=1.5), design, ["workload"], *ABOUT)
    assert equal.startswith("b reaches 1.50× the speed of a; ")


def test_differences_are_ruled_out_for_all_cells_together() -> None:
    rows, design = _several((1.0,) * 13)
    said = verdict.summarize_effects(rows, design, ["workload"], *ABOUT)
    largest = re.fullmatch(
        r"No significant difference of b in any of 12 cells: the mean is \S+× \[\S+ to \S+\], and differences above "
        r"(\S+)\u202f% are ruled out\.",
        said,
    )
    alone = max(abs(rows["ratio_low"] - 1).max(), abs(rows["ratio_high"] - 1).max())
    assert float(largest[1]) > 105 * alone  # type: ignore[index]
    wide = rows.assign(ratio_low=rows["ratio"] / 1.45, ratio_high=rows["ratio"] * 1.45)
    assert "ruled out" not in verdict.summarize_effects(wide, design, ["workload"], *ABOUT)


def test_a_mean_of_untested_ratios_has_no_interval() -> None:
    rows, design = _several((1.0, 0.5, 0.25), compositions=1)
    said = verdict.summarize_effects(rows, design, ["workload"], *ABOUT)
    assert said.startswith("b reaches 2.8")
    assert f"on average over 2 cells (no interval: {verdict.RUN_VARIATION_ONLY}). Single cells range from " in said
    assert "differ" not in said


def test_what_limits_comparisons_is_said_and_nothing_else() -> None:
    rows = pd.DataFrame(
        [
            row(0.0, 0.001, paired=True, method=intervals.T_PAIRED_BY_BLOCK),
            row(0.03, 0.06),
            row(NAN, NAN, method=intervals.NO_INTERVAL_REFERENCE),
        ]
    )
    assert verdict.list_limitations(rows, {"order": "blocks"}) == ("1 statement holds for one composition only.",)
    assert verdict.list_limitations(rows[1:], {"order": "blocks"}) == ()
    assert verdict.list_limitations(rows[1:], {"order": "sequential"}) == (verdict.SEQUENTIAL_RUNS_CAVEAT,)
    assert verdict.list_limitations(rows[2:], {}) == ("No comparison has an interval.",)


ONE = {"compositions": 1, "against_compositions": 1}
LENT = "variance estimated from other cells"


@pytest.mark.parametrize(
    ("compared", "words"),
    [
        (row(0.1, 0.2), ""),
        (row(0.1, 0.2, compositions=2), ""),
        (row(0.1, 0.2, method=intervals.T_PAIRED_BY_LEASE, paired=True), "within 3 compositions"),
        (row(0.1, 0.2, method=intervals.T_PAIRED_BY_BLOCK, paired=True, **ONE), "within one composition"),
        (row(0.1, 0.2, method=intervals.T_OVER_RUNS_OF_COMPOSITION, **ONE), "within one composition"),
        (row(0.1, 0.2, method=intervals.T_BORROWED_SPREAD, **ONE), LENT),
        (row(0.1, 0.2, method=intervals.T_BORROWED_EARLIER_SPREAD, lent_by="pilot", **ONE),
         "variance estimated from pilot"),
        (row(0.1, 0.2, method=intervals.T_BORROWED_CHANGE_SPREAD, **ONE),
         "variance estimated from the changes of other configurations, 8 degrees of freedom"),
        (row(NAN, NAN, method=intervals.RUN_VARIATION_ONLY, **ONE), ""),
        (row(0.1, 0.2, in_order=True),
         "the order is not random or unknown, so drift can look like an effect"),
        (row(0.1, 0.2, unlike="5 warm-up steps against 10"),
         "measured differently: 5 warm-up steps against 10"),
    ],
)  # fmt: skip
def test_a_statement_ends_with_its_conditions(compared: dict[str, Any], words: str) -> None:
    assert verdict.describe_basis(compared) == words


def test_one_composition_each_is_said_instead_of_a_result() -> None:
    alone = row(NAN, NAN, method=intervals.RUN_VARIATION_ONLY, freedom=NAN, **ONE)
    assert verdict.describe_comparison(alone, (1.0, 0.99, 1.02), *ABOUT).endswith(
        f"({verdict.NOT_TESTED_ONE_COMPOSITION})."
    )
    (said,) = verdict.list_limitations(pd.DataFrame([alone]), {})
    assert said.startswith("Comparisons were not tested: each configuration was composed once")
    assert verdict.describe_basis({**alone, "in_order": True}) == ""
    assert "differ" not in said
    assert "degrees" not in said
    of_table = [
        verdict.BASIS_COLUMNS[name](alone) for name in ("p (Holm)", "Compositions", "Degrees of freedom", "Compared")
    ]
    assert of_table == ["–", "1 / 1", "–", intervals.RUN_VARIATION_ONLY.removesuffix(", 95 %")]


def test_a_caption_says_what_all_comparisons_rest_on() -> None:
    lent = row(0.4, 1.0, method=intervals.T_BORROWED_SPREAD, **ONE)
    rows = pd.DataFrame([row(0.4, 1.0), lent, row(0.4, 1.0, method=intervals.T_PAIRED_BY_BLOCK, **ONE)])
    said = verdict.describe_evidence(rows)
    assert said.startswith("Each cell was measured on 1 to 3 compositions. 1 statement holds for one composition only.")
    assert "In 1 comparison, the spread of compositions is estimated from other cells (8.0 degrees" in said
    steps = verdict.describe_step_mismatches(
        rows.assign(unlike=["", "5 warm-up steps against 10", "20 measured steps against 8"])
    )
    assert steps.startswith(
        " 2 comparisons are between cells that were measured differently (such as 5 warm-up steps against 10)"
    )
    assert verdict.describe_step_mismatches(rows) == ""
    planned = {"compositions": 3, "lease_order": "least-recomposition"}
    assert verdict.FIXED_LEASE_ORDER_CAVEAT in verdict.list_limitations(rows, planned)
    assert verdict.UNKNOWN_LEASE_ORDER_CAVEAT in verdict.list_limitations(rows, {"compositions": 3})
    assert "drift" not in " ".join(verdict.list_limitations(rows, {"compositions": 3, "lease_order": "blocks"}))


def test_a_table_says_how_each_was_compared() -> None:
    say = verdict.BASIS_COLUMNS["Compared"]
    assert say(row(0, 0, paired=True, n_pairs=4, method=intervals.T_PAIRED_BY_BLOCK)) == "paired, 4 blocks"
    assert say(row(0, 0, paired=True, n_pairs=3)) == "paired, 3 leases"
    assert say(row(0, 0)) == "t over compositions"
    assert say(row(0, 0, method=intervals.NO_INTERVAL_REFERENCE)) == intervals.NO_INTERVAL_REFERENCE
    assert [verdict.format_p_value(p) for p in (0.0, 0.0344, 1.0, NAN)] == ["< 0.001", "0.034", "1.0", "–"]
    assert [verdict.BASIS_COLUMNS["Detectable"](row(0, 0, least_detectable_pct=least)) for least in (0.123, 7.0, NAN)] == [
        "0.12\u202f%", "7.0\u202f%", "–",
    ]  # fmt: skip
