"""Options of the NEC CDIM adapter."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from campaign.fabrics.control_plane.options import Controlled
from campaign.fabrics.http.options import Closed

Api = Literal["eeio", "cpu"]
_PATH = r"^(/[^\s?#]*[^\s?#/])?$"
_URL = r"^https?://[^\s/?#@]+(/[^\s?#]*)?$"


class LoginService(Closed):
    """The login service beside CDIM's gateway, by OpenID Connect with a password (the client must allow direct access grants)."""

    url: str | None = Field(
        default=None,
        description="where it is, such as `https://cdim.example:8287`; default: the fabric's `url`",
        pattern=_URL,
    )
    realm: str = Field(default="CDIM", description="its realm", pattern=r"^[A-Za-z0-9_.-]+$")
    client_id: str = Field(
        default="cdim-client",
        description="client that asks for tokens; the gateway accepts those of one client",
        min_length=1,
    )
    client_secret_env: str | None = Field(
        default=None, description="environment variable that has the client's secret; default: the client has none"
    )


class Options(Controlled):
    """CDIM: `hosts` gives the CDIM id of each host (it calls them nodes). `url` is its configuration-manager (port 8280), or its
    gateway (port 8014)."""

    prefix: str = Field(
        default="/cdim/api/v1",
        description="path of the configuration-manager's API below `url`; behind the gateway `/cdim/api/v1/configuration-manager`",
        pattern=_PATH,
    )
    layout_apply_url: str | None = Field(
        default=None,
        description="where layout-apply is, when it has a port of its own (`https://cdim.example:8013`); default: `url`",
        pattern=_URL,
    )
    layout_apply_prefix: str | None = Field(
        default=None,
        description="path of layout-apply's API; behind the gateway `/cdim/api/v1/layout-apply`; default: `prefix`",
        pattern=_PATH,
    )
    login: LoginService | None = Field(
        default=None,
        description="the login service that gives tokens for the gateway; default: none, as the services' own ports ask nobody",
    )
    api: Api = Field(
        default="cpu",
        description="what a device is connected to: `cpu`: the host's processor, as in CDIM 0.1 and its reference; `eeio`: the "
        "adapter of the fabric (`destinationFabricAdapter`), as the public Kubernetes client of the product asks for it",
    )
    interfaces: dict[str, str] = Field(
        default_factory=dict,
        description="CDIM id of what a host's devices are connected to, by host; default: the first of its kind that CDIM lists "
        "for the host",
    )
    poll_s: Annotated[float, Field(gt=0)] = Field(
        default=10.0, description="seconds between two polls of an apply that has not finished"
    )
    settle_s: Annotated[float, Field(ge=0)] = Field(
        default=300.0, description="seconds that CDIM's lists may take to show what an apply has done"
    )

    @model_validator(mode="after")
    def _somebody_asks(self) -> Self:
        given = self.credentials
        if self.login is None and (given.password_env or given.file or given.netrc):
            raise ValueError(
                "`credentials` are given, and nobody asks for them: name the login service in `login` (CDIM's gateway has one "
                "beside it), or remove them (the services' own ports ask nobody)"
            )
        return self
