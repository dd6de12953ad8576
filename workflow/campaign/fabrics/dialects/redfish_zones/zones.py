"""Zones of a service, one at a time: read fresh, changed whole, and with If-Match where the service has versions.

Without versions (ETags) whatever another client writes into the same zone between our look and our change is lost: a PATCH is the
whole list. That is a moment, not a lease's time, and there is no remedy on our side.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any, Literal

from campaign.fabrics.control_plane.lease_tag import decode
from campaign.fabrics.dialects.redfish.answers import said
from campaign.fabrics.dialects.redfish.service import Service
from campaign.fabrics.dialects.redfish_zones import resources
from campaign.fabrics.dialects.redfish_zones.layout import HostPort
from campaign.fabrics.dialects.redfish_zones.resources import Zone
from campaign.fabrics.errors import Conflict, Incompatible
from campaign.fabrics.http.json_values import at
from campaign.fabrics.protocol import Tag

_NOT_KEPT = {"PropertyUnknown", "PropertyNotWritable"}


class Zones:
    """marks: zones are marked in their Description; becomes false when the service refuses that property."""

    def __init__(self, service: Service, style: Literal["links", "rsd21"], *, marks: bool) -> None:
        self._service = service
        self._style = style
        self._last: dict[str, Zone] = {}
        self.marks = marks

    def read(self, port: HostPort) -> HostPort:
        """The port with its zone as it is now."""
        zone = resources.zone(self._service.get(port.zone.path))
        self._last[zone.path] = zone
        return replace(port, zone=zone)

    def last(self, port: HostPort) -> Zone:
        """The zone as it was read last."""
        return self._last.get(port.zone.path, port.zone)

    def change(self, port: HostPort, endpoints: Sequence[str] | None, description: str | None) -> None:
        """Write the full list (None: leave it) and, where that is possible, the description (None: leave it), in one request.

        The host port's own endpoint is always in the list. Raises what `Service.change` does (Stale: changed since it was read).
        """
        if endpoints is not None and port.endpoint not in endpoints:
            endpoints = [port.endpoint, *endpoints]
        body: dict[str, Any] = {}
        if endpoints is not None:
            listing = {"Endpoints": [{"@odata.id": path} for path in endpoints]}
            body = {"Links": listing} if self._style == "links" else listing
        if self.marks and description is not None:
            body["Description"] = description
        version = self._service.etag(port.zone.path)
        try:
            self._patch(port, body, version)
        except Incompatible as error:
            about = "Description" in str(error) and any(re.search(rf"\b{word}\b", str(error)) for word in _NOT_KEPT)
            if "Description" not in body or not about:
                raise
            self.marks = False
            del body["Description"]
            self._patch(port, body, version)

    def _patch(self, port: HostPort, body: dict[str, Any], version: str | None) -> None:
        if body:
            answer = self._service.change("PATCH", port.zone.path, body, etag=version, assumed=body)
            if "Description" in body and _not_kept(answer.body):
                self.marks = False


def foreign(port: HostPort, ours: Collection[str], tag: Tag) -> None:
    """Raise Conflict when a zone is not ours: marked by another lease, or unmarked and with devices (paths) that are not ours."""
    marked = decode(port.zone.description)
    if marked is not None and marked.lease_id != tag.lease_id:
        raise Conflict(f"{tag.lease_id}: {port.words} is held by {marked.lease_id}", (marked.lease_id,))
    others = [path.rpartition("/")[2] for path in port.devices if path not in ours]
    if marked is None and others:
        raise Conflict(
            f"{tag.lease_id}: the zone of {port.words} has {', '.join(others)}, which no campaign attached",
            (port.words,),
        )


def _not_kept(body: Any) -> bool:
    """True when a success says that it did not take the Description (DSP0266: partial success is annotated)."""
    noted = {"@Message.ExtendedInfo": at(body, "Description@Message.ExtendedInfo")}
    return any(message.token in _NOT_KEPT for message in said(noted)) or any(
        message.token in _NOT_KEPT and "Description" in (*message.arguments, message.text) for message in said(body)
    )
