"""Options of the adapter for Redfish zones."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from campaign.fabrics.banks import Mode
from campaign.fabrics.control_plane.options import Controlled
from campaign.fabrics.hardware import HostSpec


class Options(Controlled):
    """A chassis with one zone a host port. `hosts`: the host port of a host, as H1 or the id of its endpoint; see also `ports`."""

    auth: Literal["session", "basic"] = Field(
        default="session", description="how to log in: a session, which is ended at close, or Basic with every request"
    )
    fabric: str | None = Field(default=None, description="Id of the fabric, where the service has several (`PCIe`)")
    endpoints: Literal["links", "rsd21"] = Field(
        default="links",
        description='where a PATCH has the list: `links`: {"Links": {"Endpoints": [..]}}; `rsd21`: {"Endpoints": [..]}',
    )
    tag: Literal["description", "none"] = Field(
        default="description",
        description="how a zone is marked as ours: in its Description, which gets back what was there before; "
        "`none`: not on the chassis, where others then cannot see whose it is",
    )
    ports: dict[str, tuple[str, ...]] = Field(
        default_factory=dict,
        description="host ports of a host that is cabled to several (`host1: [H1, H3]`); default: `hosts`, then the ports that "
        "the system file names, then those that the chassis says are connected to a host of that name",
    )
    modes: dict[str, Mode] = Field(
        default_factory=dict,
        description="mode of a drawer (`falcon1/drawer2` or `drawer2`), for plans and for a chassis that does not tell it; "
        "default: advanced, and no limit in plans. It is never changed",
    )
    telemetry: bool = Field(
        default=True,
        description="read link health, error counts, traffic and temperature before and after every lease; "
        "the report tells of errors",
    )
    poll_s: Annotated[float, Field(gt=0)] = Field(
        default=1.0, description="seconds between two polls of a task, where the chassis does not say"
    )

    def host_ports(self, host: HostSpec) -> tuple[str, ...]:
        """What the system file names as host ports of a host; empty where it names none."""
        one = (self.hosts[host.name],) if host.name in self.hosts else ()
        return self.ports.get(host.name) or one or tuple(port.rpartition("/")[2] for port in host.ports)
