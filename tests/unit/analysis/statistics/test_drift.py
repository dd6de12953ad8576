"""Drift of the system as the reference shows it, and comparisons adjusted by it: by simulation, with a planted truth."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from campaign.analysis.statistics import comparisons
from campaign.analysis.statistics.drift import adjust_by_reference, estimate_drift
from campaign.spec.run_numbers import compute_run_number

pytestmark = pytest.mark.slow

CONFIGURATIONS, COMPOSITIONS = 4, 3
_NAMES = "cell_id configuration repetition lease_id status value started workload batch precision"
_OF_REFERENCE = "lease_id configuration attach hardware status value started"


def campaign(
    random: np.random.Generator, change: float = 0.0, blocks: bool = True, own: float = 0.0, shape: str = "line"
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Runs of the matrix and of the reference, of equally fast configurations: sd 1 % from lease to lease and from run to run.

    change: of the logarithm of time over the campaign; own: share of the deviation of a lease that the reference does not see.
    """
    places = [(c, k) for k in range(COMPOSITIONS) for c in random.permutation(CONFIGURATIONS)]
    places = places if blocks else sorted(places)
    runs, reference = [], []
    for place, (c, k) in enumerate(places):
        at = (place + 0.5) / len(places)
        drifted = change * (at if shape == "line" else float(np.sin(np.pi * at)))
        deviation, other = random.normal(0, 0.01, 2)
        seen = np.sqrt(1 - own**2) * deviation + own * other
        lease, hour = f"l{c}.{k}", 3600.0 * place
        for n in range(2):
            rate, start = np.exp(-(drifted + deviation + random.normal(0, 0.01))), hour + 600 * n
            runs.append((f"c{c}", f"c{c}", compute_run_number(k + 1, n + 1), lease, "ok", rate, start, "w", 1, "fp32"))
            rate = np.exp(-(drifted + seen + random.normal(0, 0.01)))
            reference.append((lease, f"c{c}", "fabric", "x", "ok", rate, hour + 1800 * n))
    return pd.DataFrame(runs, columns=_NAMES.split()), pd.DataFrame(reference, columns=_OF_REFERENCE.split())


def study(campaigns: int, adjust: bool, **planted: Any) -> tuple[float, float]:
    """Share of intervals that hold the truth (no difference), and their mean half-width in percent."""
    random = np.random.default_rng(3)
    order = "blocks" if planted.get("blocks", True) else "least-recomposition"
    said = {"protocol": {"order": "blocks", "lease_order": order, "reference": {"adjust": adjust}}}
    first, others = pd.Series(["c0"] * 3), pd.Series(["c1", "c2", "c3"])
    held, width = [], []
    for _ in range(campaigns):
        by = comparisons.build_campaign_design(*_first_two(campaign(random, **planted), said))
        found = comparisons.compute_ratios(others, first, by)
        _, low, high = found.estimate.compute_bounds()
        held.append((low <= 1) & (high >= 1))
        width.append(50 * (high - low))
        assert bool(found.is_adjusted.all()) == adjust
        assert bool(found.is_in_order.any()) == (not adjust and order != "blocks")
    return float(np.mean(held)), float(np.mean(width))


def _first_two(tables: tuple[pd.DataFrame, pd.DataFrame], said: dict[str, Any]) -> tuple[Any, ...]:
    return tables[0], said, tables[1]


def found(campaigns: int, **planted: Any) -> float:
    random = np.random.default_rng(11)
    return float(np.mean([estimate_drift(campaign(random, **planted)[1]).is_significant for _ in range(campaigns)]))


def test_a_drift_of_5_percent_is_found_and_none_where_there_is_none() -> None:
    assert found(50, change=0.05) >= 0.9
    assert found(150) <= 0.085  # 5 in 100, and the error of 150 campaigns


def test_the_size_of_the_drift_is_in_its_interval() -> None:
    random = np.random.default_rng(2)
    true = 100 * np.expm1(-0.05 * (12 - 1) / 12)
    seen = [estimate_drift(campaign(random, change=0.05)[1]).change_pct for _ in range(100)]
    assert np.mean([low <= true <= high for _, low, high in seen]) == pytest.approx(0.95, abs=0.04)
    assert np.mean([value for value, _, _ in seen]) == pytest.approx(true, abs=0.3)


def test_adjusting_saves_comparisons_of_an_order_that_is_not_random() -> None:
    raw, _ = study(20, False, change=0.05, blocks=False)
    saved, _ = study(30, True, change=0.05, blocks=False)
    assert raw < 0.75
    assert saved >= 0.91
    # Whatever its shape, the reference has the same: all of it is taken out.
    line, hump = (study(3, True, change=0.05, blocks=False, shape=shape) for shape in ("line", "hump"))
    assert hump == pytest.approx(line)


def test_what_adjusting_costs_without_drift() -> None:
    """Where a reference sees the deviations of leases it narrows intervals; where it sees none of them it widens them by half."""
    raw, width = study(25, False)
    seen, narrower = study(25, True)
    unseen, wider = study(25, True, own=1.0)
    assert min(raw, seen, unseen) >= 0.89
    assert narrower < width < wider < 1.7 * width


def test_too_few_compositions_say_nothing_and_equal_numbers_no_drift() -> None:
    _, reference = campaign(np.random.default_rng(1))
    few = estimate_drift(reference[reference["lease_id"].isin(reference["lease_id"].unique()[:2])])
    assert not few.is_known
    assert not few.is_significant
    assert not estimate_drift(reference.iloc[:0]).is_known
    assert not estimate_drift(reference.assign(value=7.0)).is_significant


def test_devices_of_other_kinds_have_levels_of_their_own_and_one_trend() -> None:
    _, reference = campaign(np.random.default_rng(1), change=0.05)
    twice = reference["configuration"].isin(["c0", "c1"])
    other = reference.assign(hardware=np.where(twice, "y", "x"), value=np.where(twice, 2.0, 1.0) * reference["value"])
    assert estimate_drift(other).slope == pytest.approx(estimate_drift(reference).slope, rel=0.5)
    assert estimate_drift(other).freedom == estimate_drift(reference).freedom - 1


def test_a_composition_without_the_reference_gets_what_its_neighbours_say() -> None:
    runs, reference = campaign(np.random.default_rng(1), change=0.5)
    gone = reference[reference["lease_id"] != reference["lease_id"].unique()[5]]
    lease = runs["lease_id"] == reference["lease_id"].unique()[5]
    whole, between = adjust_by_reference(runs, reference), adjust_by_reference(runs, gone)
    assert (between.loc[lease, "value"] / whole.loc[lease, "value"]).to_numpy() == pytest.approx(1, abs=0.05)
    assert adjust_by_reference(runs, reference.iloc[:0]).equals(runs)


def test_less_is_better_for_times_and_more_for_rates() -> None:
    runs, reference = campaign(np.random.default_rng(1), change=0.05)
    rates = adjust_by_reference(runs, reference)
    times = adjust_by_reference(
        runs.assign(value=1 / runs["value"]), reference.assign(value=1 / reference["value"]), higher_is_better=False
    )
    assert (rates["value"] * times["value"]).to_numpy() == pytest.approx(1)
