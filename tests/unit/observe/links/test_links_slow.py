"""Which links are called slow: against the system file, against their like, never without a reason."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from campaign.observe.links.document import list_link_kinds
from campaign.observe.links.slow_links import flag_slow_links
from campaign.spec.system_file import Links

SYSTEM = Links.model_validate(
    {"fabric": {"gb_per_s": 12.0}, "network": {"gb_per_s": 0.61}, "local": {"gb_per_s": 36.0}}
)
SIZE = 2**26
TRUE = {"local": 36.0, "fabric": 12.0, "network": 0.61, "fabric + network": 0.61}


def document(
    shape: tuple[tuple[int, int], ...] = ((2, 2), (1, 1)), runs_on: str = "cuda", scale: float = 1.0
) -> dict[str, Any]:
    """Links as a system of these rates would show them, with 5 us of latency."""
    devices = [
        {"name": f"host{host}.gpu{index}", "host": f"host{host}", "attach": "local" if index < local else "fabric"}
        for host, (local, fabric) in enumerate(shape, 1)
        for index in range(local + fabric)
    ]
    ways = list_link_kinds(devices)
    rates = [
        [None if way is None else 1 / (1 / (TRUE[way] * scale) + 1e-5 / (SIZE / 1e9)) for way in row] for row in ways
    ]
    return {
        "runs_on": runs_on,
        "devices": devices,
        "kinds": ways,
        "matrix_size_bytes": SIZE,
        "matrices": {
            "unidirectional_gb_per_s": rates,
            "latency_us": [[None if way is None else 5.0 for way in row] for row in ways],
        },
        "host_device": {
            "h2d_gb_per_s": [12.0 for _ in devices],
            "d2h_gb_per_s": [12.0 for _ in devices],
        },
    }


def slowed(
    of: dict[str, Any], out: int, to: int, share: float, what: str = "unidirectional_gb_per_s"
) -> dict[str, Any]:
    of["matrices"][what][out][to] *= share
    return of


def test_links_as_they_should_be_are_not_mentioned() -> None:
    assert flag_slow_links(document(), SYSTEM, None, 25) == ()


def test_messages_that_are_mostly_latency_call_no_link_slow() -> None:
    for runs_on, scale in (("cuda", None), ("cpu", 1.0)):
        found = slowed(document(runs_on=runs_on), 1, 4, 1e-6) | {"matrix_size_bytes": 8}
        assert not [
            each for each in flag_slow_links(found, SYSTEM, scale, 25) if "to host2" in each or "median" in each
        ]


def test_a_slow_link_is_told_with_its_numbers() -> None:
    (said,) = flag_slow_links(slowed(document(), 1, 4, 0.67), SYSTEM, None, 25)
    assert said == "links: host1.gpu1 to host2.gpu0: 0.409 GB/s, 33 % below the 0.61 GB/s of network links"


def test_the_slowest_link_on_the_way_counts() -> None:
    (said,) = flag_slow_links(slowed(document(), 3, 4, 0.5), SYSTEM, None, 25)
    assert said.endswith("below the 0.61 GB/s of fabric + network links")


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 5), st.integers(0, 5), st.floats(0.05, 1.5), st.floats(1, 90))
def test_a_link_is_flagged_exactly_when_it_is_below_the_tolerance(
    out: int, to: int, share: float, tolerance_pct: float
) -> None:
    if out == to:
        return
    found = document()
    way = found["kinds"][out][to]
    found["matrices"]["unidirectional_gb_per_s"][out][to] = 1 / (1 / (TRUE[way] * share) + 1e-5 / (SIZE / 1e9))
    said = flag_slow_links(found, SYSTEM, None, tolerance_pct)
    if abs(share - (1 - tolerance_pct / 100)) < 1e-6:
        return
    assert len(said) == (share < 1 - tolerance_pct / 100)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 30))
def test_many_slow_links_are_three_and_a_count_the_worst_first(many: int) -> None:
    found = document()
    pairs = [(out, to) for out in range(6) for to in range(6) if out != to][:many]
    for position, (out, to) in enumerate(pairs):
        slowed(found, out, to, 0.5 - 0.01 * position)
    said = flag_slow_links(found, SYSTEM, None, 25)
    assert len(said) == min(many, 4)
    assert all(each.startswith("links: ") for each in said)
    if many > 3:
        assert said[3] == f"links: {many - 3} more are slower than expected"
        worst = [int(each.split(" % below")[0].split()[-1]) for each in said[:3]]
        assert worst == sorted(worst, reverse=True)


def test_without_a_number_in_the_system_file_peers_are_the_measure() -> None:
    nothing = Links()
    assert flag_slow_links(document(), nothing, None, 25) == ()
    (said,) = flag_slow_links(slowed(document(((4, 0),)), 0, 3, 0.5), nothing, None, 25)
    assert said.endswith("below the 36 GB/s of the median local link")
    # Two directions between two devices tell no outlier.
    assert flag_slow_links(slowed(document(((2, 0),)), 0, 1, 0.5), nothing, None, 25) == ()


def test_emulated_links_are_held_against_their_scale() -> None:
    emulated = document(runs_on="cpu", scale=0.01)
    assert flag_slow_links(emulated, SYSTEM, 0.01, 25) == ()
    slow = document(runs_on="cpu", scale=0.005)
    said = "links: median of 12 pairs: 0.06 GB/s, 50 % below the 0.12 GB/s of emulated fabric links"
    assert said in flag_slow_links(slow, SYSTEM, 0.01, 25)
    assert flag_slow_links(slow, SYSTEM, 0.01, 25)[3] == "links: 1 more are slower than expected"
    # One emulated link alone is never slow, whatever a busy machine makes of it.
    assert flag_slow_links(slowed(emulated, 0, 2, 0.3), SYSTEM, 0.01, 25) == ()


def test_emulated_local_links_are_held_against_their_scale_where_the_system_file_gives_their_rate() -> None:
    slow = slowed(slowed(document(runs_on="cpu", scale=0.01), 0, 1, 0.5), 1, 0, 0.5)
    (said,) = flag_slow_links(slow, SYSTEM, 0.01, 25)
    assert said.endswith("50 % below the 0.36 GB/s of emulated local links")
    assert flag_slow_links(slow, SYSTEM.model_copy(update={"local": None}), 0.01, 25) == ()


def test_processes_without_links_have_none_to_be_slow() -> None:
    assert flag_slow_links(slowed(document(runs_on="cpu"), 0, 2, 0.01), SYSTEM, None, 25) == ()


def test_a_latency_far_over_its_peers_is_told() -> None:
    (said,) = flag_slow_links(slowed(document(((4, 0),)), 2, 3, 4.0, "latency_us"), SYSTEM, None, 25)
    assert said == "links: host1.gpu2 to host1.gpu3: 20 us, 4.0 times the 5 us of the median local link"
    assert flag_slow_links(slowed(document(((4, 0),)), 2, 3, 2.9, "latency_us"), SYSTEM, None, 25) == ()


def test_a_size_that_is_too_small_says_nothing_of_bandwidth() -> None:
    found = document(((4, 0),))
    found["matrix_size_bytes"] = 4096
    for row in found["matrices"]["unidirectional_gb_per_s"]:
        row[:] = [value and 4096 / 12e-6 / 1e9 for value in row]
    assert flag_slow_links(found, SYSTEM, None, 25) == ()


def test_the_way_between_a_host_and_its_fabric_device_is_looked_at() -> None:
    found = document(((1, 1),))
    found["host_device"]["h2d_gb_per_s"][1] = 3.0
    (said,) = flag_slow_links(found, SYSTEM, None, 25)
    assert said == "links: host1 to host1.gpu1: 3 GB/s, 75 % below the 12 GB/s of fabric links"


@pytest.mark.parametrize("gone", ["matrices", "host_device"])
def test_what_was_not_measured_is_not_judged(gone: str) -> None:
    assert flag_slow_links({**document(), gone: None}, SYSTEM, None, 25) == ()
