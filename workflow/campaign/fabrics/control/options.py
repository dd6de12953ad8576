"""Options that all adapters of control planes share."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field


class Closed(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Credentials(Closed):
    """Where user and password come from; they are never written in the system file. The first that is given is used."""

    user_env: str | None = Field(default=None, description="environment variable that has the user")
    password_env: str | None = Field(default=None, description="environment variable that has the password or API key")
    file: str | None = Field(
        default=None, description="file with two lines, user and password, that only its owner can read (mode 600)"
    )
    netrc: bool = Field(default=False, description="look the host up in ~/.netrc (or $NETRC)")


class Connection(Closed):
    """How a control plane is reached."""

    url: str = Field(
        description="where it is, such as `https://falcon.example:443`", pattern=r"^https?://[^\s/?#@]+(/[^\s?#]*)?$"
    )
    credentials: Credentials = Field(default=Credentials(), description="where user and password come from")
    ca_file: str | None = Field(
        default=None,
        description="certificates of the authority that signed the control plane's; default: the machine's own",
    )
    verify_tls: bool = Field(
        default=True, description="false: believe any certificate; `campaign fabric check` warns of it"
    )
    request_s: Annotated[float, Field(gt=0)] = Field(default=30.0, description="seconds that one request may take")
    operation_s: Annotated[float, Field(gt=0)] = Field(
        default=600.0, description="seconds that composing or releasing may take, polling included"
    )

    def tls(self) -> ssl.SSLContext | bool:
        """What httpx verifies with."""
        if not self.verify_tls:
            return False
        return ssl.create_default_context(cafile=str(Path(self.ca_file).expanduser()) if self.ca_file else None)


class AgentOptions(Closed):
    """Who looks at a host's devices, and gets them out of use before the fabric takes them away."""

    kind: Literal["none", "local", "ssh", "http"] = Field(
        default="none",
        description="`none`: nobody looks on the hosts; `local`: this machine is the host; `ssh`: by commands through ssh; "
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
    detach_s: Annotated[float, Field(gt=0)] = Field(
        default=120.0,
        description="seconds that a host may take to let a device go before it is given up, with who holds it",
    )


class Controlled(Connection):
    """What every adapter of a control plane is told."""

    hosts: dict[str, str] = Field(
        default_factory=dict, description="the fabric's name or id of a host, where it is not the system file's"
    )
    models: dict[str, str] = Field(
        default_factory=dict,
        description="the system file's name of a device model, by what the fabric calls it (`NVIDIA A100-PCIE-40GB: a100-40gb`)",
    )
    agent: AgentOptions = Field(default=AgentOptions(), description="who looks on the hosts")
