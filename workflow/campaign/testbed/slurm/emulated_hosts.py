"""The emulated hosts of a cluster, on a network that is joined to the machine by one interface."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

from campaign.errors import LaunchError
from campaign.launch.emulation.cluster_spec import Cluster, ClusterSpec
from campaign.launch.emulation.network import EmulationUnavailable, Keeper, tool
from campaign.launch.emulation.topology import (
    BRIDGE,
    HOME,
    OUTSIDE,
    PRIVATE_NETWORK,
    Batch,
    layout,
    namespaces,
)

_UNLINK_S = 10.0


def hosts(directory: Path, spec: ClusterSpec, lock: int) -> tuple[Keeper, Cluster]:
    """Emulated hosts on the first network that is free. The interface's name is the claim: two clusters cannot make the same."""
    taken = subprocess.run([tool("ip"), "-4", "route"], capture_output=True, text=True, check=True).stdout
    for number, network in enumerate(PRIVATE_NETWORK.subnets(new_prefix=24)):
        if f"{network.network_address}/" in taken:
            continue
        plan = layout(spec.emulation(), network)
        control, visitor = network[254], network[253]
        interface = f"campaign{number}"
        outside = Batch(HOME, "ip", (f"link add outside type veth peer name {interface} netns {{{OUTSIDE}}}",))
        joined = Batch(
            HOME,
            "ip",
            (f"link set outside master {BRIDGE}", "link set outside up", f"address add {control}/24 dev {BRIDGE}"),
        )
        reached = Batch(OUTSIDE, "ip", (f"address add {visitor}/24 dev {interface}", f"link set {interface} up"))
        try:
            with Path("/proc/self/ns/net").open() as here:
                keeper = Keeper.start(
                    [(name, name.partition("-")[0]) for name in namespaces(spec.emulation().hosts)],
                    [outside, *plan.batches, joined, reached],
                    isolated_as="control",
                    commands=[("mount", "--bind", str(directory / "etc" / "hosts"), "/etc/hosts")],
                    outside=here.fileno(),
                    anchor=lock,
                )
        except EmulationUnavailable as error:
            if "File exists" in str(error):
                continue
            raise
        addresses = {name: str(address) for name, address in plan.addresses.items()}
        cluster = Cluster(
            directory=directory,
            spec=spec,
            held=keeper.held,
            control_address=str(control),
            addresses=addresses,
            interface=interface,
        )
        return keeper, cluster
    raise LaunchError(f"no network of {PRIVATE_NETWORK} is free: `ip route` says which are taken")


def unlinked(interface: str) -> None:
    """Wait until the kernel has removed the interface, shortly after the last process at its other end."""
    deadline_s = time.monotonic() + _UNLINK_S
    while Path(f"/sys/class/net/{interface}").exists():
        if time.monotonic() > deadline_s:
            raise LaunchError(
                f"{interface} is still there {_UNLINK_S:g} s after its cluster ended: `ip link delete {interface}`"
            )
        time.sleep(0.02)
