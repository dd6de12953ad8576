"""Connection settings of a service, as in a system file, and its login from environment variables or a private file.

Only the first login source of a system is used. A source without a usable login is an error, so that another account is never
used by accident. No message quotes the contents of a file.
"""

from __future__ import annotations

import os
import ssl
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from campaign.common.errors import ConfigError


class StrictOptions(BaseModel):
    """Base of option models that are immutable and reject unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Credentials(StrictOptions):
    """Sources of user and password, which are never written in the system file. The first source given is used.

    Without any source the control plane is used without a login, if its kind allows that.
    """

    user_env: str | None = Field(default=None, description="environment variable that contains the user name")
    password_env: str | None = Field(
        default=None,
        description="environment variable that contains the password or API key. If there is a user, set `user_env` too",
    )
    file: str | None = Field(
        default=None, description="file with two lines, user and password, which only its owner can read (mode 600)"
    )

    @model_validator(mode="after")
    def _require_password_env(self) -> Self:
        """Check that `user_env` is given together with `password_env`."""
        if self.user_env and not self.password_env:
            raise ValueError(
                "`user_env` is set without `password_env`; set `password_env` to the variable that contains the password"
            )
        return self


class ConnectionOptions(StrictOptions):
    """Address, certificates, credentials and time limits of a control plane."""

    url: str = Field(
        description="address of the control plane, such as `https://falcon.example:443`",
        pattern=r"^https?://[^\s/?#@]+(/[^\s?#]*)?$",
    )
    credentials: Credentials = Field(default=Credentials(), description="sources of user and password")
    ca_file: str | None = Field(
        default=None,
        description="file with the CA certificates that verify the control plane; default: those of this machine",
    )
    verify_tls: bool = Field(
        default=True,
        description="verification of the certificate. With false, any certificate is accepted, and `campaign fabric check` warns",
    )
    tunnel: bool = Field(
        default=False,
        description="true if an `http://` address is an encrypted tunnel (such as `ssh -L`), which `campaign fabric check` accepts",
    )
    request_s: Annotated[float, Field(gt=0)] = Field(default=30.0, description="timeout of one request in seconds")
    operation_s: Annotated[float, Field(gt=0)] = Field(
        default=600.0, description="timeout of one composition or release in seconds, including polling"
    )

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: str) -> str:
        """Check that a URL has a valid host and port."""
        split = urlsplit(url)
        if not split.hostname or split.port == 0:  # Reading an invalid port raises ValueError.
            raise ValueError("the address has no host, or has port 0")
        split.hostname.encode("idna")
        return url

    def create_tls_context(self) -> ssl.SSLContext:
        """Create the TLS context that verifies the certificate of the control plane.

        Raises ConfigError if no certificates can be read from `ca_file`.
        """
        file = self.ca_file if self.verify_tls else None
        try:
            context = ssl.create_default_context(cafile=None if file is None else Path(file).expanduser())
        except (OSError, ValueError, RuntimeError) as error:
            raise ConfigError(
                f"{self.url}: ca_file: {file}: no certificates can be read from this file "
                f"({getattr(error, 'strerror', None) or error}); use a PEM file with the certificate of the authority that "
                "signed the certificate of the control plane"
            ) from error
        if not self.verify_tls:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


_MAX_FILE_BYTES = 64 * 1024


@contextmanager
def withhold_secrets(options: Mapping[str, Any]) -> Iterator[None]:
    """Hide environment variables with the secrets of a fabric from all processes started within the `with` block.

    These are the variables named by option keys that end in `_env`. Jobs, drivers and the programs that are measured do not
    inherit them.
    """
    names = [name for name in _find_secret_variables(options) if name in os.environ]
    removed_values = {name: os.environ.pop(name) for name in names}
    try:
        yield
    finally:
        os.environ.update(removed_values)


def _find_secret_variables(options: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names of environment variables that contain secrets, from the options of a fabric at any depth."""
    for key, value in options.items():
        if isinstance(value, Mapping):
            yield from _find_secret_variables(value)
        elif key.endswith("_env") and isinstance(value, str):
            yield value


@dataclass(frozen=True, slots=True)
class Login:
    """User and password for a control plane.

    user: empty if only an API key is needed, which is then the password.
    """

    user: str
    password: str = field(repr=False)


def read_login(connection: ConnectionOptions) -> Login | None:
    """Read the login of a control plane, or return None if the system names no source. Some control planes have no login.

    Raises ConfigError, with the remedy, if the source has no usable login or users other than its owner can read it.
    """
    credentials = connection.credentials
    try:
        if credentials.password_env:
            user = _read_variable(credentials.user_env) if credentials.user_env else ""
            return Login(user, _read_variable(credentials.password_env))
        if credentials.file:
            return _read_login_file(_expand_home(credentials.file))
    except _CredentialsError as error:
        raise ConfigError(f"{connection.url}: credentials: {error}") from None
    return None


def require_login(connection: ConnectionOptions) -> Login:
    """Read the login of a control plane that cannot be used without one.

    Raises ConfigError, with the ways to provide a login, if the system names no source.
    """
    account = read_login(connection)
    if account is None:
        raise ConfigError(
            f"{connection.url}: the control plane requires a user and a password; set their source in `credentials` of the "
            "fabric: `user_env` and `password_env` (environment variables), or `file` (two lines, mode 600)"
        )
    return account


class _CredentialsError(Exception):
    """Error about a login source that cannot be used. The message does not quote the contents of the source."""


def _read_variable(name: str) -> str:
    """Return the value of an environment variable. Raises _CredentialsError if it is empty or not set."""
    value = os.environ.get(name, "")
    if not value:
        raise _CredentialsError(f"the environment variable {name} is not set; export it before you start the campaign")
    return value


def _read_login_file(path: Path) -> Login:
    """Read user and password from the two lines of a private file."""
    text = _read_private_file(path).rstrip("\r\n")
    lines = text.split("\n") if text else []
    if len(lines) != 2:
        raise _CredentialsError(
            f"{path}: the file has {len(lines)} lines; write the user on the first line (empty for an API key) and the "
            "password on the second"
        )
    user, password = (line.removesuffix("\r") for line in lines)
    return Login(user, password)


def _expand_home(path: str) -> Path:
    """Expand `~` in the path of a file."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise _CredentialsError(f"{path}: {error}") from error


def _read_private_file(path: Path) -> str:
    """Return the text of a file that belongs to this user and that no other user can access.

    Raises _CredentialsError for any other file.
    """
    try:
        # O_NONBLOCK: do not wait for the writer of a pipe. The open file is checked, so that it is the file read.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise _CredentialsError(f"{path}: this is not a regular file")
            if status.st_uid != os.geteuid():
                raise _CredentialsError(
                    f"{path}: the file belongs to another user; copy it to a file of your own with mode 600"
                )
            if status.st_mode & 0o077:
                raise _CredentialsError(
                    f"{path}: other users can read the file (mode {status.st_mode & 0o777:o}); run: chmod 600 {path}"
                )
            content = file.read(_MAX_FILE_BYTES + 1)
        if len(content) > _MAX_FILE_BYTES:
            raise _CredentialsError(
                f"{path}: the file has more than {_MAX_FILE_BYTES} bytes; use a file with only user and password"
            )
        return content.decode()
    except FileNotFoundError:
        raise _CredentialsError(f"{path}: the file does not exist; create it with mode 600") from None
    except UnicodeDecodeError:
        raise _CredentialsError(f"{path}: the file is not UTF-8 text; save it as UTF-8") from None
    except (OSError, ValueError) as error:
        raise _CredentialsError(
            f"{path}: the file cannot be read ({getattr(error, 'strerror', None) or error})"
        ) from None
