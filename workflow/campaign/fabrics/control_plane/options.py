"""Options that all adapters of control planes share."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from campaign.errors import ConfigError


class Closed(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Credentials(Closed):
    """Where user and password come from; they are never written in the system file. The first that is given is used.

    None given: the control plane is used without a login, where its kind allows that. See `credentials.login`.
    """

    user_env: str | None = Field(default=None, description="environment variable that has the user")
    password_env: str | None = Field(
        default=None,
        description="environment variable that has the password or API key; with `user_env` where there is a user",
    )
    file: str | None = Field(
        default=None, description="file with two lines, user and password, that only its owner can read (mode 600)"
    )
    netrc: bool = Field(
        default=False, description="look the url's host up in ~/.netrc (or $NETRC), which only its owner can read"
    )

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.user_env and not self.password_env:
            raise ValueError("`user_env` is given without `password_env`; name the variable that has the password too")
        return self


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

    @field_validator("url")
    @classmethod
    def _whole(cls, url: str) -> str:
        split = urlsplit(url)
        if not split.hostname or split.port == 0:  # a port that is none raises ValueError itself
            raise ValueError("names no host, or port 0")
        split.hostname.encode("idna")
        return url

    def tls(self) -> ssl.SSLContext:
        """What the control plane's certificate is verified with. Raises ConfigError for a `ca_file` that is none."""
        if not self.verify_tls:
            context = ssl.create_default_context()
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
            return context
        if self.ca_file is None:
            return ssl.create_default_context()
        try:
            return ssl.create_default_context(cafile=Path(self.ca_file).expanduser())
        except (OSError, ValueError, RuntimeError) as error:
            raise ConfigError(
                f"{self.url}: ca_file: {self.ca_file}: no certificates can be read from it "
                f"({getattr(error, 'strerror', None) or error}); "
                "give a file in PEM form with the certificate of the authority that signed the control plane's"
            ) from error


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
    rescan_url: str | None = Field(
        default=None,
        description="for `http`: address with `{host}` that is sent a POST to make the host look for devices again; "
        "default: nobody is asked",
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
