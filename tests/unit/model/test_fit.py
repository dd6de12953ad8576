"""What is learned from steps of a planted truth."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from campaign.model.description import ComputeTime, Network, NetworkLayer, StepCase
from campaign.model.fit import ObservedStep, Posterior, fit
from campaign.model.parameters import DEFAULTS, Draws, Floats, UncertainNumber, at
from campaign.model.simulation import simulate
from tests.unit.model.step_cases import MB, topology

NETWORK = Network(tuple(NetworkLayer((4 * MB,), 1.0, 2.0) for _ in range(6)))
KEY = "device fp32"
PRIOR = {
    **DEFAULTS,
    **{f"rate[{kind}]": UncertainNumber.about(8e9, 3, "byte/s", "") for kind in ("local", "fabric", "network")},
    f"compute[{KEY}]": UncertainNumber.about(1.0, 3, "1", ""),
    f"start[{KEY}]": UncertainNumber(0.02, 0.5, "1", "", "share"),
}
SHAPES = [(1, 1), (1, 2), (1, 4), (1, 8), (1, 0, 4), (1, 0, 8), (1, 4, 4), (2, 2), (4, 1)]
UNSEEN = [(1, 6), (1, 0, 6), (2, 4), (4, 2)]


def cases(shapes: list[tuple[int, ...]], batches: tuple[int, ...] = (4, 8, 16)) -> list[StepCase]:
    compute = (ComputeTime(KEY, {8: 0.05}),)
    return [StepCase(NETWORK, compute, batch, "fp32", topology(*shape)) for shape in shapes for batch in batches]


def truth(seed: int) -> Draws:
    return at(PRIOR, 0.8 * np.random.default_rng(seed).standard_normal((1, len(PRIOR))))


def observed(draws: Draws, of: list[StepCase], sd: float, seed: int = 0) -> list[ObservedStep]:
    noise = np.exp(sd * np.random.default_rng(seed).standard_normal(len(of)))
    return [
        ObservedStep(each, float(simulate(each, draws).step_s[0] * factor), sd)
        for each, factor in zip(of, noise, strict=True)
    ]


def fitted(seed: int, sd: float = 0.005) -> tuple[Draws, Posterior]:
    planted = truth(seed)
    return planted, fit(observed(planted, cases(SHAPES), sd, seed), PRIOR, count=300)


def relative(posterior: Posterior, planted: Draws, shapes: list[tuple[int, ...]]) -> Floats:
    """[cell][median, low, high] of predictions, over the truth."""
    return np.array(
        [
            np.array(posterior.interval(simulate(each, posterior.draws).step_s)) / simulate(each, planted).step_s[0]
            for each in cases(shapes)
        ]
    )


def test_unseen_shapes_are_predicted_and_their_intervals_hold() -> None:
    found = np.concatenate([relative(posterior, planted, UNSEEN) for planted, posterior in map(fitted, range(5))])
    assert np.median(np.abs(found[:, 0] - 1)) < 0.005
    assert np.abs(found[:, 0] - 1).max() < 0.06
    inside = np.mean((found[:, 1] <= 1) & (found[:, 2] >= 1))
    assert 0.65 <= inside <= 0.95  # of 80 %, over 60 predictions


def test_what_is_measured_is_learned_and_what_is_not_keeps_its_prior() -> None:
    planted, posterior = fitted(1)
    _, low, high = posterior.interval(posterior.draws.of("compute", KEY))
    assert low * 0.99 < float(planted.of("compute", KEY)[0]) < high * 1.01
    assert high / low < 1.1
    memory = posterior.draws.of("context")
    assert np.quantile(memory, [0.1, 0.9]) == pytest.approx([600, 1800], rel=0.25)
    assert posterior.effective > 100
    assert posterior.misfit < 0.01


def test_the_model_being_off_is_found() -> None:
    planted = truth(2)
    of = cases(SHAPES)
    odd = np.exp(0.04 * np.random.default_rng(5).standard_normal(len(of)))
    seen = [
        dataclasses.replace(each, step_s=each.step_s * factor)
        for each, factor in zip(observed(planted, of, 0.002), odd, strict=True)
    ]
    assert fit(seen, PRIOR, count=200).misfit == pytest.approx(0.04, rel=0.5)


def test_without_steps_the_posterior_is_the_prior() -> None:
    posterior = fit([], PRIOR, count=2000)
    assert np.quantile(posterior.draws.of("rate", "local"), [0.1, 0.9]) == pytest.approx([8e9 / 3, 24e9], rel=0.15)


def test_a_fit_begins_where_another_ended() -> None:
    planted, posterior = fitted(3)
    again = fit(observed(planted, cases(SHAPES), 0.005, 3)[1:], PRIOR, count=100, start=posterior.mode)
    assert np.median(np.abs(again.fitted_s / posterior.fitted_s[1:] - 1)) < 0.003
