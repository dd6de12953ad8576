"""Topologies without a kernel: what is made, and that nothing is shaped that should be free."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from campaign.emulators.hosts.topology import (
    EmulatedHost,
    EmulationSpec,
    LinkRates,
    format_shaping,
    list_device_namespaces,
    list_namespaces,
    plan_layout,
)

RATES = LinkRates(fabric_gb_per_s=12.0, network_gb_per_s=25.0, scale=0.01)


LOCAL = RATES.model_copy(update={"local_gb_per_s": 36.0})


def shaped(spec: EmulationSpec) -> dict[tuple[str, str], str]:
    """The rate of each end of a link, by namespace and interface."""
    return {
        (batch.namespace, line.split()[3]): line.split()[7]
        for batch in plan_layout(spec).batches
        if batch.program == "tc"
        for line in batch.lines
    }


def host(name: str, local: int, fabric: int = 0) -> EmulatedHost:
    return EmulatedHost(name=name, local_devices=local, fabric_devices=fabric)


def test_ranks_go_host_by_host_local_devices_first() -> None:
    spec = EmulationSpec(hosts=(host("a", 2, 1), host("b", 0, 2)), rates=RATES)
    assert list_device_namespaces(spec) == ("a", "a", "a-fabric0", "b-fabric0", "b-fabric1")
    assert list_device_namespaces(spec.model_copy(update={"rates": LOCAL})) == (
        "a-local0", "a-local1", "a-fabric0", "b-fabric0", "b-fabric1",
    )  # fmt: skip


def test_both_ends_of_every_link_are_shaped_to_its_own_rate() -> None:
    assert shaped(EmulationSpec(hosts=(host("a", 1, 1), host("b", 1)), rates=RATES)) == {
        (".", "host0"): "2000000000bit",
        ("a", "uplink"): "2000000000bit",
        ("a", "fabric0"): "960000000bit",
        ("a-fabric0", "eth0"): "960000000bit",
        (".", "host1"): "2000000000bit",
        ("b", "uplink"): "2000000000bit",
    }


def test_local_devices_have_links_where_these_have_a_rate_and_nothing_else_changes() -> None:
    hosts = (host("a", 2, 1), host("b", 1))
    before, after = (shaped(EmulationSpec(hosts=hosts, rates=rates)) for rates in (RATES, LOCAL))
    assert before.items() < after.items()
    assert {place: after[place] for place in after.keys() - before.keys()} == {
        ("a", "local0"): "2880000000bit",
        ("a-local0", "eth0"): "2880000000bit",
        ("a", "local1"): "2880000000bit",
        ("a-local1", "eth0"): "2880000000bit",
        ("b", "local0"): "2880000000bit",
        ("b-local0", "eth0"): "2880000000bit",
    }


@pytest.mark.parametrize("hosts", [(host("a", 4, 16),), tuple(host(f"h{n}", 8) for n in range(4))])
def test_large_compositions_have_a_link_for_every_device(hosts: tuple[EmulatedHost, ...]) -> None:
    spec = EmulationSpec(hosts=hosts, rates=LOCAL)
    devices = sum(each.local_devices + each.fabric_devices for each in hosts)
    assert len(set(list_device_namespaces(spec))) == devices
    assert len(shaped(spec)) == 2 * (devices + len(hosts))


def test_without_rates_nothing_is_shaped() -> None:
    plan = plan_layout(EmulationSpec(hosts=(host("a", 1, 1), host("b", 1))))
    assert {batch.program for batch in plan.batches} == {"ip"}


@given(shape=st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), min_size=1, max_size=12), local=st.booleans())
def test_every_namespace_has_one_address_and_every_device_a_place(shape: list[tuple[int, int]], local: bool) -> None:
    hosts = tuple(host(f"h{index}", *each) for index, each in enumerate(shape))
    spec = EmulationSpec(hosts=hosts, rates=LOCAL if local else RATES)
    plan = plan_layout(spec)
    assert list(plan.addresses) == list_namespaces(spec)
    assert len(set(plan.addresses.values())) == len(plan.addresses)
    assert all(address in plan.network for address in plan.addresses.values())
    assert len(list_device_namespaces(spec)) == sum(sum(each) for each in shape)
    assert set(list_device_namespaces(spec)) <= set(plan.addresses)
    # The kernel takes no longer names.
    words = [
        line.split()
        for batch in plan.batches
        if batch.program == "ip"
        for line in batch.lines
        if line.startswith("link add")
    ]
    assert all(len(line[2]) <= 15 for line in words)


@pytest.mark.parametrize("names", [("a", "a"), ("a", "a-fabric0"), ("a", "a-local0")])
def test_names_that_would_meet_are_refused(names: tuple[str, str]) -> None:
    with pytest.raises(ValidationError, match="differ"):
        EmulationSpec(hosts=(host(names[0], 1, 1), host(names[1], 1)), rates=LOCAL)


def test_a_network_too_small_says_so() -> None:
    from ipaddress import IPv4Network

    with pytest.raises(ValueError, match="too small"):
        plan_layout(EmulationSpec(hosts=(host("a", 0, 8),)), IPv4Network("198.18.0.0/29"))


@given(rate=st.floats(0.001, 400))
def test_the_bucket_never_limits_the_rate(rate: float) -> None:
    words = format_shaping("eth0", rate).split()
    burst_bytes = int(words[9].removesuffix("b"))
    assert burst_bytes * 8 / 0.001 >= rate * 1e9 * 0.999
    # What passes at once after a pause is little beside a bucket of gradients, also of thinned ones.
    assert burst_bytes == 16384 or burst_bytes * 8 / 0.001 <= rate * 1e9 * 1.001
    assert int(words[7].removesuffix("bit")) == pytest.approx(rate * 1e9, abs=1)
