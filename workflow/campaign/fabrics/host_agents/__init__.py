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
        description="`none`: hosts are not inspected; `local`: this machine is the host; `ssh`: hosts run commands through ssh; "
        "`http`: an inventory service of the site lists the devices of each host, but cannot take them out of use",
    )
    command: tuple[str, ...] = Field(
        default=("ssh", "-o", "BatchMode=yes", "{host}"),
        description="for `ssh`: command that runs another command on a host",
    )
    sudo: tuple[str, ...] = Field(
        default=("sudo", "-n"),
        description="words before a command that needs root on the host; empty if none are needed",
    )
    url: str | None = Field(
        default=None, description="for `http`: address with `{host}` that returns a JSON list of devices"
    )
    virtual_machine: bool = Field(
        default=False, description="hosts are virtual machines, in which devices are removed through sysfs"
    )
    ca_file: str | None = Field(
        default=None,
        description="for `http`: file with the CA certificates that verify the service; default: those of this machine",
    )
    look_s: Annotated[float, Field(gt=0)] = Field(
        default=30.0,
        description="timeout of one command on a host, or of one answer of the inventory service, in seconds",
    )
    detach_s: Annotated[float, Field(gt=0)] = Field(
        default=120.0,
        description="timeout for taking a device out of use, in seconds. The error message then names the users of the device",
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
        raise ConfigError(
            f"agent: kind local inspects only this machine, but the system has {hosts} hosts; use kind ssh"
        )
    return shell.open_agent(options)
