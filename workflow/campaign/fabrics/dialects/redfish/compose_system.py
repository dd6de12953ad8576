"""One system for one host: composed of its block and devices, found again by its Name, and deleted; nothing else is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from campaign.fabrics.control_plane.lease_tag import encode
from campaign.fabrics.control_plane.protocol import Change, Remember
from campaign.fabrics.dialects.redfish.error_messages import Missing
from campaign.fabrics.dialects.redfish.host_power import Power
from campaign.fabrics.dialects.redfish.lease_names import name_of
from campaign.fabrics.dialects.redfish.ownership import Seat, ServiceView
from campaign.fabrics.dialects.redfish.resources import Block, System
from campaign.fabrics.dialects.redfish.service import Service, uri
from campaign.fabrics.dialects.redfish.session import header, local
from campaign.fabrics.errors import Conflict, Incompatible, PartialFailure
from campaign.fabrics.http.client import Answer

_ORDINARY = {"gpu": "GPU", "fpga": "FPGA"}


class Composing:
    """Composition by POST to the collection of systems. constrained: the service chooses the devices, of the same models."""

    def __init__(self, service: Service, seen: ServiceView, power: Power, *, constrained: bool = False) -> None:
        self._service = service
        self._seen = seen
        self._power = power
        self._constrained = constrained

    def attach(self, seat: Seat, change: Change, remember: Remember) -> None:
        """Compose the host's system, or complete the one that a former try has left."""
        assert seat.block is not None
        names = change.hosts[seat.host]
        blocks = {self._seen.blocks[name].uri: self._seen.blocks[name] for name in names}
        there = self._seen.system_of(change.tag.lease_id, seat.host)
        if there is not None:
            self._complete(there, blocks, names)
            return
        for inside in seat.block.own_systems:
            self._power.off(inside)
        name = name_of(change.tag.lease_id, seat.host)
        wanted = self._wanted(seat.block, blocks, names) | {"Name": name, "Description": encode(change.tag)}
        expected = f"{self._seen.reading.systems_at}/<{name}>"
        answer = self._post(wanted, {"@odata.id": expected})
        path = _made(answer)
        if path is not None:
            remember(_handle(seat.host), path)
            self._power.on(path)

    def _post(self, wanted: dict[str, Any], assumed: dict[str, Any]) -> Answer:
        at = self._seen.reading.systems_at
        try:
            return self._service.change("POST", at, wanted, assumed=assumed)
        except Incompatible as error:
            if "Description" not in str(error):
                raise
            # The Name says whose it is as well; campaign and owner are in the state file.
            without = {key: value for key, value in wanted.items() if key != "Description"}
            return self._service.change("POST", at, without, assumed=assumed)

    def _wanted(self, host: Block, blocks: Mapping[str, Block], names: tuple[str, ...]) -> dict[str, Any]:
        if not self._constrained:
            return {"Links": {"ResourceBlocks": [{"@odata.id": path} for path in (host.uri, *blocks)]}}
        body: dict[str, Any] = {"Links": {"ResourceBlocks": [{"@odata.id": host.uri}]}}
        zones = self._seen.common(Seat("", host), blocks.values())
        if self._seen.reading.affinity and zones:
            body["@Redfish.ZoneAffinity"] = zones[0].id
        for collection, wanted in self._requests(blocks, names):
            body.setdefault(collection, {"Members": []})["Members"].append(wanted)
        return body

    def _requests(self, blocks: Mapping[str, Block], names: tuple[str, ...]) -> Iterator[tuple[str, dict[str, Any]]]:
        """(collection, what is asked of it), one for each kind and model: as many as were selected."""
        counts: dict[tuple[str, str | None], int] = {}
        for path in blocks:
            for part in self._seen.reading.parts.get(path, ()):
                counts[part.kind, part.model] = counts.get((part.kind, part.model), 0) + 1
        for (kind, model), count in counts.items():
            wanted: dict[str, Any] = {"@Redfish.RequestedCount": count, "@Redfish.AllowOverprovisioning": False}
            if model is not None:
                wanted["Model"] = model
            if kind == "nvme":
                yield "Storage", wanted
            elif kind == "nic":
                yield "EthernetInterfaces", wanted
            else:
                yield "Processors", wanted | {"ProcessorType": _ORDINARY.get(kind, kind)}

    def _complete(self, system: System, blocks: Mapping[str, Block], names: tuple[str, ...]) -> None:
        """A system of a former try has everything, or is given what it lacks with the whole list of its blocks."""
        missing = [path for path in blocks if path not in (system.blocks or ())]
        if not missing or self._constrained:
            return
        whole = [{"@odata.id": path} for path in (*(system.blocks or ()), *missing)]
        try:
            self._power.off(system.uri)
            self._service.change("PATCH", system.uri, {"Links": {"ResourceBlocks": whole}}, assumed={})
            self._power.on(system.uri)
        except (Conflict, Incompatible) as error:
            failed = [name for name in names if self._seen.blocks[name].uri in missing]
            done = [name for name in names if name not in failed]
            raise PartialFailure(
                f"{system.name}: composed before without {', '.join(failed)}: {error}", done, failed
            ) from error

    def detach(self, host: str, change: Change) -> None:
        """Delete the system that this lease composed for a host; one that is gone is passed over, a physical one is never found."""
        system = self._seen.system_of(change.tag.lease_id, host)
        path = system.uri if system is not None else None
        if path is None and self._service.client.rehearses:
            path = change.handles.get(_handle(host))
        if path is None:
            return
        try:
            self._power.off(path)
            self._service.change("DELETE", path, assumed=None)
        except Missing:
            return


def _handle(host: str) -> str:
    return f"system:{host}"


def _made(answer: Answer) -> str | None:
    """Where the system is that was made; None for a service that does not say: it is found by its Name."""
    location = header(answer, "Location")
    if location:
        return local(location)
    return uri(answer.body)
