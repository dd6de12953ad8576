"""Which operations a change of attachments takes, known before anything is touched. Pure.

Forecasts, costs and the order of leases all count with `operations`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from campaign.documents.operation_times import Operation, Timed
from campaign.fabrics.hardware import Device
from campaign.fabrics.protocol import Selection

Key = tuple[Operation, str, str]
"""Operation, kind of device, box; the last two are empty where an operation is of all boxes."""


@dataclass(frozen=True, slots=True)
class Steps:
    """What a kind of fabric does to change attachments, as operations one after another.

    attach: to attach a device of which nobody knows where it is; free: one that no host has; move: one that is attached to another
    host; detach: to free one.
    once: at every composing that changes anything, and beside it the `rest`. confirmed: a state counts that two readings agree on,
    so that a reading is two of those that were recorded by others.
    """

    attach: tuple[Operation, ...] = ("attach",)
    free: tuple[Operation, ...] = ("attach",)
    move: tuple[Operation, ...] = ("detach", "attach")
    detach: tuple[Operation, ...] = ("detach",)
    once: tuple[Operation, ...] = ()
    confirmed: bool = False


@dataclass(frozen=True, slots=True)
class Operations:
    """How many operations of which kind."""

    counts: Mapping[Key, int] = field(default_factory=dict)

    @classmethod
    def counted(cls, timed: Iterable[Timed]) -> Operations:
        """Those that were timed."""
        return cls(Counter((each.operation, each.device, each.box) for each in timed))

    def of(self, operation: Operation) -> int:
        return sum(count for key, count in self.counts.items() if key[0] == operation)

    def __bool__(self) -> bool:
        return any(self.counts.values())

    def __add__(self, other: Operations) -> Operations:
        return Operations(Counter(self.counts) + Counter(other.counts))


def operations(
    before: Mapping[str, str],
    wanted: Mapping[str, str],
    devices: Mapping[str, Device],
    steps: Steps,
    stale: Collection[str] = (),
    hosts: Collection[str] = (),
    free: Collection[str] = (),
) -> Operations:
    """From what is attached where to what is wanted, both as host by fabric id; devices built into hosts are passed over.

    before: only what this program may detach. What it holds there on a host that gets devices, and that is not wanted, is detached.
    stale: devices that are detached and attached anew, even where they are. hosts: those that are in use beside.
    free: devices of which it is known that no host has them.
    """
    counts: Counter[Key] = Counter()
    hosts = {*hosts, *wanted.values()}
    for name in dict.fromkeys((*wanted, *before)):
        device = devices.get(name)
        if device is None or device.local:
            continue
        at, to = before.get(name), wanted.get(name)
        if to is not None and (at != to or name in stale):
            taken = steps.move if at is not None else steps.free if name in free else steps.attach
        elif to is None and at in hosts:
            taken = steps.detach
        else:
            continue
        counts.update((each, device.kind, box_of(device)) for each in taken)
    if counts:
        counts.update((each, "", "") for each in (*steps.once, "rest"))
    return Operations(counts)


def attachments(selection: Selection) -> dict[str, str]:
    """Host by fabric id."""
    return {name: host.host for host in selection.hosts for name in host.ids}


def box_of(device: Device) -> str:
    """The part of a fabric that a device is in, such as its drawer."""
    return device.location.rpartition("/")[0]
