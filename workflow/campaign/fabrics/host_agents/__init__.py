"""Host agents: whoever looks on a host for its devices, and gets them out of use before the fabric takes them away.

A table says which there are; `open_agent` gives the one that a system file names, or None for nobody.
"""

from __future__ import annotations

from importlib import import_module
from typing import cast

from campaign.errors import ConfigError
from campaign.fabrics.host_agents.options import AgentOptions
from campaign.fabrics.host_agents.protocol import HostAgent

AGENTS: dict[str, str] = {
    "local": "campaign.fabrics.host_agents.shell",
    "ssh": "campaign.fabrics.host_agents.shell",
    "http": "campaign.fabrics.host_agents.http_inventory",
}


def open_agent(options: AgentOptions, hosts: int) -> HostAgent | None:
    """Raises ConfigError when the options do not say enough for their kind, or do not fit so many hosts."""
    if options.kind == "local" and hosts != 1:
        raise ConfigError(f"agent: kind local looks at this machine, and there are {hosts} hosts; use ssh")
    module = AGENTS.get(options.kind)
    return None if module is None else cast(HostAgent, import_module(module).open_agent(options))
