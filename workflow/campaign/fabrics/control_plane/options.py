"""Options that all adapters of control planes share."""

from __future__ import annotations

from pydantic import Field

from campaign.fabrics.host_agents import AgentOptions
from campaign.fabrics.http.options import Connection


class Controlled(Connection):
    """What every adapter of a control plane is told."""

    hosts: dict[str, str] = Field(
        default_factory=dict, description="the fabric's name or id of a host, where it is not the system file's"
    )
    models: dict[str, str] = Field(
        default_factory=dict,
        description="the system file's name of a device model, by what the fabric calls it (`NVIDIA A100-PCIE-40GB: a100-40gb`)",
    )
    agent: AgentOptions = Field(
        default=AgentOptions(), description="how the devices of a host are listed and released there"
    )

    def model(self, told: str) -> str:
        """The system file's name of what the fabric calls a model."""
        return self.models.get(told, "-".join(told.lower().split()))
