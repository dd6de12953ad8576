"""Parameters: their distributions, and draws that cells share."""

from __future__ import annotations

import numpy as np
import pytest

from campaign.model.parameters import DEFAULTS, EMULATED, UncertainNumber, at, medians, sample, standard


@pytest.mark.parametrize("name", DEFAULTS)
def test_the_interval_of_a_parameter_holds_80_percent_of_its_draws(name: str) -> None:
    each = DEFAULTS[name]
    values = sample(DEFAULTS, 20_000).of(name)
    assert each.unit
    assert each.source
    if each.exact:
        assert set(values) == {each.low}
        return
    assert np.quantile(values, [0.1, 0.9]) == pytest.approx([each.low, each.high], rel=0.06)
    assert np.median(values) == pytest.approx(each.median, rel=0.05)


def test_a_share_stays_between_0_and_1_and_a_factor_above_0() -> None:
    wide = np.linspace(-9, 9, 19)
    share = UncertainNumber(0.01, 0.9, "1", "", "share").at(wide)
    assert share.min() > 0
    assert share.max() < 1
    assert UncertainNumber.about(3.0, 10.0, "s", "").at(wide).min() > 0


@pytest.mark.parametrize(("low", "high", "scale"), [(0.0, 1.0, "log"), (0.1, 1.0, "share"), (2.0, 1.0, "linear")])
def test_what_is_no_interval_is_refused(low: float, high: float, scale: str) -> None:
    with pytest.raises(ValueError, match=f"no 80 % interval of a {scale} parameter"):
        UncertainNumber(low, high, "s", "", scale)  # type: ignore[arg-type]


def test_draws_of_a_parameter_are_the_same_beside_others() -> None:
    few = {"bus": DEFAULTS["bus"]}
    assert np.array_equal(sample(few, 50).of("bus"), sample(DEFAULTS, 50).of("bus"))
    assert not np.array_equal(sample(few, 50, seed=1).of("bus"), sample(few, 50).of("bus"))


def test_a_parameter_of_one_kind_comes_before_that_of_all() -> None:
    draws = medians(DEFAULTS)
    assert draws.of("latency", "network") > draws.of("latency", "local")
    assert draws.has("latency", "local")
    assert not draws.has("read", "local")
    with pytest.raises(KeyError):
        draws.of("read", "local")


def test_emulated_parameters_replace_defaults() -> None:
    assert EMULATED.keys() <= DEFAULTS.keys()


def test_values_are_functions_of_standard_normal_variables() -> None:
    z = standard(DEFAULTS, 5)
    assert np.array_equal(at(DEFAULTS, z).of("fixed"), sample(DEFAULTS, 5).of("fixed"))
    assert len(sample(DEFAULTS, 7).take([1, 3])) == 2
