"""Topology of emulated hosts: namespaces and links of devices, and the `ip` and `tc` lines that create them. Pure functions.

Every host is a network namespace. Each fabric device has a separate namespace behind a link shaped to the fabric's rate. So does
each local device if local links have a rate. Otherwise, local devices are in the namespace of the host and communicate through
its loopback. Hosts are joined by a bridge through links shaped to the network's rate:

    host1 ── network link ───────────────────┐
      ├─ local link ─── host1-local0         │
      ├─ fabric link ── host1-fabric0        network (bridge)
      └─ fabric link ── host1-fabric1        │
    host2 ── network link ───────────────────┘

So traffic of a device crosses the link of its kind on every path, and traffic between hosts crosses the network. A path is as
fast as its slowest link.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

BRIDGE_NAMESPACE = "."
"""The namespace that holds the network's bridge."""
HOST_INTERFACE = "eth0"
OUTSIDE_NAMESPACE = "@outside"
"""The namespace from which the emulation was started."""
BRIDGE = "network"
PRIVATE_NETWORK = IPv4Network("198.18.0.0/16")
"""Network that is reserved for benchmarks (RFC 2544), so that no real network is hidden."""
_MIN_BURST_BYTES = 16 * 1024
_MTU_BYTES = 9000
"""Size of jumbo frames, because shaping costs time per packet. With 1500, eight ranks over links of 16 MB/s use two full cores."""
_BURST_S = 0.001
_QUEUE_MS = 100


LinkType = Literal["local", "fabric", "network"]


class LinkRates(BaseModel):
    """Rates of the emulated links inside a host, of a fabric, and of a network."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    local_gb_per_s: float | None = Field(
        default=None,
        gt=0,
        description="rate of the link between a local device and its host, per direction; default: the host's loopback is used",
    )

    fabric_gb_per_s: float | None = Field(
        default=None,
        gt=0,
        description="rate of the link between a fabric device and its host, per direction; default: not shaped",
    )
    network_gb_per_s: float | None = Field(
        default=None,
        gt=0,
        description="rate of the link between a host and the network, per direction; default: not shaped",
    )
    scale: float = Field(default=0.01, gt=0, description="ratio of emulated to real rates, for all links")

    def compute_gbit_per_s(self, link: LinkType) -> float | None:
        """Return the emulated rate of a link in one direction (Gbit/s), or None if it is not shaped."""
        real: float | None = getattr(self, f"{link}_gb_per_s")
        return None if real is None else real * 8 * self.scale


class EmulatedHost(BaseModel):
    """One emulated host, with its numbers of local and fabric devices."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(
        pattern=r"^[a-z][a-z0-9-]{0,30}$", description="host name; its devices are NAME-local0 .. and NAME-fabric0 .."
    )
    local_devices: int = Field(
        ge=0, description="number of devices in the host, each with a link if local links have a rate"
    )
    fabric_devices: int = Field(
        default=0, ge=0, description="number of devices behind the fabric, each with a shaped link to the host"
    )


class EmulationSpec(BaseModel):
    """Hosts and devices of a composition, and the rates of its links."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    hosts: tuple[EmulatedHost, ...] = Field(min_length=1, description="hosts in the order of their ranks")
    rates: LinkRates = LinkRates()  # rates of the links

    @model_validator(mode="after")
    def _check_names_differ(self) -> EmulationSpec:
        """Raise ValueError if two namespaces have the same name."""
        names = list_namespaces(self)
        if duplicates := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(
                f"host names must be unique, and differ from device names (NAME-local0, NAME-fabric0, ..): {', '.join(duplicates)}"
            )
        return self


@dataclass(frozen=True, slots=True)
class Batch:
    """Lines for `ip -batch` or `tc -batch` in one namespace. `{NAME}` is replaced by the path of that namespace."""

    namespace: str
    program: Literal["ip", "tc"]
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NetworkLayout:
    """Addresses of all namespaces by name, and the batches that create the network, in order."""

    addresses: dict[str, IPv4Address]
    network: IPv4Network
    batches: tuple[Batch, ...]


def list_device_namespaces(spec: EmulationSpec) -> tuple[str, ...]:
    """Return the namespaces of all devices, ordered by host, with local devices before fabric devices."""
    names: list[str] = []
    for host in spec.hosts:
        fabric_names = [
            make_device_namespace(host.name, link, number) for link, number in _list_device_links(host, spec.rates)
        ]
        names += [host.name] * (host.local_devices + host.fabric_devices - len(fabric_names)) + fabric_names
    return tuple(names)


def list_namespaces(spec: EmulationSpec) -> list[str]:
    """List all namespaces: for each host its own, followed by those of its devices behind links."""
    return [
        name
        for host in spec.hosts
        for name in (
            host.name,
            *(make_device_namespace(host.name, *device_link) for device_link in _list_device_links(host, spec.rates)),
        )
    ]


def _list_device_links(host: EmulatedHost, rates: LinkRates) -> list[tuple[LinkType, int]]:
    """List the links from a host to its devices, by kind and number."""
    local_links = 0 if rates.local_gb_per_s is None else host.local_devices
    return [*(("local", n) for n in range(local_links)), *(("fabric", n) for n in range(host.fabric_devices))]


def make_device_namespace(host: str, link: LinkType, number: int) -> str:
    """Return the namespace of the device behind a link of a host."""
    return f"{host}-{link}{number}"


def plan_layout(spec: EmulationSpec, network: IPv4Network = PRIVATE_NETWORK) -> NetworkLayout:
    """Assign addresses to all namespaces, and build the lines that create and shape the links.

    Raises ValueError if the network is too small.
    """
    names = list_namespaces(spec)
    # The last two addresses of a network are kept for the namespace of the bridge and for the outside.
    if len(names) > network.num_addresses - 4:
        raise ValueError(f"the network {network} is too small for {len(names)} namespaces")
    addresses = {name: network[1 + index] for index, name in enumerate(names)}
    batches = [
        Batch(BRIDGE_NAMESPACE, "ip", ("link set lo up", f"link add {BRIDGE} type bridge", f"link set {BRIDGE} up"))
    ]
    for index, host in enumerate(spec.hosts):
        batches += _build_host_batches(host, index, spec.rates, addresses, network.prefixlen)
    return NetworkLayout(addresses, network, tuple(batches))


def _build_host_batches(
    host: EmulatedHost, index: int, rates: LinkRates, addresses: dict[str, IPv4Address], prefix: int
) -> list[Batch]:
    """Build the batches of one host.

    A host is a bridge that carries its address: the links to the network and to each fabric device are ports of it.
    """
    port = f"host{index}"
    host_lines = [
        "link set lo up",
        f"link add {HOST_INTERFACE} type bridge",
        f"link set uplink master {HOST_INTERFACE}",
        "link set uplink up",
        f"link set {HOST_INTERFACE} up",
        f"address add {addresses[host.name]}/{prefix} dev {HOST_INTERFACE}",
    ]
    bridge_lines = (
        _format_veth_pair(port, "uplink", host.name),
        f"link set {port} master {BRIDGE}",
        f"link set {port} up",
    )
    batches = [Batch(BRIDGE_NAMESPACE, "ip", bridge_lines)]
    shaped_interfaces: list[tuple[str, str, LinkType]] = [
        (BRIDGE_NAMESPACE, port, "network"),
        (host.name, "uplink", "network"),
    ]
    device_batches: list[Batch] = []
    for link, number in _list_device_links(host, rates):
        name, port_name = make_device_namespace(host.name, link, number), f"{link}{number}"
        host_lines += [
            _format_veth_pair(port_name, HOST_INTERFACE, name),
            f"link set {port_name} master {HOST_INTERFACE}",
            f"link set {port_name} up",
        ]
        address = f"address add {addresses[name]}/{prefix} dev {HOST_INTERFACE}"
        device_batches.append(Batch(name, "ip", ("link set lo up", f"link set {HOST_INTERFACE} up", address)))
        shaped_interfaces += [(host.name, port_name, link), (name, HOST_INTERFACE, link)]
    batches += [Batch(host.name, "ip", tuple(host_lines)), *device_batches]
    for namespace, interface, link in shaped_interfaces:
        if (rate := rates.compute_gbit_per_s(link)) is not None:
            batches.append(Batch(namespace, "tc", (format_shaping(interface, rate),)))
    return batches


def _format_veth_pair(interface: str, peer: str, namespace: str) -> str:
    """Format the `ip` line that creates a veth pair into another namespace."""
    return f"link add {interface} mtu {_MTU_BYTES} type veth peer name {peer} mtu {_MTU_BYTES} netns {{{namespace}}}"


def format_shaping(interface: str, rate_gbit_per_s: float) -> str:
    """Format the `tc` line that shapes outgoing traffic of an interface.

    It uses a token bucket, because many kernels lack netem.
    """
    rate_bit_per_s = round(rate_gbit_per_s * 1e9)
    # After a pause, one bucket passes at once, which must be small compared with what a collective sends. A bucket that is smaller
    # than what the link moves while the machine does something else would not reach the rate.
    burst_bytes = max(_MIN_BURST_BYTES, round(rate_bit_per_s / 8 * _BURST_S))
    return f"qdisc add dev {interface} root tbf rate {rate_bit_per_s}bit burst {burst_bytes}b latency {_QUEUE_MS}ms"
