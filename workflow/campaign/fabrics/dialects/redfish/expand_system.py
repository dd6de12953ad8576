"""Adding pooled blocks to a physical system, and taking them out again: its list of blocks is changed, it itself never."""

from __future__ import annotations

from campaign.fabrics.dialects.redfish import resources
from campaign.fabrics.dialects.redfish.error_messages import Stale
from campaign.fabrics.dialects.redfish.host_power import Power
from campaign.fabrics.dialects.redfish.ownership import Seat, ServiceView
from campaign.fabrics.dialects.redfish.resources import System
from campaign.fabrics.dialects.redfish.service import Service
from campaign.fabrics.errors import Busy, Conflict, Incompatible, PartialFailure
from campaign.fabrics.http.client import Answer


class Expanding:
    """Expansion of physical systems: by actions where the system advertises them, else by a PATCH with the whole list."""

    def __init__(self, service: Service, seen: ServiceView, power: Power) -> None:
        self._service = service
        self._seen = seen
        self._power = power

    def attach(self, seat: Seat, system: System, names: tuple[str, ...]) -> None:
        paths = self._paths(names)
        there = system.blocks or ()
        missing = {path: names for path, names in paths.items() if path not in there}
        if not missing:
            return
        self._power.off(system.uri)
        try:
            if system.add is not None:
                self._act(system, system.add, missing)
            else:
                self._list(system, add=tuple(missing))
        except BaseException:
            # Off is no way to leave a host; whether the change was done is not its matter.
            self._power.on(system.uri)
            raise
        self._power.on(system.uri)

    def detach(self, seat: Seat, system: System, names: tuple[str, ...], rehearses: bool) -> None:
        paths = self._paths(names)
        there = {path: names for path, names in paths.items() if rehearses or path in (system.blocks or ())}
        if not there:
            return
        self._power.off(system.uri)
        try:
            if system.remove is not None:
                self._act(system, system.remove, there)
            else:
                self._list(system, remove=tuple(there))
        finally:
            self._power.on(system.uri)

    def _paths(self, names: tuple[str, ...]) -> dict[str, list[str]]:
        """Devices by the address of their block."""
        found: dict[str, list[str]] = {}
        for name in names:
            found.setdefault(self._seen.blocks[name].uri, []).append(name)
        return found

    def _act(self, system: System, target: str, paths: dict[str, list[str]]) -> None:
        """One action a block. Raises Busy or Conflict when the first is refused, PartialFailure for a later one."""
        done: list[str] = []
        for path, names in paths.items():
            body: dict[str, object] = {"ResourceBlock": {"@odata.id": path}}
            etag = self._service.etag(path)
            if etag is not None:
                body["ResourceBlockETag"] = etag
            try:
                self._service.change("POST", target, body, assumed={})
            except (Busy, Conflict, Incompatible) as error:
                if not done:
                    raise
                failed = [name for path in paths for name in paths[path] if name not in done]
                raise PartialFailure(f"{system.id}: {error}", done, failed) from error
            done.extend(names)

    def _list(self, system: System, add: tuple[str, ...] = (), remove: tuple[str, ...] = ()) -> Answer:
        """Send the whole list: services differ in what an element left out, or an empty one, means to them."""
        try:
            return self._send(system, add, remove)
        except Stale:
            # Somebody changed the list since it was read; the next try is made from what it is now.
            return self._send(resources.system(self._service.get(system.uri)), add, remove)

    def _send(self, system: System, add: tuple[str, ...], remove: tuple[str, ...]) -> Answer:
        whole = [path for path in dict.fromkeys((*(system.blocks or ()), *add)) if path not in remove]
        body = {"Links": {"ResourceBlocks": [{"@odata.id": path} for path in whole]}}
        return self._service.change("PATCH", system.uri, body, assumed={})
