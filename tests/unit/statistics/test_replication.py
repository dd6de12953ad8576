"""What a choice of compositions, runs and steps is said to find is what simulated campaigns find."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import stdtr

from campaign.statistics.replication import Spread, best, cheapest_by_compositions, design

CAMPAIGNS = 4000


def found(spread: Spread, configurations: int, k: int, r: int, s: int, difference_pct: float, seed: int = 1) -> float:
    """Share of simulated campaigns that find a planted difference, by complete blocks and Bonferroni."""
    draw = np.random.default_rng(seed)
    shape = (CAMPAIGNS, configurations, k)
    sd = np.sqrt(spread.composition_pct**2 + (spread.run_pct**2 + spread.step_pct**2 / s) / r) / 100
    means = draw.normal(0, sd, shape) + draw.normal(0, 0.05, (CAMPAIGNS, 1, k))
    means[:, 1] += np.log1p(difference_pct / 100)
    blocks = means - means.mean(axis=1, keepdims=True)
    rest = blocks - blocks.mean(axis=2, keepdims=True)
    freedom = (k - 1) * (configurations - 1)
    error = np.sqrt(2 * (rest**2).sum(axis=(1, 2)) / freedom / k)
    t = (means[:, 1] - means[:, 0]).mean(axis=1) / error
    return float((2 * stdtr(freedom, -np.abs(t)) <= 0.05 / (configurations - 1)).mean())


@pytest.mark.parametrize(
    ("configurations", "k", "r", "s"), [(2, 3, 1, 20), (4, 3, 2, 20), (4, 5, 1, 5), (12, 2, 2, 20)]
)
def test_the_detectable_difference_is_found_in_80_of_100_campaigns(configurations: int, k: int, r: int, s: int) -> None:
    spread = Spread(1.0, 0.5, 4.0, "planted")
    said = design(spread, configurations, k, r, s, 1.0).detectable_pct
    assert found(spread, configurations, k, r, s, said) == pytest.approx(0.8, abs=0.03)


def test_one_composition_finds_nothing() -> None:
    assert design(Spread(1.0, 1.0, 1.0, ""), 4, 1, 50, 1000, 1.0).detectable_pct == np.inf


def hours(compose_s: float, run_s: float, step_s: float):  # type: ignore[no-untyped-def]
    return lambda k, r, s: k * (compose_s + r * (run_s + s * step_s)) / 3600


def test_where_composing_is_dear_runs_are_repeated_and_where_it_is_cheap_compositions() -> None:
    spread = Spread(0.5, 2.0, 5.0, "planted")
    dear = best(cheapest_by_compositions(spread, 3.0, 4, 20, hours(600, 10, 0.1)))
    cheap = best(cheapest_by_compositions(spread, 3.0, 4, 20, hours(1, 10, 0.1)))
    assert dear is not None
    assert cheap is not None
    assert dear.compositions < cheap.compositions
    assert dear.runs > cheap.runs


def test_every_alternative_finds_the_difference_and_the_best_is_the_cheapest_of_them() -> None:
    spread = Spread(1.0, 1.0, 5.0, "planted")
    designs = list(cheapest_by_compositions(spread, 3.0, 4, 20, hours(60, 10, 0.1)))
    assert [each.compositions for each in designs] == sorted({each.compositions for each in designs})
    assert all(each.detectable_pct <= 3.0 for each in designs)
    chosen = best(designs)
    assert chosen is not None
    assert chosen.device_hours == min(each.device_hours for each in designs)
    assert best(cheapest_by_compositions(Spread(30.0, 1.0, 1.0, ""), 0.1, 4, 20, hours(1, 1, 1))) is None
