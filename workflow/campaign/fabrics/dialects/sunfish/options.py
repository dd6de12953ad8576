"""Options of the Sunfish adapter."""

from __future__ import annotations

from pydantic import Field

from campaign.fabrics.control_plane.options import Controlled
from campaign.fabrics.dialects.redfish.service import Authentication


class Options(Controlled):
    """Sunfish: `hosts` gives the Id of each host's initiator endpoint."""

    fabric: str | None = Field(
        default=None, description="Id of the fabric that is used; default: the only one there is"
    )
    auth: Authentication = Field(
        default="session",
        description="how one logs in: `session`, `basic`, or `none` where the service asks for nothing",
    )
    ask_agent: bool = Field(
        default=True,
        description="read the agent's own list of connections too, to find out where Sunfish and the agent disagree",
    )
    agent_url: str | None = Field(
        default=None,
        description="address of that list (`https://agent.example:5001/redfish/v1/Fabrics/CXL/Connections`); default: the address "
        "that Sunfish has of the agent (`HostName`); where it has none, the agent is not asked",
        pattern=r"^https?://[^\s/?#@]+/[^\s?#]+$",
    )
    connection_type: str = Field(
        default="Memory", description="ConnectionType of connections to anything but drives", min_length=1
    )
