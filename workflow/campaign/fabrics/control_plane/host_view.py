"""What hosts show of the devices that a fabric attached to them: identities, links, and which is which.

Built-in devices are not looked for here: like those of a static system they are verified by the first step of an allocation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from campaign.common.errors import FabricError
from campaign.fabrics.host_agents.protocol import HostAgent, HostBusy, HostDevice, pair
from campaign.fabrics.state_file import StateFile
from campaign.spec.hardware import ComposedHost, Composition, Device, normal


class HostView:
    """The hosts of one system through an agent; None: nobody looks, and everything counts as seen.

    Where the fabric tells no identity, a device of it is one that the host did not have before: what it had is in the state file.
    own: kinds of the devices that are built into a host, by its name.
    """

    def __init__(self, agent: HostAgent | None, state: StateFile, own: Mapping[str, frozenset[str]]) -> None:
        self._agent = agent
        self._state = state
        self._own = own

    @property
    def looks(self) -> bool:
        return self._agent is not None

    def listed(self, host: str) -> tuple[tuple[str, str], ...] | None:
        """Identity and model of what a host lists; None where nobody looks. Raises FabricError for one that cannot be asked."""
        return None if self._agent is None else tuple((one.identity, one.model) for one in self._agent.devices(host))

    def before(self, hosts: Mapping[str, Sequence[Device]]) -> dict[str, tuple[str, ...]]:
        """What hosts have before devices are attached, where that is needed to know those afterwards.

        Each host is asked: what is attached to one that cannot be asked could not be detached again. Raises FabricError.
        """
        if self._agent is None:
            return {}
        had = {
            host: tuple(_mark(one) for one in self._agent.devices(host)) for host, devices in hosts.items() if devices
        }
        return {host: marks for host, marks in had.items() if any(not device.host_id for device in hosts[host])}

    def told(self, host: ComposedHost) -> ComposedHost:
        """A host's devices with the identities and links that the host itself tells; without them where it cannot be asked.

        Whether it sees them is for `seen`, which raises then: what a lease holds is known without its hosts.
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
        """Fabric ids of what the hosts can use now, and of what is not looked for."""
        others = {device.fabric_id for device in composition.devices} - self.looked_for(composition)
        pairs = (self._pairs(host.name, (*host.devices, *host.storage)) for host in composition.hosts)
        return frozenset(others).union(name for found in pairs for name, device in found.items() if device.ready)

    def looked_for(self, composition: Composition) -> frozenset[str]:
        looked = (d for d in composition.devices if not d.local)
        return frozenset(device.fabric_id for device in looked if self._agent is not None)

    def rescan(self, composition: Composition) -> None:
        if self._agent is not None:
            for host in composition.hosts:
                if any(not device.local for device in (*host.devices, *host.storage)):
                    self._agent.rescan(host.name)

    def drain(self, host: str, devices: Sequence[Device], *, force: bool) -> None:
        """Get attached devices out of use on their host. Raises HostBusy, also when it cannot be known which they are, and
        FabricError for a host that cannot be asked, unless `force`.
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
        if unknown := [device.fabric_id for device in devices if not device.host_id and self._confusable(host, device)]:
            raise HostBusy(
                f"{host}: which of its devices {', '.join(unknown)} are is unknown: neither the fabric nor the state file tells; "
                "stop their use by hand, then detach them with the fabric's own tools"
            )
        agent.detach(host, tuple(self._pairs(host, devices).values()), force=force)

    def close(self) -> None:
        if self._agent is not None:
            self._agent.close()

    def _pairs(self, host: str, devices: Iterable[Device]) -> dict[str, HostDevice]:
        wanted = [d for d in devices if not d.local and (d.host_id or not self._confusable(host, d))]
        if self._agent is None or not wanted:
            return {}
        seen = self._agent.devices(host)
        if any(not device.host_id for device in wanted):
            had = self._had(host) or ()
            seen = tuple(one for one in seen if _mark(one) not in had)
        return pair(wanted, seen)

    def _confusable(self, host: str, device: Device) -> bool:
        """True when a device of the fabric without an identity could as well be one that is built into the host."""
        return device.kind in self._own.get(host, ()) and self._had(host) is None

    def _had(self, host: str) -> tuple[str, ...] | None:
        """What the host had before the lease that holds it; None when nobody looked."""
        leases = self._state.read().leases.values()
        return next((held.seen_before[host] for held in leases if host in held.seen_before), None)


def _mark(device: HostDevice) -> str:
    return normal(device.identity or device.address)


def _as_told(device: Device, seen: HostDevice | None) -> Device:
    if seen is None:
        return device
    return replace(device, host_id=device.host_id or seen.identity or None, link=seen.link or device.link)
