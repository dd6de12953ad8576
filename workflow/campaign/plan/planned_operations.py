"""The operations of the fabric that each lease of a plan takes, in the planned order: what stays attached is not attached again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from campaign.config.open_fabric import request_of
from campaign.config.resolve import Campaign
from campaign.documents.cell import Configuration
from campaign.errors import FabricError
from campaign.fabrics.moves import Operations, attachments, operations
from campaign.fabrics.protocol import Fabric, Selection
from campaign.fabrics.registry import fabric_kind
from campaign.wording import duration, plural

Leases = Sequence[tuple[Configuration, int]]
"""Configuration and composition of each."""
Counted = Callable[[Leases], Sequence[Operations | None]]

_BLOCK, _EARLIER = "this block", "an earlier block"


@dataclass(frozen=True, slots=True)
class Moving:
    """Of several leases: how many devices composing attaches, and how long it takes; None where that is not known."""

    attached: int
    seconds: float | None

    @classmethod
    def of(cls, leases: Sequence[Operations | None], seconds: Callable[[Operations], float | None]) -> Moving | None:
        """None where it is not known which operations one of them takes."""
        counted = [each for each in leases if each is not None]
        if not counted or len(counted) < len(leases):
            return None
        known = {each: seconds(Operations(dict(each))) for each in {frozenset(each.counts.items()) for each in counted}}
        times = [known[frozenset(each.counts.items())] for each in counted]
        whole = [each for each in times if each is not None]
        return cls(sum(each.of("attach") for each in counted), sum(whole) if len(whole) == len(times) else None)

    def and_of(self, other: Moving) -> Moving:
        """Of the leases of both."""
        known = self.seconds is not None and other.seconds is not None
        return Moving(self.attached + other.attached, (self.seconds or 0.0) + (other.seconds or 0.0) if known else None)

    def words(self) -> str:
        """'38 devices, 14 min'."""
        return plural(self.attached, "device") + (f", {duration(self.seconds)}" if self.seconds else "")


def stays_attached(campaign: Campaign) -> bool:
    """Whether devices stay attached between leases of a block, on any system. Not under Slurm: hosts are everybody's then."""
    return any(
        fabric_kind(str(part.system.fabric["kind"])).keeps_attached and part.system.launcher == "local"
        for part in campaign.parts
    )


def counting_each(of_system: Mapping[str, Counted]) -> Counted:
    """The same for leases of several systems, which leave nothing to each other."""

    def count(leases: Leases) -> list[Operations | None]:
        found: list[Operations | None] = [None] * len(leases)
        for name, counted in of_system.items():
            places = [place for place, (configuration, _) in enumerate(leases) if configuration.system == name]
            for place, each in zip(places, counted([leases[place] for place in places]), strict=True):
                found[place] = each
        return found

    return count


def counting(fabric: Fabric, campaign: Campaign) -> Counted:
    """A function that gives the operations of each lease in order; None where they are not known before."""
    steps = fabric_kind(str(campaign.system.fabric["kind"])).steps
    inventory = fabric.inventory_planned()
    devices = {device.fabric_id: device for device in inventory.devices if not device.local}
    known: dict[tuple[str, frozenset[tuple[str, str]], frozenset[str]], Selection | None] = {}

    def selected(configuration: Configuration, attached: dict[str, str], stale: set[str]) -> Selection | None:
        key = configuration.name, frozenset(attached.items()), frozenset(stale)
        if key not in known:
            there = inventory.staying(attached, _BLOCK).staying({name: attached[name] for name in stale}, _EARLIER)
            try:
                request = request_of(campaign.system, "plan", campaign.name, configuration)
                known[key] = fabric.select_planned(replace(request, epoch=_BLOCK), there)
            except FabricError:
                known[key] = None
        return known[key]

    def count(leases: Leases) -> list[Operations | None]:
        if steps is None:
            return [None] * len(leases)
        attached: dict[str, str] = {}
        stale: set[str] = set()
        free: set[str] = set()
        found: list[Operations | None] = []
        block, last = 0, set[str]()
        for configuration, composition in leases:
            if composition != block:  # the last lease of a block leaves nothing
                free |= last
                attached = {name: host for name, host in attached.items() if name not in last}
                block, stale = composition, set(attached)
            selection = selected(configuration, attached, stale)
            if selection is None:
                found.append(None)
                continue
            hosts = {host.host for host in selection.hosts}
            wanted = {name: host for name, host in attachments(selection).items() if name in devices}
            found.append(operations(attached, wanted, devices, steps, stale, hosts, free))
            if stays_attached(campaign):
                left = {name: host for name, host in attached.items() if host not in hosts} | wanted
                free = (free | attached.keys()) - left.keys()
                attached = left
                stale = (stale - wanted.keys()) & attached.keys()
                last = set(wanted)
        return found

    return count
