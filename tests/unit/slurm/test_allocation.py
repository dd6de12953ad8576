from __future__ import annotations

import pytest

from campaign.common.errors import LaunchError
from campaign.slurm.run_on_hosts import place_on_hosts, read_allocation_hosts
from campaign.spec.hardware import ComposedHost, Composition, Device


def host(name: str) -> ComposedHost:
    own = Device(f"{name}/gpu0", "gpu", "a100", f"GPU-of-{name}", f"{name}/gpu0", True, name)
    return ComposedHost(name, 4, 8.0, (own,))


WANTED = Composition((host("host1"), host("host2")))


def test_the_hosts_are_those_of_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_NODELIST", "host[1-2,07],x")
    assert read_allocation_hosts() == ("host1", "host2", "host07", "x")


@pytest.mark.parametrize("text", ["", "host[1"])
def test_outside_of_a_job_there_are_none(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.delenv("SLURM_NODELIST", raising=False)
    monkeypatch.setenv("SLURM_JOB_NODELIST", text)
    with pytest.raises(LaunchError, match="SLURM_JOB_NODELIST"):
        read_allocation_hosts()


def test_a_composition_on_its_own_hosts_stays_what_it_is() -> None:
    assert place_on_hosts(WANTED, ("host1", "host2")) == WANTED


def test_hosts_that_slurm_chose_have_devices_of_their_own() -> None:
    found = place_on_hosts(WANTED, ("host2", "host9"))
    assert found.hosts[0] == WANTED.hosts[1]
    assert found.hosts[1].name == "host9"
    assert found.hosts[1].devices == (Device("host9/gpu0", "gpu", "a100", None, "host9/gpu0", True, "host9"),)


def test_fewer_hosts_than_composed_are_an_error() -> None:
    with pytest.raises(LaunchError, match=r"1 host \(host1\), but 2 were requested"):
        place_on_hosts(WANTED, ("host1",))
