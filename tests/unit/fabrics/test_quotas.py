"""What an owner may have: refused before the fabric is asked, waited for when only the owner's own leases are in the way."""

from __future__ import annotations

from pathlib import Path

import pytest

from campaign.common.errors import ConfigError
from campaign.common.paths import Results
from campaign.fabrics import open_fabric
from campaign.fabrics.errors import Conflict, Incompatible
from campaign.fabrics.placement.quotas import QuotaFabric, limit_request
from campaign.fabrics.protocol import LeaseRequest
from campaign.lease.campaign_leases import make_request
from campaign.plan.campaign.load import read_system
from campaign.plan.campaign.open_fabric import open_system_fabric
from campaign.plan.campaign.resolve import load_campaign
from campaign.spec.site_hardware import HostSpec, PoolSpec
from tests.campaign_files import write_files
from tests.contract.fabric_fixtures import configuration

HOSTS = (HostSpec(name="host1", cores=8, memory_gib=32.0), HostSpec(name="host2", cores=8, memory_gib=32.0))


def asked(
    lease_id: str = "one", *, devices: int = 2, owner: str = "tester", hosts: tuple[str, ...] = ()
) -> LeaseRequest:
    return LeaseRequest(lease_id, "demo", owner, configuration(devices_per_host=devices), hosts)


def test_more_than_the_quota_is_refused_before_anything_is_asked() -> None:
    assert limit_request(asked(devices=2), {"a100": 2}, ()) == asked(devices=2)
    assert limit_request(asked(devices=9), {"h100": 2}, ()) == asked(devices=9)
    with pytest.raises(Incompatible, match=r"needs 3 pooled 'a100', but tester may hold at most 2 .*tenancy\.quota"):
        limit_request(asked(devices=3), {"a100": 2}, ())


def test_only_allowed_hosts_are_asked_for() -> None:
    assert limit_request(asked(), {}, ("host2",)).allowed_hosts == ("host2",)
    assert limit_request(asked(hosts=("host2",)), {}, ("host1", "host2")).allowed_hosts == ("host2",)
    with pytest.raises(Incompatible, match="host1 are not allowed; use host2"):
        limit_request(asked(hosts=("host1",)), {}, ("host2",))


def test_the_owners_own_leases_count_and_those_of_others_do_not(tmp_path: Path) -> None:
    fabric = QuotaFabric(
        open_fabric("simulated", {}, HOSTS, (PoolSpec(kind="gpu", model="a100", count=4),), tmp_path), {"a100": 2}
    )
    first = fabric.select_devices(asked("one", devices=1), fabric.read_inventory())
    fabric.compose(first)
    with pytest.raises(Conflict, match=r"tester may hold at most 2; other leases hold 1 \(one\)") as caught:
        fabric.select_devices(asked("two", devices=2), fabric.read_inventory())
    assert caught.value.holders == ("one",)
    fabric.select_devices(asked("two", devices=1), fabric.read_inventory())
    fabric.select_devices(asked("two", devices=2, owner="another"), fabric.read_inventory())
    fabric.release("one")
    fabric.select_devices(asked("two", devices=2), fabric.read_inventory())


TENANCY = {
    "system.hosts": [{"name": "host[1-4]"}],
    "system.pool": [{"model": "a100", "count": 8}],
    "system.tenancy": {"owner": "team-a", "quota": {"a100": 4}, "allowed_hosts": ["host[2-3]"]},
    "system.devices": {"a100": {"pcie": {"width": 16, "gen": 4}}},
    "campaign.configurations": [{"devices_per_host": [2, 8], "device": "a100", "attach": "fabric"}],
}


@pytest.fixture
def campaign(tmp_path: Path) -> Path:
    return write_files(tmp_path, TENANCY)


def test_a_system_file_says_who_may_have_what(campaign: Path, tmp_path: Path) -> None:
    loaded = load_campaign(campaign)
    small, large = loaded.configurations
    results = Results(tmp_path, "c")
    mine = make_request(loaded, results, "lease", small)
    assert (mine.owner, mine.allowed_hosts, mine.links) == ("team-a", ("host2", "host3"), {"a100": (16, 4)})
    with pytest.raises(Incompatible, match="needs 8 pooled 'a100', but team-a may hold at most 4"):
        make_request(loaded, results, "lease", large)
    with open_system_fabric(loaded.system, tmp_path / "state") as fabric:
        selection = fabric.select_devices(mine, fabric.read_inventory())
        assert {host.host for host in selection.hosts} <= {"host2", "host3"}
        fabric.compose(selection)
        assert fabric.list_lease_tags()[mine.lease_id].owner == "team-a"


def test_hosts_that_are_not_there_cannot_be_allowed(campaign: Path) -> None:
    write_files(campaign.parent, TENANCY | {"system.tenancy": {"allowed_hosts": ["host[3-6]"]}})
    with pytest.raises(ConfigError, match="allowed_hosts' has unknown hosts: host5, host6; there are: host1, host2"):
        read_system("bench", campaign)
