"""Specifications of emulated Slurm clusters for tests."""

from __future__ import annotations

from campaign.launch.emulation.cluster_spec import ClusterHost, Registration


def equal_hosts(
    hosts: int = 4, devices: int = 4, devices_max: int = 0, registration: Registration = "static", fabric_ports: int = 0
) -> tuple[ClusterHost, ...]:
    """`hosts` equal hosts: host1, host2 .."""
    return tuple(
        ClusterHost(
            name=f"host{number}",
            devices=devices,
            devices_max=devices_max,
            registration=registration,
            fabric_ports=fabric_ports,
        )
        for number in range(1, hosts + 1)
    )
