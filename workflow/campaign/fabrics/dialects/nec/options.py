"""Options of the NEC CDIM adapter."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from campaign.fabrics.control_plane.options import Controlled

Api = Literal["eeio", "cpu"]


class Options(Controlled):
    """CDIM: `hosts` gives the CDIM id of each host (it calls them nodes)."""

    prefix: str = Field(
        default="/cdim/api/v1", description="path of the API below `url`", pattern=r"^(/[^\s?#]*[^\s?#/])?$"
    )
    api: Api = Field(
        default="eeio",
        description="what a device is connected to: `eeio`: the fabric interface of the host; `cpu`: its processor, as in the "
        "public reference",
    )
    interfaces: dict[str, str] = Field(
        default_factory=dict,
        description="CDIM id of what a host's devices are connected to, by host; default: the first of its kind that CDIM lists "
        "for the host",
    )
    poll_s: Annotated[float, Field(gt=0)] = Field(
        default=10.0, description="seconds between two polls of an apply that has not finished"
    )
