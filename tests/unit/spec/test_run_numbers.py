"""Numbers of runs: they say the composition, and neither more compositions nor more repetitions change them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from campaign.spec.cell import Settings
from campaign.spec.run_numbers import (
    MAX_RUNS_PER_COMPOSITION,
    compute_run_number,
    get_composition_number,
    get_number_in_composition,
    list_run_numbers,
)

SIZES = st.integers(1, MAX_RUNS_PER_COMPOSITION)


@given(SIZES, SIZES)
def test_a_number_says_the_composition_and_the_run_in_it(composition: int, number: int) -> None:
    run = compute_run_number(composition, number)
    assert (get_composition_number(run), get_number_in_composition(run)) == (composition, number)
    assert len(str(run)) <= 6


def test_runs_of_one_composition_are_numbered_as_they_always_were() -> None:
    assert list_run_numbers(Settings(repetitions=4, compositions=1)) == (1, 2, 3, 4)


def test_repetitions_take_turns_over_the_compositions() -> None:
    assert list_run_numbers(Settings(repetitions=5, compositions=3)) == (1, 1001, 2001, 2, 1002)
    assert list_run_numbers(Settings(repetitions=2, compositions=3)) == (1, 1001)


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 12))
def test_more_repetitions_come_after_those_that_are_there(fewer: int, more: int, compositions: int) -> None:
    long = list_run_numbers(Settings(repetitions=fewer + more, compositions=compositions))
    assert long[:fewer] == list_run_numbers(Settings(repetitions=fewer, compositions=compositions))
    assert len(set(long)) == fewer + more


@pytest.mark.parametrize(
    ("composition", "number"), [(0, 1), (1, 0), (MAX_RUNS_PER_COMPOSITION + 1, 1), (1, MAX_RUNS_PER_COMPOSITION + 1)]
)
def test_there_is_no_number_out_of_range(composition: int, number: int) -> None:
    with pytest.raises(ValueError, match="between 1 and 999"):
        compute_run_number(composition, number)
