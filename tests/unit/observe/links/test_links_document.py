"""What becomes of the ranks' times: directions, medians, the slowest rank, and what a lost rank leaves open."""

from __future__ import annotations

from dataclasses import replace

import pytest

from campaign.observe.links.document import LinksDocument, build_measurements
from campaign.observe.links.external_tools import list_invocations
from campaign.observe.links.lease_links import describe_devices
from campaign.observe.links.spec import CollectiveTimes, LinkSpec, PairTimes, RankLinks
from campaign.spec.hardware import Composition
from tests.unit.run.launch.compositions import composition

SPEC = LinkSpec(
    hosts=("host1", "host1"), sizes_bytes=(11, 8), repeats=3, warmup=0, budget_s=1.0, device="cpu", time_out_s=9.0
)
SIZE = 10**9
DEVICES = describe_devices(composition((2, 0)))


def times(peer: int, *seconds: float) -> tuple[PairTimes, ...]:
    return (PairTimes(peer=peer, size_bytes=SIZE, times_s=seconds),)


ZERO = RankLinks(
    rank=0,
    world_size=2,
    latency=(PairTimes(peer=1, size_bytes=8, times_s=(1e-6, 3e-6, 90e-6)),),
    unidirectional=times(1, 1.0, 0.5, 9.0),
    bidirectional=times(1, 4.0),
    allreduce=(CollectiveTimes(size_bytes=SIZE, times_s=(1.0, 2.0, 3.0)),),
    p2p={1: True},
)
ONE = RankLinks(
    rank=1,
    world_size=2,
    latency=(PairTimes(peer=0, size_bytes=8, times_s=(7e-6,)),),
    unidirectional=times(0, 4.0),
    allreduce=(CollectiveTimes(size_bytes=SIZE, times_s=(5.0, 1.0, 1.0)),),
)


def document(*ranks: RankLinks | None) -> LinksDocument:
    return LinksDocument(**build_measurements(SPEC, DEVICES, ranks))


def test_a_row_sends_and_a_column_receives() -> None:
    found = document(ZERO, ONE).matrices
    assert found is not None
    assert found.unidirectional_gb_per_s == ((None, 1.0), (0.25, None))
    assert found.latency_us == ((None, 3.0), (7.0, None))
    assert found.p2p == ((None, True), (None, None))


def test_both_ways_is_the_sum_of_both_directions() -> None:
    found = document(ZERO, ONE).matrices
    assert found is not None
    assert found.bidirectional_gb_per_s == ((None, 0.5), (0.5, None))


def test_an_all_reduce_takes_as_long_as_its_slowest_rank() -> None:
    found = document(ZERO, ONE).allreduce
    assert found is not None
    # Of each repeat the slower: 5, 2 and 3 s.
    assert found.time_s == (3.0,)
    assert found.busbw_gb_per_s == (pytest.approx(1 / 3, rel=1e-5),)


def test_a_lost_rank_leaves_open_what_only_it_knew() -> None:
    found = document(ZERO, None)
    assert found.matrices is not None
    assert found.matrices.unidirectional_gb_per_s == ((None, 1.0), (None, None))
    assert found.allreduce is None
    assert document(None, None).matrices is None


def test_sizes_are_whole_numbers_in_order() -> None:
    assert SPEC.sizes_bytes == (8,)


def test_devices_are_in_the_order_of_their_ranks() -> None:
    (host,) = composition((1, 2)).hosts
    behind_first = Composition((replace(host, devices=host.devices[::-1]),))
    assert [each.attach for each in describe_devices(behind_first)] == ["local", "fabric", "fabric"]


def test_programs_are_started_on_the_hosts_that_they_can_know() -> None:
    two = {"a": 2, "b": 1}
    assert [(each.subject, dict(each.ranks_by_host)) for each in list_invocations("nvbandwidth", two, 64)] == [
        ("a", {"a": 2}),
        ("b", {"b": 1}),
    ]
    (alone,) = list_invocations("nccl-tests", {"a": 2}, 64)
    assert alone.argv == ("all_reduce_perf", "-b", "8", "-e", "64", "-f", "2", "-g", "2")
    (both,) = list_invocations("nccl-tests", two, 64)
    assert both.argv[:5] == ("mpirun", "-np", "3", "--host", "a:2,b:1")
    assert [each.argv[-1] for each in list_invocations("osu", two, 64)] == ["osu_bw", "osu_bibw", "osu_latency"]
    assert next(iter(list_invocations("osu", two, 64))).argv[:5] == ("mpirun", "-np", "2", "--host", "a:1,b:1")
