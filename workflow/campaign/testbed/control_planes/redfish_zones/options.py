"""In what services of this kind differ."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

Mode = Literal["standard_one_host", "standard_two_hosts", "advanced"]


class Options(BaseModel):
    """The variant that is emulated."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    variant: Literal["falcon", "gigaio"] = Field(default="falcon", description="with drawers and modes, or without")
    modes: dict[str, Mode] = Field(default_factory=dict, description="mode by drawer; default: advanced")
    tells_modes: bool = Field(default=True, description="the chassis shows its mode")
    ports: dict[str, str] = Field(default_factory=dict, description="host by port; default: the rack's hosts in order")
    tells_hosts: bool = Field(default=True, description="the endpoint of a host port refers to its host")
    endpoints: Literal["links", "rsd21"] = Field(
        default="links", description="where the list of endpoints is in a PATCH: under `Links`, or at the top"
    )
    description: Literal["writable", "unknown", "read_only", "ignored"] = Field(
        default="writable", description="what becomes of a zone's Description in a PATCH"
    )
    descriptions: dict[str, str] = Field(default_factory=dict, description="what zones are described as at first")
    etags: Literal["none", "offered", "required"] = Field(default="none", description="versions of zones")
    tasks: bool = Field(
        default=False, description="a PATCH is answered with 202, and done when its task is asked for twice"
    )
    expand: bool = Field(default=True, description="collections answer to $expand")
    page: int = Field(default=0, ge=0, description="members on a page of a collection; 0: all")
    both_ends: bool = Field(default=True, description="endpoints tell their zones")
    details: bool = Field(default=True, description="endpoints refer to resources of their devices")
    answers: Literal["resource", "nothing"] = Field(default="resource", description="to a PATCH: 200 with it, or 204")
    others: tuple[str, ...] = Field(default=(), description="further fabrics, which are empty")
    rsd_version: str | None = Field(default=None, description="version of Intel's RSD that the root claims")
    sessions_max: int = Field(default=16, ge=1, description="sessions at one time")
    user: str = Field(default="campaign", description="who may log in")
    password: str = Field(default="learn-2-compose", description="with this")
