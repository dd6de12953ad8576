"""How a service is reached over HTTP, and where its login comes from, as a system file says."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Annotated, Self
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
        default=True, description="false: accept any certificate; `campaign fabric check` warns of it"
    )
    tunnel: bool = Field(
        default=False,
        description="true: an `http://` address is a tunnel (such as `ssh -L`) that encrypts; `campaign fabric check` lets it pass",
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
        file = self.ca_file if self.verify_tls else None
        try:
            context = ssl.create_default_context(cafile=None if file is None else Path(file).expanduser())
        except (OSError, ValueError, RuntimeError) as error:
            raise ConfigError(
                f"{self.url}: ca_file: {file}: no certificates can be read from it "
                f"({getattr(error, 'strerror', None) or error}); "
                "give a file in PEM form with the certificate of the authority that signed the control plane's"
            ) from error
        if not self.verify_tls:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context
