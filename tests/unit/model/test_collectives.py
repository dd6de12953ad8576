"""Collectives over a topology, by hand."""

from __future__ import annotations

import pytest

from campaign.model.collectives import Collectives
from campaign.model.description import RankPlace, Topology
from campaign.model.parameters import DEFAULTS, medians
from tests.unit.model.step_cases import lossless, topology

S = 8e9


def collectives(at: Topology, groups: tuple[tuple[int, ...], ...] | None = None, **values: float) -> Collectives:
    return Collectives.of(at, groups or (tuple(range(len(at.ranks))),), medians(lossless(**values)))


def test_a_ring_sends_twice_all_but_an_nth() -> None:
    found = collectives(topology(local=4), rate_local=1e9, latency=1e-3, launch=1e-2)
    assert found.all_reduce(S)[0] == pytest.approx(2 * 3 / 4 * 8 + 6e-3 + 1e-2)
    assert found.sent == pytest.approx(1.5 * S)
    # Every hop leaves a port and enters one: 4(n-1)S over all ports.
    assert found.carried["local"][0] == pytest.approx(4 * 3 * S)


def test_a_gather_sends_half_of_it_and_a_broadcast_all() -> None:
    found = collectives(topology(local=4), rate_local=1e9)
    assert found.gather(S)[0] == pytest.approx(3 / 4 * 8)
    assert found.pass_along(S)[0] == pytest.approx(8)
    assert found.sent == pytest.approx(1.5 * S)


def test_broadcasts_of_gloo_are_trees_one_after_the_other() -> None:
    found = collectives(topology(local=4), rate_local=1e9, latency=1e-3)
    # Each of four sends its quarter twice before the next one begins.
    assert found.broadcasts(S)[0] == pytest.approx(2 * 8 + 4 * 2e-3)
    assert found.sent == pytest.approx(3 / 4 * S)


def test_the_slowest_kind_of_link_counts_wherever_it_stands() -> None:
    rates = {"rate_local": 4e9, "rate_fabric": 1e9}
    fabric, hybrid = (
        collectives(topology(local=at[0], fabric=at[1]), **rates).all_reduce(S)[0] for at in ((0, 4), (2, 2))
    )
    assert hybrid == pytest.approx(fabric)
    # A hop between both kinds may be slower than either.
    mixed = collectives(topology(local=2, fabric=2), **rates, rate_mixed=0.5e9).all_reduce(S)[0]
    assert mixed == pytest.approx(2 * fabric)


def test_without_peer_to_peer_hops_of_fabric_devices_share_the_uplink() -> None:
    rates = {"rate_fabric": 4e9, "rate_uplink": 4e9}
    direct = collectives(topology(local=0, fabric=4), **rates).all_reduce(S)[0]
    by_host = collectives(topology(local=0, fabric=4, p2p=False), **rates).all_reduce(S)[0]
    assert by_host == pytest.approx(4 * direct)


def test_switches_of_a_host_are_joined_by_a_bridge() -> None:
    ranks = tuple(RankPlace(0, switch=place // 2) for place in range(4))
    found = collectives(Topology(ranks), rate_local=4e9, rate_bridge=1e9)
    assert found.all_reduce(S)[0] == pytest.approx(1.5 * 8)
    assert found.carried["bridge"][0] == pytest.approx(4 * 1.5 * S)


def test_between_two_hosts_a_tree_sends_as_much_as_there_is() -> None:
    at = topology(hosts=2, local=4)
    found = collectives(at, rate_local=100e9, rate_network=1e9)
    assert found.all_reduce(S)[0] == pytest.approx(8, rel=1e-3)
    assert found.carried["network"][0] == pytest.approx(4 * S)
    ring = topology(hosts=2, local=4, algorithm="ring")
    assert collectives(ring, rate_local=100e9, rate_network=1e9).all_reduce(S)[0] == pytest.approx(2 * 7 / 8 * 8)


def test_between_four_hosts_a_ring_sends_less_than_a_tree() -> None:
    found = collectives(topology(hosts=4, local=1), rate_local=100e9, rate_network=1e9)
    assert found.all_reduce(S)[0] == pytest.approx(1.5 * 8)


def test_a_tree_has_fewer_messages() -> None:
    at, slow = topology(hosts=8, local=1), {"rate_local": 1e15, "rate_network": 1e15, "latency_network": 1.0}
    assert collectives(at, **slow).all_reduce(1.0)[0] == pytest.approx(2 * 3)
    ring = topology(hosts=8, local=1, algorithm="ring")
    assert collectives(ring, **slow).all_reduce(1.0)[0] == pytest.approx(2 * 7)


def test_groups_that_communicate_at_the_same_time_share_a_nic() -> None:
    at = topology(hosts=2, local=2, algorithm="ring")
    alone = collectives(at, ((0, 2),), rate_local=100e9, rate_network=1e9).all_reduce(S)[0]
    both = collectives(at, ((0, 2), (1, 3)), rate_local=100e9, rate_network=1e9).all_reduce(S)[0]
    assert both == pytest.approx(2 * alone)


def test_a_way_without_any_rate_takes_that_of_ways_that_nobody_knows() -> None:
    unknown = collectives(topology(local=2), rate_network=1e9)
    plain = DEFAULTS["rate"].median
    assert unknown.all_reduce(S) == pytest.approx(collectives(topology(local=2), rate_local=plain).all_reduce(S))


def test_devices_of_two_drawers_reach_each_other_by_way_of_their_host() -> None:
    drawers = Topology(tuple(RankPlace(0, True, place // 2) for place in range(4)))
    one = Topology(tuple(RankPlace(0, True) for _ in range(4)))
    across, inside = (collectives(of, rate_fabric=10e9, rate_bridge=5e9).all_reduce(S)[0] for of in (drawers, one))
    assert across == pytest.approx(2 * inside, rel=0.01)
