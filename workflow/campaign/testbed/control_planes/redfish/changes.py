"""What requests do to the emulated machine, with the bodies that DSP0266 and DSP2050 allow; anything else is refused by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from campaign.testbed.control_planes.redfish.composition import Machine, Made, Refused
from campaign.testbed.control_planes.redfish.documents import SYSTEMS, Documents
from campaign.testbed.control_planes.redfish.responses import HEADERS, etag
from campaign.testbed.control_planes.server import Reply

_CREATE = {"Name", "Description", "Links", "@odata.type"}
_ASKED = ("Processors", "Storage", "EthernetInterfaces")


class Changes:
    """Of one machine."""

    def __init__(self, machine: Machine, documents: Documents) -> None:
        self.machine = machine
        self.documents = documents

    def create(self, body: dict[str, Any]) -> Reply:
        """POST of a system: specific, or constrained where the variant says so (and then nothing else)."""
        variant = self.machine.variant
        allowed = _CREATE | ({*_ASKED, "@Redfish.ZoneAffinity"} if variant.constrained else set())
        if variant.hosts == "physical":
            raise Refused(405, "Base.1.19.OperationNotAllowed", "systems are expanded here, not composed")
        _only(body, allowed)
        if "no_description" in variant.quirks and "Description" in body:
            raise Refused(400, "Base.1.19.PropertyUnknown", "no property Description", ("Description",))
        name = body.get("Name")
        if not isinstance(name, str) or not name:
            raise Refused(400, "Base.1.19.CreateFailedMissingReqProperties", "Name is needed", ("Name",))
        blocks = self._blocks(body)
        if variant.constrained:
            if any(block not in self.machine.rack.hosts for block in blocks):
                raise Refused(400, "Base.1.19.PropertyValueNotInList", "devices are chosen by the service", ("Links",))
            asked = [(place, one) for place in _ASKED for one in body.get(place, {}).get("Members", [])]
            blocks = [*blocks, *self.machine.choose(blocks[0], asked, body.get("@Redfish.ZoneAffinity"))]
        made = self.machine.compose(name, str(body.get("Description") or ""), blocks)
        self.documents.begin()
        at = f"{SYSTEMS}/{made.id}"
        return Reply(201, self.documents.find(at), HEADERS | {"Location": at})

    def _blocks(self, body: dict[str, Any]) -> list[str]:
        """Names of the blocks that Links.ResourceBlocks refers to. Raises Refused for anything else in there."""
        links = body.get("Links")
        listing = links.get("ResourceBlocks") if isinstance(links, dict) else None
        if not isinstance(listing, list) or not listing:
            raise Refused(400, "Base.1.19.PropertyMissing", "Links.ResourceBlocks is needed", ("ResourceBlocks",))
        return [self._block(one) for one in listing]

    def _block(self, reference: Any) -> str:
        path = reference.get("@odata.id") if isinstance(reference, dict) else None
        place, _, name = str(path).rpartition("/")
        if place != self.documents.blocks_at or not self.machine.known(name):
            raise Refused(400, "Composition.1.1.ResourceBlockNotFound", f"no block {path}", (str(path),))
        return name

    def alter(self, made: Made, body: dict[str, Any]) -> Reply:
        """PATCH of a system: the whole list of its blocks."""
        _only(body, {"Links"})
        self.machine.change(made, self._blocks(body))
        return self._now(f"{SYSTEMS}/{made.id}")

    def delete(self, made: Made) -> Reply:
        self.machine.decompose(made)
        return Reply(204, None, HEADERS)

    def act(self, made: Made, action: str, body: dict[str, Any]) -> Reply:
        if action == "Reset":
            wanted = {"On": "On", "ForceOff": "Off"}.get(str(body.get("ResetType")))
            if wanted is None:
                raise Refused(
                    400, "Base.1.19.ActionParameterNotSupported", "ResetType: On, ForceOff", ("ResetType", action)
                )
            made.power_next = wanted
            return Reply(204, None, HEADERS)
        if action not in ("AddResourceBlock", "RemoveResourceBlock") or not self.machine.variant.actions:
            raise Refused(400, "Base.1.19.ActionNotSupported", f"no action {action}", (action,))
        _only(body, {"ResourceBlock", "ResourceBlockETag", "ComputerSystemETag"})
        name, there = self._block(body.get("ResourceBlock")), self.machine.blocks_of(made)
        if (name in there) == (action == "AddResourceBlock"):
            raise Refused(400, "Composition.1.1.ResourceBlockInvalid", f"{name} is (not) in {made.id} already", (name,))
        self._version(body.get("ResourceBlockETag"), f"{self.documents.blocks_at}/{name}")
        self._version(body.get("ComputerSystemETag"), f"{SYSTEMS}/{made.id}")
        self.machine.change(made, [*there, name] if name not in there else [one for one in there if one != name])
        return Reply(204, None, HEADERS)

    def _version(self, sent: Any, path: str) -> None:
        found = self.documents.find(path)
        if sent is not None and found is not None and sent != etag(found):
            raise Refused(412, "Base.1.19.PreconditionFailed", f"{path} was changed", (path,))

    def reserve(self, name: str, body: dict[str, Any]) -> Reply:
        """PATCH of a block: its mark, and nothing else."""
        _only(body, {"CompositionStatus"})
        status = body.get("CompositionStatus")
        if not isinstance(status, dict) or set(status) != {"Reserved"} or not isinstance(status["Reserved"], bool):
            raise Refused(
                400, "Base.1.19.PropertyValueTypeError", "CompositionStatus.Reserved is a boolean", ("Reserved",)
            )
        if not self.machine.known(name):
            raise Refused(404, "Base.1.19.ResourceMissingAtURI", f"no block {name}", (name,))
        (self.machine.reserved.add if status["Reserved"] else self.machine.reserved.discard)(name)
        return self._now(f"{self.documents.blocks_at}/{name}")

    def _now(self, path: str) -> Reply:
        self.documents.begin()
        found = self.documents.find(path) or {}
        version = {"ETag": etag(found)} if self.machine.variant.etags != "none" else {}
        return Reply(200, found, HEADERS | version)


def named(machine: Machine, system: str) -> Made:
    """A system by its id. Raises Refused when there is none."""
    if system not in machine.systems:
        raise Refused(404, "Base.1.19.ResourceMissingAtURI", f"no system {system}", (system,))
    return machine.systems[system]


def _only(body: dict[str, Any], names: Sequence[str] | set[str]) -> None:
    if unknown := sorted(set(body) - set(names)):
        raise Refused(400, "Base.1.19.PropertyUnknown", f"no property {unknown[0]}", unknown)
