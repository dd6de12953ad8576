"""The model of a step beside public tables: rows that calibrated it, and rows that it never saw."""

from __future__ import annotations

from functools import cache

from tests.public_rows import Errors, Row, held_out, rows
from tests.throughput_ratios import RatioErrors, of_rows


@cache
def known() -> tuple[Row, ...]:
    return tuple(rows())


def test_rows_that_were_not_used_are_predicted() -> None:
    errors = Errors.of(held_out(list(known())))
    assert errors.count > 60
    assert errors.mean <= 0.08
    assert abs(errors.bias) <= 0.02


def test_ratios_between_compositions_are_predicted() -> None:
    errors = of_rows(known())
    assert len(errors.off) > 100
    assert errors.pct(0.5) <= 5
    assert errors.pct(0.9) <= 15


def test_every_two_compositions_of_a_program_have_a_ratio() -> None:
    errors = RatioErrors.of([[1.0, 1.1, 0.9], [1.0], [2.0, 2.0]])
    assert sorted(round(each, 4) for each in errors.off) == [0.0, 0.1, 0.1, 0.1818]


def test_intervals_hold_what_they_say() -> None:
    assert 0.7 <= Errors.of(held_out(list(known()))).covered <= 0.9


def test_eight_rows_calibrate_and_none_of_them_is_held_out() -> None:
    numbers = {
        use: [(*_named(row), row.gpus) for row in held_out(list(known()), use)] for use in ("calibrate", "hold_out")
    }
    assert len(numbers["calibrate"]) == 8
    assert not set(numbers["calibrate"]) & set(numbers["hold_out"])


def test_every_row_has_a_source_and_a_number_that_is_printed_well_enough() -> None:
    assert all(row.document["source"] for row in known())
    for row in known():
        one = str(row.document["one"])
        last = 10.0 ** -len(one.partition(".")[2])
        assert last / 2 / float(one) <= 0.012, one


def _named(row: Row) -> tuple[object, ...]:
    return tuple(row.document[key] for key in ("model", "system", "program", "precision", "batch", "one"))
