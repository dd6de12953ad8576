"""View of the hosts on the devices that a fabric attached to them: identities, links, and their assignment to fabric ids.

Built-in devices are not verified here. Like those of a static system, they are verified by the first step of an allocation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from campaign.common.errors import FabricError
from campaign.fabrics.host_agents.protocol import HostAgent, HostBusy, HostDevice, match_devices
from campaign.fabrics.state_file import StateFile
from campaign.spec.hardware import ComposedHost, Composition, Device, normalize_identity


class HostView:
    """Devices of the hosts of one system, as listed by a host agent.

    Without an agent, all devices count as visible. If the fabric reports no identity for a device, it is identified as a
    device that the host did not have before; the earlier devices are in the state file.
    """

    def __init__(self, agent: HostAgent | None, state: StateFile, built_in_kinds: Mapping[str, frozenset[str]]) -> None:
        """Create the view for the hosts of one system.

        Args:
            agent: host agent, or None if hosts are not inspected.
            state: state file of the fabric.
            built_in_kinds: kinds of the devices built into a host, by host name.
        """
        self._agent = agent
        self._state = state
        self._built_in_kinds = built_in_kinds

    @property
    def has_agent(self) -> bool:
        """True if a host agent is configured."""
        return self._agent is not None

    def list_devices(self, host: str) -> tuple[tuple[str, str], ...] | None:
        """Return (identity, model) of each device that a host lists.

        Returns None if no host agent is configured. Raises FabricError if the host cannot be queried.
        """
        return (
            None
            if self._agent is None
            else tuple((device.identity, device.model) for device in self._agent.list_devices(host))
        )

    def list_keys_before_attach(self, hosts: Mapping[str, Sequence[Device]]) -> dict[str, tuple[str, ...]]:
        """Return the keys of devices that hosts list before an attach, if they are needed to identify new devices.

        Every host is queried, because a device on a host that cannot be queried could not be detached again. Raises FabricError.
        """
        if self._agent is None:
            return {}
        keys_by_host = {
            host: tuple(_build_device_key(listed_device) for listed_device in self._agent.list_devices(host))
            for host, devices in hosts.items()
            if devices
        }
        return {host: keys for host, keys in keys_by_host.items() if any(not device.host_id for device in hosts[host])}

    def add_host_data(self, host: ComposedHost) -> ComposedHost:
        """Return a host with the identities and links of its devices as the host reports them.

        If the host cannot be queried, it is returned unchanged: the devices of a lease are known without its hosts.
        `find_visible_devices` raises the error in that case.
        """
        try:
            host_devices = self._match_devices(host.name, (*host.devices, *host.storage))
        except FabricError:
            return host
        return replace(
            host,
            devices=tuple(_merge_host_data(device, host_devices.get(device.fabric_id)) for device in host.devices),
            storage=tuple(_merge_host_data(device, host_devices.get(device.fabric_id)) for device in host.storage),
        )

    def find_visible_devices(self, composition: Composition) -> frozenset[str]:
        """Return the fabric ids of devices that their hosts can use now, and of devices that are not verified."""
        unverified_ids = {device.fabric_id for device in composition.devices} - self.list_devices_to_verify(composition)
        pairs = (self._match_devices(host.name, (*host.devices, *host.storage)) for host in composition.hosts)
        return frozenset(unverified_ids).union(
            name for matches in pairs for name, device in matches.items() if device.ready
        )

    def list_devices_to_verify(self, composition: Composition) -> frozenset[str]:
        """Return the fabric ids of devices that are verified on their hosts: pooled devices, if there is an agent."""
        pooled_devices = (d for d in composition.devices if not d.local)
        return frozenset(device.fabric_id for device in pooled_devices if self._agent is not None)

    def rescan_hosts(self, composition: Composition) -> None:
        """Make each host with pooled devices scan for devices."""
        if self._agent is not None:
            for host in composition.hosts:
                if any(not device.local for device in (*host.devices, *host.storage)):
                    self._agent.rescan(host.name)

    def drain_devices(self, host: str, devices: Sequence[Device], *, force: bool) -> None:
        """Take attached devices out of use on their host.

        Raises HostBusy if a device is in use or cannot be identified, and FabricError if the host cannot be queried, unless
        `force` is True.
        """
        if self._agent is None or not devices:
            return
        try:
            self._detach_devices(self._agent, host, devices, force)
        except HostBusy:
            raise
        except FabricError as error:
            if not force:
                raise FabricError(
                    f"{error}; correct `agent` in the system file, or detach the devices without the host: "
                    "'campaign fabric reconcile SYSTEM --release --force'"
                ) from error

    def _detach_devices(self, agent: HostAgent, host: str, devices: Sequence[Device], force: bool) -> None:
        """Take identified devices out of use on their host. Raises HostBusy if a device cannot be identified."""
        if unidentified_ids := [
            device.fabric_id for device in devices if not device.host_id and self._is_ambiguous(host, device)
        ]:
            raise HostBusy(
                f"{host}: {', '.join(unidentified_ids)} cannot be identified among the devices of the host, because neither "
                "the fabric nor the state file has their identity; end their use manually, then detach them with the fabric's "
                "own tools"
            )
        agent.detach(host, tuple(self._match_devices(host, devices).values()), force=force)

    def close(self) -> None:
        """Close the host agent."""
        if self._agent is not None:
            self._agent.close()

    def _match_devices(self, host: str, devices: Iterable[Device]) -> dict[str, HostDevice]:
        """Return the host's device for each fabric id that can be identified."""
        identifiable_devices = [d for d in devices if not d.local and (d.host_id or not self._is_ambiguous(host, d))]
        if self._agent is None or not identifiable_devices:
            return {}
        host_devices = self._agent.list_devices(host)
        if any(not device.host_id for device in identifiable_devices):
            earlier_keys = self._read_earlier_device_keys(host) or ()
            host_devices = tuple(
                host_device for host_device in host_devices if _build_device_key(host_device) not in earlier_keys
            )
        return match_devices(identifiable_devices, host_devices)

    def _is_ambiguous(self, host: str, device: Device) -> bool:
        """Return True if a pooled device without an identity could be confused with a built-in device of the host."""
        return device.kind in self._built_in_kinds.get(host, ()) and self._read_earlier_device_keys(host) is None

    def _read_earlier_device_keys(self, host: str) -> tuple[str, ...] | None:
        """Return the keys of devices that the host had before its current lease, or None if they were not recorded."""
        leases = self._state.read().leases.values()
        return next((lease_claim.seen_before[host] for lease_claim in leases if host in lease_claim.seen_before), None)


def _build_device_key(device: HostDevice) -> str:
    """Return the normalized identity of a device, or its address if it has no identity."""
    return normalize_identity(device.identity or device.address)


def _merge_host_data(device: Device, host_device: HostDevice | None) -> Device:
    """Return a device with the identity and link that its host reports."""
    if host_device is None:
        return device
    return replace(device, host_id=device.host_id or host_device.identity or None, link=host_device.link or device.link)
