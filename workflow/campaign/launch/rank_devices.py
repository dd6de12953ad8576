"""Which devices each rank of a step uses, and the prefix and environment that remote devices need. Pure."""

from __future__ import annotations

from campaign.errors import LaunchError
from campaign.fabrics.hardware import Composition, Device
from campaign.fabrics.launch_prefix import Given, given
from campaign.workloads.protocol import Step


class UsedDevices:
    """Devices of one composition, by host, in the order in which runs use them."""

    def __init__(self, composition: Composition) -> None:
        # The first devices of a host are used first, and local ones come before those on the fabric.
        self.by_host = {
            host.name: sorted(host.devices, key=lambda device: not device.local) for host in composition.hosts
        }

    def of(self, step: Step) -> dict[str, list[Device]]:
        """Those that a step uses, by host."""
        return {host: self.by_host.get(host, [])[:count] for host, count in step.ranks_by_host.items()}

    def given(self, step: Step) -> list[Given]:
        """For each rank, or for the one program. LaunchError: one program cannot use these devices."""
        nothing = Given()
        if not step.takes_devices or not any(device.launch for each in self.of(step).values() for device in each):
            return [nothing] * (sum(step.ranks_by_host.values()) if step.per_rank else 1)
        if step.per_rank:
            return [
                given([device.launch for device in self.by_host.get(host, [])[local : local + 1]], host)
                for host, count in step.ranks_by_host.items()
                for local in range(count)
            ]
        (first, *others) = self.of(step).items()
        if others:
            raise LaunchError(
                f"{step.argv[0]}: is one program on {first[0]}, and its devices on {', '.join(host for host, _ in others)} need a "
                "prefix or an environment of their own; start it once per rank"
            )
        try:
            return [given([device.launch for device in first[1]], first[0])]
        except ValueError as error:
            raise LaunchError(f"{step.argv[0]}: {error}; start it once per rank") from error
