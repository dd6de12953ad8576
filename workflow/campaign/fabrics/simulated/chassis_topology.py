"""A chassis in the manner of the Falcon 4016: cabling, drawers and modes as a system file describes them.

Two drawers of eight slots, four host ports H1-H4. A port is cabled to one host and reaches one or both drawers. Modes:
- `standard_one_host`: all eight slots of the drawer belong to one host (16 devices with both drawers on one host);
- `standard_two_hosts`: two connections, four slots each; one host may take both;
- `advanced`: slots move between hosts on the fly, at most three hosts hold devices of a drawer at one time.
Everything here is pure. Source: the public description of the Falcon 4016 in the literature on composable systems.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from campaign.errors import ConfigError
from campaign.fabrics.banks import HOSTS_IN_ADVANCED, RULES, SLOTS, SLOTS_PER_CONNECTION, Bank, Mode
from campaign.fabrics.hardware import Device, HostSpec, Link, PoolSpec

Port = Literal["H1", "H2", "H3", "H4"]

PORTS: tuple[Port, ...] = ("H1", "H2", "H3", "H4")
# Of a host adapter and a slot: PCIe 4.0, 16 lanes.
LANES = 16
GENERATION = 4


class DrawerOptions(BaseModel):
    """One drawer of eight slots."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(description="name of the drawer, unique in its chassis", pattern=r"^[A-Za-z0-9_.-]+$")
    mode: Mode = Field(default="advanced", description="how the drawer shares its slots among hosts")
    ports: tuple[Port, ...] | None = Field(
        default=None,
        description="host ports that reach the drawer, in the order of their connections; "
        "default: all cabled ports in advanced mode, else H1-H2 for the first drawer and H3-H4 for the second",
    )


class ChassisOptions(BaseModel):
    """One chassis with up to two drawers and four host ports."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(description="name of the chassis, unique in its system", pattern=r"^[A-Za-z0-9_.-]+$")
    drawers: tuple[DrawerOptions, ...] = Field(
        default=(DrawerOptions(name="drawer1"), DrawerOptions(name="drawer2")),
        description="the drawers; default: drawer1 and drawer2, both in advanced mode",
        min_length=1,
        max_length=2,
    )
    ports: dict[Port, str] | None = Field(
        default=None, description="which host is cabled to which port; default: the system's next hosts in order"
    )


def banks(chassis: Sequence[ChassisOptions], hosts: Sequence[HostSpec]) -> tuple[Bank, ...]:
    """Resolve cabling and modes. Raises ConfigError naming chassis, drawer and rule."""
    found: list[Bank] = []
    for one, ports in cabling(chassis, hosts):
        for index, drawer in enumerate(one.drawers):
            found.extend(_drawer_banks(one.name, index, drawer, ports))
    names = [bank.name for bank in found]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ConfigError(f"chassis: {', '.join(sorted(twice))} appears twice; names must be unique")
    return tuple(found)


def cabling(
    chassis: Sequence[ChassisOptions], hosts: Sequence[HostSpec]
) -> Iterator[tuple[ChassisOptions, dict[Port, str]]]:
    """Port -> host of every chassis. The default passes over hosts that earlier chassis use."""
    known, taken = [host.name for host in hosts], set[str]()
    for one in chassis:
        cabled: Mapping[Port, str] = dict(zip(PORTS, (name for name in known if name not in taken), strict=False))
        cabled = cabled if one.ports is None else one.ports
        for port, host in cabled.items():
            if host not in known:
                words = f"port {port} names host {host!r}; the system has {', '.join(known)}"
                raise ConfigError(f"chassis {one.name}: {words}")
        taken.update(cabled.values())
        yield one, {port: cabled[port] for port in PORTS if port in cabled}


def ports_of(chassis: Sequence[ChassisOptions], hosts: Sequence[HostSpec]) -> dict[str, tuple[str, ...]]:
    """Ports per host, such as falcon1/H2, after those that the system file names."""
    found = {host.name: host.ports for host in hosts}
    for one, ports in cabling(chassis, hosts):
        for port, host in ports.items():
            found[host] = (*found[host], f"{one.name}/{port}")
    return found


def _drawer_banks(chassis: str, index: int, drawer: DrawerOptions, cabled: Mapping[Port, str]) -> list[Bank]:
    name = f"{chassis}/{drawer.name}"
    ports = _reaching(index, drawer, cabled)
    if uncabled := [port for port in ports if port not in cabled]:
        raise ConfigError(f"{name}: port {uncabled[0]} is not cabled; cabled are {', '.join(cabled) or 'none'}")
    hosts = tuple(dict.fromkeys(cabled[port] for port in ports))
    every = frozenset(range(1, SLOTS + 1))
    if drawer.mode == "advanced":
        return [Bank(name, name, "advanced", every, hosts, HOSTS_IN_ADVANCED)]
    if drawer.mode == "standard_one_host":
        if len(hosts) > 1:
            raise ConfigError(f"{name}: {', '.join(hosts)} are cabled to it ({RULES['standard_one_host']})")
        return [Bank(name, name, "standard_one_host", every, hosts, 1)]
    if len(ports) > 2:
        raise ConfigError(f"{name}: {len(ports)} connections are cabled to it ({RULES['standard_two_hosts']})")
    return [
        Bank(
            f"{name}/connection{connection + 1}",
            name,
            "standard_two_hosts",
            frozenset(range(connection * SLOTS_PER_CONNECTION + 1, (connection + 1) * SLOTS_PER_CONNECTION + 1)),
            (cabled[ports[connection]],) if connection < len(ports) else (),
            2,
        )
        for connection in range(2)
    ]


def _reaching(index: int, drawer: DrawerOptions, cabled: Mapping[Port, str]) -> tuple[Port, ...]:
    if drawer.ports is not None:
        return tuple(dict.fromkeys(drawer.ports))
    if drawer.mode == "advanced":
        return tuple(cabled)
    count = 1 if drawer.mode == "standard_one_host" else 2
    own = [port for port in PORTS[2 * index : 2 * index + 2] if port in cabled]
    # A drawer whose own ports are empty shares what is cabled: the next host if there is one, else the same.
    shared = list(cabled)[min(index, len(cabled) - 1) :] if count == 1 and cabled else list(cabled)
    return tuple((own or shared)[:count])


def host_id(kind: str, fabric_id: str) -> str:
    """What a host would call the device: a GPU's UUID, a card's MAC, a drive's serial; always the same for one slot."""
    name = uuid.uuid5(uuid.NAMESPACE_OID, fabric_id)
    if kind == "nic":
        return ":".join(f"{byte:02x}" for byte in b"\x02" + name.bytes[:5])
    return name.hex[:16].upper() if kind == "nvme" else f"{kind.upper()}-{name}"


def fill(chassis: Sequence[ChassisOptions], pool: Sequence[PoolSpec]) -> list[Device]:
    """The pool in slots, in order; a device's id is its location. Raises ConfigError when there are more devices than slots."""
    drawers = [f"{one.name}/{drawer.name}" for one in chassis for drawer in one.drawers]
    free = {drawer: list(range(1, SLOTS + 1)) for drawer in drawers}
    found: list[Device] = []
    link = Link(LANES, GENERATION, LANES, GENERATION)
    # Devices that name their drawer go first, so that one that does not care never takes their slot.
    for spec in sorted(pool, key=lambda spec: spec.drawer is None):
        named = [name for name in drawers if spec.drawer in (None, name, name.rpartition("/")[2])]
        if not named:
            raise ConfigError(f"pool: drawer {spec.drawer!r} is not known; there are {', '.join(drawers)}")
        for _ in range(spec.count):
            drawer = next((name for name in named if free[name]), None)
            if drawer is None:
                where = spec.drawer or "the chassis"
                raise ConfigError(f"pool: no slot left in {where} for {spec.count} x {spec.model!r} ({spec.kind})")
            at, kind = f"{drawer}/slot{free[drawer].pop(0)}", spec.kind
            found.append(Device(at, kind, spec.model, host_id(kind, at), at, local=False, link=link))
    return sorted(found, key=lambda device: drawers.index(device.location.rpartition("/")[0]))
