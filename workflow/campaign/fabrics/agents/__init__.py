"""Host agents: whoever looks on a host for its devices, and gets them out of use before the fabric takes them away.

A table says which there are; `open_agent` gives the one that a system file names, or None for nobody.
"""

from __future__ import annotations

from importlib import import_module
from typing import cast

from campaign.fabrics.agents.protocol import HostAgent
from campaign.fabrics.control.options import AgentOptions

AGENTS: dict[str, str] = {
    "local": "campaign.fabrics.agents.commands",
    "ssh": "campaign.fabrics.agents.commands",
    "http": "campaign.fabrics.agents.inventory",
}


def open_agent(options: AgentOptions) -> HostAgent | None:
    """Raises ConfigError when the options do not say enough for their kind."""
    module = AGENTS.get(options.kind)
    return None if module is None else cast(HostAgent, import_module(module).open_agent(options))
