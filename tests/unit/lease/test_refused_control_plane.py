"""A control plane that refuses what it is asked, as one of another version or behind a proxy does: no lease can work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from campaign.fabrics.errors import Refused
from campaign.fabrics.protocol import LeaseRequest
from campaign.fabrics.simulated import SimulatedFabric, SimulatedOptions
from campaign.lease.campaign_leases import Site
from campaign.lease.check_site import check_control_plane
from campaign.lease.lifecycle import acquire_lease
from campaign.spec.cell import Configuration
from campaign.spec.site_hardware import HostSpec, PoolSpec
from campaign.spec.system_file import SystemFile
from tests.contract.fabric_fixtures import configuration
from tests.unit.fabrics.raw_server import RawServer, impatient, reply, says

__all__ = ["impatient"]

_FABRICS: dict[str, dict[str, Any]] = {
    "h3": {"hosts": {"host1": "0", "host2": "48"}},
    "liqid": {"hosts": {"host1": "pcpu0", "host2": "pcpu1"}, "models": {"A100": "a100"}},
    "redfish": {},
}
_ENVELOPE = b'{"response":{"code":400,"errors":[{"code":400,"description":"bad request"}],"data":[]}}'


def findings(kind: str, url: str, directory: Path) -> list[tuple[str, str]]:
    address = {"boxes": {"falcon1/drawer1": url}} if kind == "h3" else {"url": url, "tunnel": True}
    system = SystemFile.model_validate({
        "name": "lab", "launcher": "local", "hosts": [{"name": "host[1-2]"}],
        "fabric": {"kind": kind, **address, **_FABRICS[kind]},
        "pool": [{"model": "a100", "count": 2, "drawer": "falcon1/drawer1"}], "devices": {"a100": {"runs_on": "cpu"}},
    })  # fmt: skip
    return [(found.verdict, found.words) for found in check_control_plane(Site(system, directory))]


@pytest.mark.parametrize("kind", _FABRICS)
@pytest.mark.parametrize(
    ("status", "body"),
    [(400, b'{"error": {"message": "bad request"}}'), (400, _ENVELOPE), (404, b"<html>"), (403, b"")],
)
def test_a_refusal_of_every_request_stops_all_leases_after_few_requests(
    kind: str, status: int, body: bytes, tmp_path: Path
) -> None:
    with RawServer(says(reply(status, body))) as server:
        (found,) = findings(kind, server.url, tmp_path)
        assert found[0] == "stop" or (kind, status) == ("liqid", 403), (
            found
        )  # which says that it does not know a session
        assert len(server.asked) <= 4


@pytest.mark.parametrize("kind", _FABRICS)
@pytest.mark.parametrize("status", [429, 503])
def test_a_control_plane_that_is_unavailable_for_now_stops_nothing(kind: str, status: int, tmp_path: Path) -> None:
    with RawServer(says(reply(status, b"{}"))) as server:
        (found,) = findings(kind, server.url, tmp_path)
    assert found[0] == "problem", found


class RefusingFabric(SimulatedFabric):
    """A fabric whose control plane takes no change."""

    calls = 0

    def compose(self, *_: Any, **__: Any) -> Any:
        self.calls += 1
        raise Refused("POST /x: HTTP 401")


@pytest.fixture
def fabric(tmp_path: Path) -> RefusingFabric:
    hosts, pool = [HostSpec(name="host1", cores=4, memory_gib=16.0)], [PoolSpec(kind="gpu", model="a100", count=4)]
    return RefusingFabric(SimulatedOptions(), hosts, pool, tmp_path)


def test_a_refused_change_is_not_tried_again(fabric: RefusingFabric, tmp_path: Path) -> None:
    wanted: Configuration = configuration(devices_per_host=2)
    with pytest.raises(Refused):
        acquire_lease(fabric, LeaseRequest("one", "demo", "me", wanted), tmp_path / "leases", wait_s=0.0, poll_s=0.0)
    assert fabric.calls == 1
