"""Host agents: they list the devices of a host, and take devices out of use before the fabric detaches them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from campaign.common.errors import ConfigError
from campaign.fabrics.host_agents.protocol import HostAgent
from campaign.fabrics.http.options import StrictOptions


class AgentOptions(StrictOptions):
    """Options of the host agent, which lists devices of a host and takes them out of use before the fabric detaches them."""

    kind: Literal["none", "local", "ssh", "http"] = Field(
        default="none",
        description="`none`: hosts are not inspected; `local`: this machine is the host; `ssh`: by commands through ssh; "
        "`http`: an inventory service of the site tells what each host enumerates (looks only)",
    )
    command: tuple[str, ...] = Field(
        default=("ssh", "-o", "BatchMode=yes", "{host}"), description="for `ssh`: what runs a command on a host"
    )
    sudo: tuple[str, ...] = Field(
        default=("sudo", "-n"), description="what makes a command run as root on the host; empty: nothing"
    )
    url: str | None = Field(
        default=None, description="for `http`: address with `{host}`, which gives a JSON list of devices"
    )
    virtual_machine: bool = Field(
        default=False, description="hosts are virtual machines, where devices are removed through sysfs"
    )
    ca_file: str | None = Field(
        default=None,
        description="for `http`: certificates of the authority that signed the service's; default: the machine's own",
    )
    look_s: Annotated[float, Field(gt=0)] = Field(
        default=30.0, description="seconds that one command on a host, or one answer about it, may take"
    )
    detach_s: Annotated[float, Field(gt=0)] = Field(
        default=120.0,
        description="seconds that a host may take to let a device go before it is given up, with who holds it",
    )


def open_agent(options: AgentOptions, hosts: int) -> HostAgent | None:
    """Open a host agent, or return None for kind `none`.

    Raises ConfigError if the options are incomplete for their kind, or do not fit the number of hosts.
    """
    if options.kind == "none":
        return None
    if options.kind == "http":
        from campaign.fabrics.host_agents import http_inventory

        return http_inventory.open_agent(options)
    from campaign.fabrics.host_agents import shell

    if options.kind == "local" and hosts != 1:
        raise ConfigError(f"agent: kind local looks at this machine, and there are {hosts} hosts; use ssh")
    return shell.open_agent(options)
