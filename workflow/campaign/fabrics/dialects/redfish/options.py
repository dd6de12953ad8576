"""Options of the adapter for Redfish composition."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from campaign.fabrics.control_plane.options import Controlled

Way = Literal["auto", "specific", "constrained", "expand"]


class Options(Controlled):
    """A Redfish service with resource blocks. `hosts`: Id or Name of the compute block, or of the physical system, of a host; also
    of a block that does not say that it is a host."""

    auth: Literal["session", "basic"] = Field(
        default="session", description="how to log in: a session, which is ended at close, or Basic with every request"
    )
    composition: Way = Field(
        default="auto",
        description="`specific`: a system is composed of a host's block and exact devices; `constrained`: the service chooses "
        "equal devices; `expand`: blocks are added to physical systems; `auto`: what the service offers for a host",
    )
    attach_mode: Literal["hot", "powered_off"] = Field(
        default="hot",
        description="`powered_off`: hosts are forced off before devices change, and switched on after (ComputerSystem.Reset)",
    )
    reserve: bool = Field(
        default=True,
        description="mark blocks as `Reserved` while they are held, for other clients to see; two requests more a device",
    )
    poll_s: Annotated[float, Field(gt=0)] = Field(
        default=1.0, description="seconds between two polls of a task or a power state, where the service does not say"
    )
