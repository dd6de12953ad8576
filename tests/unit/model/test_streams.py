"""The lockstep of streams, by hand and against a simulation that goes from event to event."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from campaign.model.parameters import Floats
from campaign.model.streams import COLLECTIVES, COMPUTE, OTHER_COLLECTIVES, Program, run


def seconds(*values: float) -> Floats:
    return np.array(values, dtype=np.float64)


def test_compute_and_a_collective_that_it_hides() -> None:
    program = Program()
    first = program.add(COMPUTE, seconds(2, 2))
    program.add(COLLECTIVES, seconds(3, 3), first)
    program.add(COMPUTE, seconds(4, 4))
    found = run(program, seconds(0, 0.5))
    # With the slow-down, 3 s of the second half take 3 s of work away from 2: 4 s of work are 2 done in 3 s, and 2 after it.
    assert found.end_s == pytest.approx([6, 7])
    assert found.compute_s == pytest.approx([6, 7])
    assert found.collectives_s == pytest.approx([3, 3])


def test_collectives_of_two_streams_share_links() -> None:
    program = Program()
    program.add(COLLECTIVES, seconds(2))
    program.add(OTHER_COLLECTIVES, seconds(3))
    # 2 s each are done at 4; the rest of the second one takes 1.
    assert run(program, seconds(0)).end_s == pytest.approx([5])


def test_an_operation_waits_for_all_that_it_names() -> None:
    program = Program()
    one, other = program.add(COMPUTE, seconds(1, 5)), program.add(COLLECTIVES, seconds(4, 2))
    program.add(OTHER_COLLECTIVES, seconds(1, 1), one, other)
    assert run(program, seconds(0, 0)).end_s == pytest.approx([5, 6])


def stepwise(program: Program, slowdown: float, draw: int) -> float:
    """The end by looking at every event of one draw in turn."""
    left = [float(each[draw]) for each in program.seconds]
    over: set[int] = set()
    now = 0.0
    while len(over) < len(left):
        active = {}
        for stream in range(3):
            own = [n for n, each in enumerate(program.streams) if each == stream and n not in over]
            if own:
                needs = program.waits[own[0]]
                done = [sum(program.streams[n] == other for n in over) for other in range(3)]
                if all(d >= n for d, n in zip(done, needs, strict=True)):
                    active[stream] = own[0]
        talking = [stream for stream in active if stream != COMPUTE]
        rates = {s: (1 / (1 + slowdown) if talking else 1.0) if s == COMPUTE else 1 / len(talking) for s in active}
        step = min(left[n] / rates[s] for s, n in active.items())
        now += step
        for stream, number in active.items():
            left[number] -= step * rates[stream]
            if left[number] < 1e-9:
                over.add(number)
    return now


@st.composite
def programs(draw: st.DrawFn) -> Program:
    program = Program()
    for number in range(draw(st.integers(1, 12))):
        after = draw(st.lists(st.integers(0, number - 1), max_size=2)) if number else []
        lengths = draw(st.lists(st.floats(0.01, 5), min_size=3, max_size=3))
        program.add(draw(st.sampled_from((COMPUTE, COLLECTIVES, OTHER_COLLECTIVES))), seconds(*lengths), *after)
    return program


@given(programs(), st.floats(0, 1))
def test_the_lockstep_of_draws_is_that_of_events(program: Program, slowdown: float) -> None:
    found = run(program, np.full(3, slowdown)).end_s
    assert found == pytest.approx([stepwise(program, slowdown, draw) for draw in range(3)])
