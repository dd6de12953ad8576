"""The rule that ends a warm-up, against planted warm-up curves, steady runs and outliers."""

from __future__ import annotations

import ast
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from campaign.workloads import steady_warmup
from campaign.workloads.steady_warmup import (
    GIVEN_UP,
    STEADY,
    chunk_steps,
    decide_next_steps,
    extend_warmup,
    has_trend,
    min_warmup_steps,
)

RUNS = 150
CHUNK = 10
MOST = 400


class Program:
    """A program whose steps of 10 ms take excess_pct longer when it starts, e times less every `decay` steps."""

    def __init__(
        self, seed: int, excess_pct: float = 0.0, decay: float = 1.0, noise_pct: float = 1.0, outliers: float = 0.0
    ) -> None:
        draw = np.random.default_rng(seed)
        steps = np.arange(2 * MOST)
        noise = np.exp(draw.normal(0, noise_pct / 100, steps.size))
        slow = np.where(draw.random(steps.size) < outliers, 1.5, 1.0)
        self.excess_pct = excess_pct * np.exp(-steps / decay)
        self._times_s = (0.01 * (1 + self.excess_pct / 100) * noise * slow).tolist()
        self.made = 0

    def take(self, steps: int) -> list[float]:
        self.made += steps
        return list(self._times_s[self.made - steps : self.made])

    def warm_up(self, most: int = MOST) -> bool:
        return extend_warmup(self.take(CHUNK), self.take, CHUNK, most)


@pytest.mark.parametrize(("noise_pct", "outliers"), [(0.0, 0.0), (0.5, 0.0), (2.0, 0.0), (10.0, 0.0), (1.0, 0.05)])
def test_a_steady_program_ends_as_soon_as_it_can_be_seen(noise_pct: float, outliers: float) -> None:
    made = []
    for seed in range(RUNS):
        program = Program(seed, noise_pct=noise_pct, outliers=outliers)
        assert program.warm_up()
        made.append(program.made)
    assert min(made) == min_warmup_steps(CHUNK)
    assert np.mean(made) <= 1.15 * min_warmup_steps(CHUNK)


@pytest.mark.parametrize("outliers", [0.0, 0.05])
@pytest.mark.parametrize("noise_pct", [0.5, 2.0])
@pytest.mark.parametrize(("excess_pct", "decay"), [(30, 5), (30, 20), (100, 30), (10, 50), (-20, 20)])
def test_a_warm_up_ends_when_little_is_left_of_its_curve(
    excess_pct: float, decay: float, noise_pct: float, outliers: float
) -> None:
    left = []
    for seed in range(RUNS):
        program = Program(seed, excess_pct, decay, noise_pct, outliers)
        assert program.warm_up()
        left.append(abs(program.excess_pct[program.made]))
    assert np.quantile(left, 0.9) <= 2.5
    assert np.quantile(left, 0.9) <= 0.5 * abs(program.excess_pct[CHUNK])  # what the window would begin with


def test_what_is_never_steady_ends_with_the_most_and_says_so() -> None:
    program = Program(1, excess_pct=500, decay=200, noise_pct=1.0)
    assert not program.warm_up(most=137)
    assert program.made == 137


def test_noise_as_large_as_the_trend_ends_a_warm_up_too() -> None:
    made = []
    for seed in range(RUNS):
        program = Program(seed, excess_pct=5, decay=200, noise_pct=10)
        program.warm_up()
        made.append(program.made)
    assert np.quantile(made, 0.9) < MOST


@pytest.mark.parametrize(("warmup_steps", "chunk"), [(0, 4), (3, 4), (4, 4), (20, 20)])
def test_chunks_are_as_long_as_the_warm_up_or_long_enough_to_see_anything(warmup_steps: int, chunk: int) -> None:
    assert (chunk_steps(warmup_steps), min_warmup_steps(warmup_steps)) == (chunk, 5 * chunk)
    assert decide_next_steps([], warmup_steps, 1000) == chunk
    assert decide_next_steps([1.0] * min_warmup_steps(warmup_steps), warmup_steps, 1000) == STEADY


def test_the_last_chunk_is_cut_at_the_most() -> None:
    rising = [float(step) for step in range(1, 28)]
    assert decide_next_steps(rising, 5, 30) == 3
    assert decide_next_steps([*rising, 28.0, 29.0, 30.0], 5, 30) == GIVEN_UP


def test_every_rank_follows_the_first_one() -> None:
    first, second = Program(1, excess_pct=30, decay=20), Program(2)
    decisions: list[int] = []

    def noted(decision: int) -> int:
        decisions.append(decision)
        return decision

    steady = extend_warmup(first.take(CHUNK), first.take, CHUNK, MOST, noted)
    told = iter(decisions)
    assert extend_warmup(second.take(CHUNK), second.take, CHUNK, 50, lambda _: next(told)) == steady
    assert (next(told, None), second.made) == (None, first.made)


@pytest.mark.parametrize(
    ("times", "trend"),
    [([1.0] * 20, False), ([1.0, 2.0] * 10, False), ([*[2.0] * 10, *[1.0] * 10], True), ([1e3, *[1.0] * 19], False)],
)
def test_equal_times_and_a_first_step_that_is_long_are_no_trend(times: Sequence[float], trend: bool) -> None:
    assert has_trend(times) is trend


def test_programs_can_load_the_rule_without_the_package() -> None:
    tree = ast.parse(Path(steady_warmup.__file__).read_text())
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    imported |= {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    assert {str(name).partition(".")[0] for name in imported} <= sys.stdlib_module_names
