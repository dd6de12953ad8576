"""Options of the Fujitsu CDI adapter."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from campaign.fabrics.control_plane.options import Controlled


class Options(Controlled):
    """Fujitsu CDI: `hosts` gives the fabric manager's name or UUID of each machine, `models` its names of models."""

    tenant: str = Field(description="UUID of the tenant whose machines and devices are used", min_length=1)
    realm: str = Field(description="realm of the identity service that gives tokens", pattern=r"^[A-Za-z0-9_.-]+$")
    client_id: str = Field(description="client that asks for tokens", min_length=1)
    client_secret_env: str | None = Field(
        default=None, description="environment variable that has the client's secret; default: the client has none"
    )
    model_column: str = Field(
        default="model", description="column of a device's condition that names its model", min_length=1
    )
    types: dict[str, str] = Field(
        default_factory=lambda: {"gpu": "gpu", "storage": "nvme"},
        description="kind of a device in the system file, by the fabric manager's type",
    )
    request_s: Annotated[float, Field(gt=0)] = Field(
        default=180.0, description="seconds that one request may take; attaching is one"
    )
    settle_s: Annotated[float, Field(ge=0)] = Field(
        default=60.0,
        description="seconds for which a request without an answer may still take effect",
    )
