"""Composing is forecast from recorded times of its operations, and the interval holds on recordings that were kept back."""

from dataclasses import replace
from random import Random
from statistics import fmean

import numpy as np
import pytest

from campaign.documents.operation_times import OperationTimes, Session, Timed, published_times
from campaign.fabrics.operations import Operations
from campaign.plan.cost.composing import ComposingTimes
from campaign.plan.cost.draws import estimates
from tests.benchmarks.composing import (
    coverage,
    left_out,
    median_error,
    recompositions,
    split,
    windows,
    without_reads,
)

H3 = published_times("h3")


def forecast(operations, times, now=()):
    (told,) = estimates(ComposingTimes(times, now=now).time(operations)[None])
    return told


def moves(count, box=""):
    return Operations({("detach", "gpu", box): count, ("attach", "gpu", box): count})


def attaches(*seconds, box="", device="gpu"):
    return [Timed("attach", device, box, "", each) for each in seconds]


def recorded(*sessions):
    return OperationTimes("x", "here", "", tuple(Session(str(n), tuple(each)) for n, each in enumerate(sessions)))


@pytest.mark.parametrize("cases", [recompositions, windows])
@pytest.mark.parametrize("part", [without_reads, lambda session: session], ids=["moves", "everything"])
@pytest.mark.parametrize("history", [False, True], ids=["unseen", "in the session"])
def test_the_interval_holds_on_sessions_that_were_left_out(cases, part, history):
    times = replace(H3, sessions=tuple(map(part, H3.sessions)))
    found = left_out(times, cases, history=history)
    assert len(found) >= 60
    assert 0.91 <= coverage(found) <= 0.99
    assert median_error(found) <= (0.055 if history else 0.09)


def test_the_interval_holds_for_random_thirds_of_the_recordings():
    random = Random(1)
    draws = [split(H3, recompositions, random, history=False) for _ in range(30)]
    assert 0.91 <= fmean(map(coverage, draws)) <= 0.99
    assert fmean(map(median_error, draws)) <= 0.1


def test_a_move_of_a_falcon():
    told = forecast(moves(1), H3)
    assert told.expected_s == pytest.approx(21.5, abs=1)
    assert 10 < told.low_s < 15  # some boxes attach in 9 s, most in 15 s
    assert 24 < told.high_s < 28
    assert "KubeComp" in ComposingTimes(H3).basis


def test_what_a_session_showed_moves_the_forecast_and_narrows_it():
    before = forecast(moves(4, "1"), H3)
    fast = [Timed("detach", "gpu", "1", "", 6.5), Timed("attach", "gpu", "1", "true", 9.0)] * 6
    after = forecast(moves(4, "1"), H3, fast)
    assert after.expected_s == pytest.approx(4 * 15.5, rel=0.1)
    assert after.high_s - after.low_s < 0.7 * (before.high_s - before.low_s)
    other_box = forecast(moves(4, "0"), H3, fast)
    assert after.expected_s < other_box.expected_s < before.expected_s


def test_what_was_never_timed_is_unknown():
    assert forecast(Operations({("attach", "nvme", ""): 1}), H3).expected_s is None
    assert forecast(moves(1), None).expected_s is None
    assert forecast(Operations(), H3).high_s == 0


def test_one_session_has_no_interval_for_another_and_one_for_itself():
    one = recorded(attaches(4.0, 5.0, 6.0))
    operations = Operations({("attach", "gpu", ""): 2})
    assert forecast(operations, one).expected_s == pytest.approx(10, rel=0.01)
    assert forecast(operations, one).low_s is None
    several = forecast(
        Operations({("attach", "gpu", ""): 2, ("rest", "", ""): 1}),
        recorded(attaches(4.0, 5.0), [*attaches(5.0, 6.0), Timed("rest", "", "", "", 1.0)], attaches(4.5)),
    )
    assert several.low_s < 10 < several.expected_s < several.high_s  # what has one session differs like the others
    here = forecast(operations, None, attaches(4.0, 5.0, 6.0))
    assert here.low_s < 10 < here.high_s


def test_a_strange_session_does_not_move_the_mean():
    usual = [attaches(*(10 + shift + n / 10 for n in range(4))) for shift in (-0.2, -0.1, 0, 0.1, 0.2, 0.3)]
    operations = Operations({("attach", "gpu", ""): 1})
    without, strange = forecast(operations, recorded(*usual)), forecast(operations, recorded(*usual, attaches(30, 31)))
    assert strange.expected_s == pytest.approx(without.expected_s, rel=0.05)
    assert strange.high_s > without.high_s


def test_times_that_are_all_equal_are_known_to_a_millisecond():
    equal = recorded(*[attaches(2.0, 2.0)] * 3)
    with np.errstate(all="raise"):
        told = forecast(Operations({("attach", "gpu", ""): 1}), equal, attaches(2.0, 2.0, 2.0))
    assert told.low_s == pytest.approx(2.0, abs=0.01)
    assert told.high_s == pytest.approx(2.0, abs=0.01)
