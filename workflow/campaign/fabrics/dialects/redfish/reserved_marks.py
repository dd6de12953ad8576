"""The mark `Reserved` on blocks: a courtesy to other clients of the service, which protects nothing (DSP2050). Ours are taken away.

Which were set is remembered before the first is. Only devices are marked, never hosts: so a mark on a host is somebody else's, in
every process that reads it. A block that is marked, not composed and not remembered is foreign.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from campaign.errors import FabricError
from campaign.fabrics.control_plane.protocol import Change, Remember
from campaign.fabrics.dialects.redfish import resources
from campaign.fabrics.dialects.redfish.answers import Missing, Stale
from campaign.fabrics.dialects.redfish.ownership import ServiceView
from campaign.fabrics.dialects.redfish.resources import Block, tag_of
from campaign.fabrics.dialects.redfish.service import Service
from campaign.fabrics.errors import Busy, Conflict, Incompatible, OutcomeUnknown, PartialFailure

HANDLE = "reserved"


class Reserving:
    """The marks of one change."""

    def __init__(self, service: Service, seen: ServiceView, change: Change, wanted: bool) -> None:
        self._service = service
        self._seen = seen
        self._change = change
        self._wanted = wanted
        self._ours = set(change.handles.get(HANDLE, "").split())

    def begin(self, remember: Remember) -> None:
        """Remember every block that will be marked: after a crash nobody could tell whose marks they are."""
        blocks = self._blocks(name for names in self._change.hosts.values() for name in names)
        new = {block.uri for block in blocks if not block.reserved and not self._seen.reading.listing(block)}
        if self._wanted and new - self._ours:
            self._ours |= new
            remember(HANDLE, " ".join(sorted(self._ours)))

    def reserve(self, names: Iterable[str]) -> None:
        """Mark the blocks of a host. Raises Conflict or Busy with none of them marked."""
        done: list[Block] = []
        for block in self._blocks(names) if self._wanted else ():
            if (block.reserved and block.uri in self._ours) or self._seen.reading.listing(block):
                continue  # marked or attached before
            try:
                if block.reserved:
                    raise Conflict(f"{block.id} is reserved by another client", ("another client that reserved it",))
                self._mark(block)
            except (Busy, Conflict):
                self._unmark(done)
                raise
            except (Incompatible, Missing):
                # A service on which marks cannot be set has none that anybody would look at.
                self._wanted = False
                return
            done.append(block)

    def _mark(self, block: Block) -> None:
        try:
            self._set(block, True)
        except Stale:
            now = resources.block(self._service.get(block.uri))
            if now.reserved or now.systems:
                raise Conflict(f"{block.id} was taken by another client", ("somebody",)) from None
            self._set(block, True)

    def _set(self, block: Block, value: bool) -> None:
        if not value:  # composing and decomposing changed it since it was read, which is nobody else's doing
            self._service.forget(block.uri)
        self._service.change("PATCH", block.uri, {"CompositionStatus": {"Reserved": value}}, assumed={})

    def take_back(self, names: Iterable[str]) -> None:
        """Unmark the blocks of a host that was not composed after all. Raises PartialFailure when one stays marked."""
        if self._wanted:
            self._unmark([block for block in self._blocks(names) if block.uri in self._ours])

    def _unmark(self, blocks: Iterable[Block]) -> None:
        for block in blocks:
            try:
                self._set(block, False)
            except OutcomeUnknown:
                raise
            except FabricError as error:
                names = [name for name, one in self._seen.blocks.items() if one.uri == block.uri]
                raise PartialFailure(f"{block.id}: its mark cannot be taken back: {error}", (), names) from error

    def clear(self, names: Sequence[str]) -> tuple[str, ...]:
        """Take away the marks on devices that were given back; gives those that the service would not unmark.

        Ours are those that were remembered, and those on blocks that our own system had: decomposing leaves them marked.
        """
        stuck: list[str] = []
        for block in self._blocks(names):
            ours = block.uri in self._ours or self._composed_by_us(block)
            if not ours or not (block.reserved or self._service.client.rehearses):
                continue
            try:
                self._set(block, False)
            except Missing:
                continue
            except (Busy, Conflict, Incompatible):
                stuck.extend(name for name in names if self._seen.blocks[name].uri == block.uri)
        return tuple(stuck)

    def _composed_by_us(self, block: Block) -> bool:
        tags = (tag_of(self._seen.reading.systems[path]) for path in self._seen.reading.listing(block))
        return block.reserved and any(tag is not None and tag.lease_id == self._change.tag.lease_id for tag in tags)

    def _blocks(self, names: Iterable[str]) -> list[Block]:
        """The blocks of devices, each once."""
        found = (self._seen.blocks[name] for name in names if name in self._seen.blocks)
        return list({block.uri: block for block in found}.values())
