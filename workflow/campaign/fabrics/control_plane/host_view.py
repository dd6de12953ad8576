"""View of the hosts on the devices that a fabric attached to them: identities, links, and their assignment to fabric ids.

Built-in devices are not verified here. Like those of a static system, they are verified by the first step of an allocation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from campaign.common.errors import FabricError
from campaign.fabrics.host_agents.protocol import HostAgent, HostBusy, HostDevice, pair
from campaign.fabrics.state_file import StateFile
from campaign.spec.hardware import ComposedHost, Composition, Device, normal


class HostView:
    """Devices of the hosts of one system, as listed by a host agent.

    Without an agent, all devices count as visible. If the fabric reports no identity for a device, it is identified as a device
    that
    the host did not have before; the earlier devices are in the state file.
    """

    def __init__(self, agent: HostAgent | None, state: StateFile, own: Mapping[str, frozenset[str]]) -> None:
        """Create the view of the hosts of one system.

        Args:
            agent: host agent, or None if hosts are not inspected.
            state: state file of the fabric.
            built_in_kinds: kinds of the devices built into a host, by host name.
        """
        self._agent = agent
        self._state = state
        self._own = own

    @property
    def looks(self) -> bool:
        """Presence of a host agent."""
        return self._agent is not None

    def listed(self, host: str) -> tuple[tuple[str, str], ...] | None:
        """Return (identity, model) of each device that a host lists.

        Returns None if no host agent is configured. Raises FabricError if the host cannot be queried.
        """
        return None if self._agent is None else tuple((one.identity, one.model) for one in self._agent.devices(host))

    def before(self, hosts: Mapping[str, Sequence[Device]]) -> dict[str, tuple[str, ...]]:
        """Return the keys of devices that hosts have before an attach, if they are needed to identify new devices.

        Every host is queried, because a device on a host that cannot be queried could not be detached again. Raises FabricError.
        """
        if self._agent is None:
            return {}
        had = {
            host: tuple(_mark(one) for one in self._agent.devices(host)) for host, devices in hosts.items() if devices
        }
        return {host: marks for host, marks in had.items() if any(not device.host_id for device in hosts[host])}

    def told(self, host: ComposedHost) -> ComposedHost:
        """Return a host with the identities and links of its devices as the host reports them.

        If the host cannot be queried, it is returned unchanged: the devices of a lease are known without its hosts.
        `find_visible_devices` raises the error in that case.
        """
        try:
            seen = self._pairs(host.name, (*host.devices, *host.storage))
        except FabricError:
            return host
        return replace(
            host,
            devices=tuple(_as_told(device, seen.get(device.fabric_id)) for device in host.devices),
            storage=tuple(_as_told(device, seen.get(device.fabric_id)) for device in host.storage),
        )

    def seen(self, composition: Composition) -> frozenset[str]:
        """Return the fabric ids of devices that their hosts can use now, and of devices that are not verified."""
        others = {device.fabric_id for device in composition.devices} - self.looked_for(composition)
        pairs = (self._pairs(host.name, (*host.devices, *host.storage)) for host in composition.hosts)
        return frozenset(others).union(name for found in pairs for name, device in found.items() if device.ready)

    def looked_for(self, composition: Composition) -> frozenset[str]:
        """Return the fabric ids of devices that are verified on their hosts: pooled devices, if there is an agent."""
        looked = (d for d in composition.devices if not d.local)
        return frozenset(device.fabric_id for device in looked if self._agent is not None)

    def rescan(self, composition: Composition) -> None:
        """Make each host with pooled devices scan for devices."""
        if self._agent is not None:
            for host in composition.hosts:
                if any(not device.local for device in (*host.devices, *host.storage)):
                    self._agent.rescan(host.name)

    def drain(self, host: str, devices: Sequence[Device], *, force: bool) -> None:
        """Take attached devices out of use on their host.

        Raises HostBusy if a device is in use or cannot be identified, and FabricError if the host cannot be queried, unless
        `force` is True.
        """
        if self._agent is None or not devices:
            return
        try:
            self._drain(self._agent, host, devices, force)
        except HostBusy:
            raise
        except FabricError as error:
            if not force:
                raise FabricError(
                    f"{error}; correct `agent` of the system file, or detach without asking the host: "
                    "'campaign fabric reconcile SYSTEM --release --force'"
                ) from error

    def _drain(self, agent: HostAgent, host: str, devices: Sequence[Device], force: bool) -> None:
        """Take identified devices out of use on their host. Raises HostBusy if a device cannot be identified."""
        if unknown := [device.fabric_id for device in devices if not device.host_id and self._confusable(host, device)]:
            raise HostBusy(
                f"{host}: which of its devices {', '.join(unknown)} are is unknown: neither the fabric nor the state file tells; "
                "stop their use by hand, then detach them with the fabric's own tools"
            )
        agent.detach(host, tuple(self._pairs(host, devices).values()), force=force)

    def close(self) -> None:
        """Close the host agent."""
        if self._agent is not None:
            self._agent.close()

    def _pairs(self, host: str, devices: Iterable[Device]) -> dict[str, HostDevice]:
        """Return the host's device of each fabric id that can be identified."""
        wanted = [d for d in devices if not d.local and (d.host_id or not self._confusable(host, d))]
        if self._agent is None or not wanted:
            return {}
        seen = self._agent.devices(host)
        if any(not device.host_id for device in wanted):
            had = self._had(host) or ()
            seen = tuple(one for one in seen if _mark(one) not in had)
        return pair(wanted, seen)

    def _confusable(self, host: str, device: Device) -> bool:
        """Return True if a pooled device without an identity could be confused with a built-in device of the host."""
        return device.kind in self._own.get(host, ()) and self._had(host) is None

    def _had(self, host: str) -> tuple[str, ...] | None:
        """Return the keys of devices that the host had before its present lease, or None if they were not recorded."""
        leases = self._state.read().leases.values()
        return next((held.seen_before[host] for held in leases if host in held.seen_before), None)


def _mark(device: HostDevice) -> str:
    """Return the identity of a device in normal form, or its address if it has none."""
    return normal(device.identity or device.address)


def _as_told(device: Device, seen: HostDevice | None) -> Device:
    """Return a device with the identity and link that its host reports."""
    if seen is None:
        return device
    return replace(device, host_id=device.host_id or seen.identity or None, link=seen.link or device.link)
