"""Where ranks go, on a machine that emulates hosts as told: nothing is started here (real hosts: tests/cluster)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import IPv4Address

import pytest

from campaign.common.errors import LaunchError
from campaign.emulators.hosts.emulation_plan import NOT_CROSSED
from campaign.emulators.hosts.network import EmulatedHosts, EmulationUnavailable, HeldNamespaces
from campaign.emulators.hosts.topology import EmulationSpec, plan_layout
from campaign.run import local_placement
from campaign.run.local_placement import LocalPlacement, ProcessPlacement, open_placement
from campaign.workloads.protocol import Step
from tests.unit.run.launch.compositions import LINKS, composition, emulated_system, system


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """A machine whose emulated hosts are held by process 7, the namespaces' descriptors being counted through from 100."""
    ended: list[bool] = []

    @contextmanager
    def emulated(spec: EmulationSpec) -> Iterator[EmulatedHosts]:
        addresses: dict[str, IPv4Address] = plan_layout(spec).addresses
        descriptors = {name: {"net": 100 + number} for number, name in enumerate(addresses)}
        yield EmulatedHosts(spec, HeldNamespaces(pid=7, user=True, isolated=False, descriptors=descriptors), addresses)
        ended.append(True)

    monkeypatch.setattr(local_placement, "emulate_hosts", emulated)
    return ended


def step(per_rank: bool = True, **ranks_by_host: int) -> Step:
    return Step(("true",), {}, ranks_by_host, per_rank)


def namespaces(found: list[ProcessPlacement]) -> list[str]:
    assert all(place.namespaces[0] == "/proc/7/ns/user" for place in found)
    return [place.namespaces[1].removeprefix("/proc/7/fd/") for place in found]


def column(found: list[ProcessPlacement], name: str) -> list[str]:
    return [place.environment[name] for place in found]


def opened(*shape: tuple[int, int]) -> LocalPlacement:
    return open_placement(emulated_system(), composition(*shape))


@pytest.mark.usefixtures("closed")
def test_local_devices_share_a_host_and_each_fabric_device_is_alone() -> None:
    hosts = opened((2, 1), (1, 1))  # 100: host1, 101: its fabric device, 102: host2, 103: its fabric device
    found = hosts.place_processes(step(host1=3, host2=2))
    assert namespaces(found) == ["100", "100", "101", "102", "103"]
    assert column(found, "RANK") == ["0", "1", "2", "3", "4"]
    assert column(found, "LOCAL_RANK") == ["0", "1", "2", "0", "1"]
    assert column(found, "LOCAL_WORLD_SIZE") == ["3", "3", "3", "2", "2"]
    assert set(column(found, "MASTER_ADDR")) == {"198.18.0.1"}
    assert set(column(found, "GLOO_SOCKET_IFNAME")) == {"eth0"}
    assert len(set(column(found, "MASTER_PORT"))) == 1


@pytest.mark.usefixtures("closed")
def test_each_local_device_is_alone_behind_a_local_link() -> None:
    """Namespaces: 100 is host1, 101 and 102 its own devices, 103 that on the fabric, 104 is host2."""
    links = {**LINKS, "local": {"gb_per_s": 40}}
    hosts = open_placement(system(links=links, emulation={"scale": 0.001}), composition((2, 1), (1, 0)))
    found = hosts.place_processes(step(host1=3, host2=1))
    assert namespaces(found) == ["101", "102", "103", "105"]
    assert column(found, "LOCAL_RANK") == ["0", "1", "2", "0"]
    assert set(column(found, "MASTER_ADDR")) == {"198.18.0.2"}
    alone = hosts.place_processes(step(host1=1))
    assert set(column(alone, "GLOO_SOCKET_IFNAME")) == {"lo"}
    assert hosts.list_flags(step(per_rank=False, host1=2)) == (NOT_CROSSED,)


@pytest.mark.usefixtures("closed")
def test_a_run_on_part_of_a_host_uses_its_first_devices() -> None:
    hosts = opened((2, 2), (2, 2))
    assert namespaces(hosts.place_processes(step(host1=1, host2=1))) == ["100", "103"]
    both = hosts.place_processes(step(host1=2))
    assert namespaces(both) == ["100", "100"]
    assert set(column(both, "MASTER_ADDR")) == {"127.0.0.1"}
    assert set(column(both, "GLOO_SOCKET_IFNAME")) == {"lo"}


@pytest.mark.usefixtures("closed")
def test_the_first_rank_is_met_where_it_is_also_behind_the_fabric() -> None:
    found = opened((0, 2)).place_processes(step(host1=2))
    assert namespaces(found) == ["101", "102"]
    assert set(column(found, "MASTER_ADDR")) == {"198.18.0.2"}


@pytest.mark.usefixtures("closed")
def test_one_program_for_all_ranks_is_on_the_first_host_and_said_to_cross_no_link() -> None:
    hosts = opened((1, 0), (1, 0))
    once = step(per_rank=False, host1=1, host2=1)
    (found,) = hosts.place_processes(once)
    assert namespaces([found]) == ["100"]
    assert (found.environment["CAMPAIGN_RANKS"], found.environment["CAMPAIGN_HOSTS"]) == ("2", "host1,host2")
    assert hosts.list_flags(once) == (NOT_CROSSED,)
    assert hosts.list_flags(step(host1=1, host2=1)) == ()
    assert opened((2, 0)).list_flags(step(per_rank=False, host1=2)) == ()


@pytest.mark.usefixtures("closed")
@pytest.mark.parametrize("ranks", [{"host1": 3}, {"host9": 1}])
def test_a_rank_without_a_device_is_no_run(ranks: dict[str, int]) -> None:
    with pytest.raises(LaunchError, match=r"the composition has only [02] devices on this host"):
        opened((1, 1)).place_processes(step(**ranks))


def test_the_hosts_end_with_the_launcher(closed: list[bool]) -> None:
    hosts = opened((1, 0))
    assert closed == []
    hosts.close()
    assert closed == [True]


@pytest.mark.usefixtures("closed")
def test_records_hear_how_and_at_what_rates() -> None:
    assert opened((1, 1)).links == {
        "emulated": "user namespace",
        "reason": "",
        "scale": 0.001,
        "fabric_gb_per_s": 10.0,
        "network_gb_per_s": 20.0,
        "fabric_gbit_per_s": 0.08,
        "network_gbit_per_s": 0.16,
    }


def test_where_hosts_cannot_be_emulated_ranks_share_the_loopback_and_records_hear_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @contextmanager
    def refused(_: EmulationSpec) -> Iterator[EmulatedHosts]:
        raise EmulationUnavailable("no `tc` here")
        yield

    monkeypatch.setattr(local_placement, "emulate_hosts", refused)
    hosts = opened((1, 1))
    assert hosts.links is not None
    assert (hosts.links["emulated"], hosts.links["reason"], hosts.links["fabric_gbit_per_s"]) == (
        None,
        "no `tc` here",
        0.08,
    )
    found = hosts.place_processes(step(host1=2))
    assert [place.namespaces for place in found] == [(), ()]
    assert set(column(found, "MASTER_ADDR")) == {"127.0.0.1"}


def test_a_system_that_emulates_nothing_says_nothing_of_links() -> None:
    hosts = open_placement(system(), composition((2, 0)))
    assert hosts.links is None
    assert hosts.is_running()
    assert column(hosts.place_processes(step(host1=1, host2=2)), "LOCAL_RANK") == ["0", "1", "2"]
