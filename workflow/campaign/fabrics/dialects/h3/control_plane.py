"""GPU boxes as one control plane: nothing joins them, so each is read and ordered by itself.

A box has no call that moves a device: it is detached, and then attached. In between it is nobody's and may not be listed, so that
what it was called is written into the state file before (`State.detached`). What a call answers says nothing: the box is read right
before each one, as ids of devices change, and after it; a device has moved when the box shows it so.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from campaign.documents.operation_times import Operation
from campaign.errors import FabricError
from campaign.fabrics.banks import Bank
from campaign.fabrics.control_plane.protocol import Change, ControlPlane, Remember, View
from campaign.fabrics.dialects.h3.box import Box
from campaign.fabrics.dialects.h3.layout import Layout
from campaign.fabrics.dialects.h3.listing import Gpu, Listing, unknown
from campaign.fabrics.dialects.h3.options import Options
from campaign.fabrics.errors import Conflict, Incompatible, OutcomeUnknown, PartialFailure, ProtocolViolation
from campaign.fabrics.hardware import Device, HostSpec, PoolSpec
from campaign.fabrics.http.client import Client
from campaign.fabrics.operation_log import timing
from campaign.fabrics.protocol import Capabilities, Survey
from campaign.fabrics.state_file import Detached, StateFile

NOTE = (
    "written from what public clients of two Falcon 4005 boxes sent and logged; no box was tried. A box has no field for a tag, so "
    "that only the state file says whose a device is"
)
JUST_BEFORE_S = 5.0
"""How old a reading may be by which a device is addressed, where nothing was ordered since."""
PORT_RULE = "a host has a port in the box of each of its devices"


class Plane(ControlPlane):
    keeps_attached = True

    def __init__(self, options: Options, hosts: Sequence[HostSpec], pool: Sequence[PoolSpec], state: StateFile) -> None:
        options.fit(hosts, pool)
        self._layout = Layout(options, tuple(host.name for host in hosts), tuple(pool))
        self._state = state
        first, *others = options.boxes
        self.client = Client(options.connection(first))
        beside = {name: Client(options.connection(name), beside=self.client) for name in others}
        self._boxes = {
            name: Box(name, client, state.path.parent, poll_s=options.poll_s, reads_max=options.reads_max)
            for name, client in {first: self.client, **beside}.items()
        }
        self._read: dict[str, tuple[float, Listing]] = {}
        self._ordered_last: set[str] = set()
        self._rehearsed: set[str] = set()

    def capabilities(self) -> Capabilities:
        seen = sum(len(listing.gpus) for _, listing in self._read.values())
        return Capabilities(max_devices_per_host=max(1, seen), gives_host_id=True, note=NOTE)

    def view(self) -> View:
        before = self._state.read().detached
        self._rehearsed = set()
        with self.client.operation(), ThreadPoolExecutor(len(self._boxes)) as threads:
            # What a box showed after the last order will do once, to read back what was composed.
            just, self._ordered_last = self._ordered_last, set()
            asked = {box: self._just_before if box in just else self._reading for box in self._boxes}
            listings = dict(zip(asked, threads.map(lambda box: asked[box](box), asked), strict=True))
        state = self._state.read()  # anew: what was detached meanwhile is not listed
        return self._layout.view(listings, {**before, **state.detached}, state.devices)

    def _reading(self, box: str) -> Listing:
        listing = self._boxes[box].read()
        self._read[box] = (time.monotonic(), listing)
        return listing

    def _just_before(self, box: str) -> Listing:
        """The box as it is now, by a reading after the last order of this program."""
        when, listing = self._read.get(box, (0.0, None))
        return listing if listing is not None and time.monotonic() - when < JUST_BEFORE_S else self._reading(box)

    def survey(self) -> Survey:
        boxes = [box.survey() for box in self._boxes.values()]
        return Survey(unknown([shape for box in boxes for shape in box["records"]]), {"boxes": boxes})

    def banks(self, view: View) -> Sequence[Bank]:
        return self._layout.banks(view.devices)

    def planned(self, pool: Sequence[PoolSpec], hosts: Sequence[str]) -> tuple[Sequence[Device], Sequence[Bank]]:
        return self._layout.planned()

    def objection(self, change: Change, view: View) -> str | None:
        wanted = {(self._layout.split(name)[0], host) for host, names in change.hosts.items() for name in names}
        for box, host in sorted(wanted):
            port, (_, listing) = self._layout.port(box, host), self._read.get(box, (0.0, None))
            if listing is not None and port not in listing.ports:
                there = ", ".join(sorted(listing.ports))
                return f"{box} lists no port {port} for {host} (see `hosts` and `ports`); there are: {there}"
        return None

    def attach(self, change: Change, remember: Remember) -> None:
        done, failed, lost = list[str](), dict[str, FabricError](), list[str]()
        for host, names in change.hosts.items():
            for name in names:
                try:
                    lost += self._attach(name, host)
                except FabricError as error:
                    if isinstance(error, Conflict) and not done and not failed:
                        raise
                    failed[name] = error
                else:
                    done.append(name)
        if failed:
            raise _partial(change, "attached", done, failed)
        if lost:
            raise OutcomeUnknown(
                f"{change.tag.lease_id}: {'; '.join(lost)}; the boxes show all devices attached by now"
            )

    def _attach(self, name: str, host: str) -> list[str]:
        """Attach one device that nobody has, with a second try where the box said nothing; gives the answers that were lost."""
        (box, uuid), lost = self._layout.split(name), list[str]()
        port = self._layout.port(box, host)
        for _ in range(2):
            now = self._just_before(box)
            gpu, port_gid = now.gpu(uuid), now.ports.get(str(port))
            there = gpu is not None and name not in self._rehearsed
            if gpu is not None and there and gpu.port == port:
                self._forget(name)
                return lost
            if port_gid is None:
                raise Incompatible(
                    f"{box} lists no port {port} for {host}; it has {', '.join(sorted(now.ports))}", PORT_RULE
                )
            if gpu is not None and there and gpu.port in now.ports:
                where = self._layout.end(box, str(gpu.port))
                raise Conflict(f"{name} is attached to {where}", (where,))
            gid = self._gid(name, now)
            said = self._ordered("attach", box, lambda gid=gid, to=port_gid: self._boxes[box].attach(gid, to), lost)  # type: ignore[misc]
            if self.client.rehearses:
                return lost
            after = self._read_back(box).gpu(uuid)
            if after is not None and after.port == port:
                self._forget(name)
                return lost
            if said:
                raise ProtocolViolation(f"{box} answered {said}, and does not show it on port {port} of {host}")
        raise OutcomeUnknown(f"{'; '.join(lost)}; ordered twice, and {box} does not show it on port {port} of {host}")

    def detach(self, change: Change) -> tuple[str, ...]:
        done, failed, stuck = list[str](), dict[str, FabricError](), list[str]()
        for host, names in change.hosts.items():
            for name in names:
                try:
                    gone = self._detach(name, host)
                except FabricError as error:
                    failed[name] = error
                else:
                    (done if gone else stuck).append(name)
        if failed:
            raise _partial(change, "detached", done, failed, stuck)
        return tuple(stuck)

    def _detach(self, name: str, host: str) -> bool:
        """Take one device from a host; True when the box shows it there no more. Again where the box said nothing."""
        (box, uuid), lost = self._layout.split(name), list[str]()
        port = self._layout.port(box, host)
        for _ in range(2):
            now = self._just_before(box)
            gpu = now.gpu(uuid)
            if gpu is None or (gpu.port != port and not self.client.rehearses):
                return True
            gid = self._gid(name, now)
            if self.client.rehearses:
                self._boxes[box].detach(gid)
                self._rehearsed.add(name)
                return True
            self._remember(name, gpu, now)
            said = self._ordered("detach", box, lambda gid=gid: self._boxes[box].detach(gid), lost)  # type: ignore[misc]
            after = self._read_back(box).gpu(uuid)
            if after is None or after.port != port:
                return True
            if said:
                return False
        raise OutcomeUnknown(f"{'; '.join(lost)}; ordered twice, and {box} still shows it on port {port} of {host}")

    def _read_back(self, box: str) -> Listing:
        with timing("read_back", "gpu", box):
            return self._reading(box)

    def _ordered(self, what: Operation, box: str, order: Callable[[], str], lost: list[str]) -> str:
        """What the box answered; "" where it said nothing, which is then added to `lost`."""
        if not self.client.rehearses:
            self._read.pop(box, None)
            self._ordered_last.add(box)
        try:
            with timing(what, "gpu", box) as answered:
                answered.answer = order()
            return answered.answer
        except OutcomeUnknown as error:
            lost.append(str(error))
            return ""

    def _gid(self, name: str, now: Listing) -> str:
        """What a device is called at this moment. Raises FabricError where that cannot be known with certainty."""
        box, uuid = self._layout.split(name)
        gpu = now.gpu(uuid)
        if gpu is not None:
            if len(now.called(gpu.gid)) > 1:
                raise ProtocolViolation(f"{box} lists {gpu.gid} as the Dev_GID of {', '.join(now.called(gpu.gid))}")
            return gpu.gid
        told = self._state.read().detached.get(name)
        if told is None:
            raise FabricError(f"{box} does not list {uuid}, and it was not this program that detached it")
        others = {each.uuid: each.gid for each in now.gpus}
        if told.called in others.values() or any(others.get(one, gid) != gid for one, gid in told.others.items()):
            raise FabricError(
                f"{box} does not list {uuid}, and has given its devices other Dev_GIDs since it was detached as {told.called}: "
                "attach it to any host with H3's own tools"
            )
        return told.called

    def _remember(self, name: str, gpu: Gpu, now: Listing) -> None:
        others = {each.uuid: each.gid for each in now.gpus if each.uuid != gpu.uuid}
        with self._state.change() as state:
            state.detached[name] = Detached(called=gpu.gid, port=str(gpu.port), others=others)

    def _forget(self, name: str) -> None:
        if name in self._state.read().detached:
            with self._state.change() as state:
                del state.detached[name]


def _partial(
    change: Change, what: str, done: Sequence[str], failed: Mapping[str, FabricError], more: Sequence[str] = ()
) -> PartialFailure:
    words = "; ".join(f"{name}: {error}" for name, error in failed.items())
    return PartialFailure(f"{change.tag.lease_id}: could not be {what}: {words}", done, (*failed, *more))
