"""Errors that are shown to the user, and helpers that word their messages.

Each message has what is wrong, where, what is allowed, and what to do.
"""

from __future__ import annotations

import difflib
import errno
import grp
import importlib.util
import os
import pwd
import re
import shlex
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from pydantic import ValidationError


class CampaignError(Exception):
    """Error that is reported to the user as one message and a non-zero exit status, without a traceback."""


class ConfigError(CampaignError):
    """Error of a campaign, system or workload file with invalid content."""


class FabricError(CampaignError):
    """Error of a fabric that refused a request, failed, or reported something false.

    The subject of the measurement is never blamed for it.
    """


class LaunchError(CampaignError):
    """Failure of the apparatus that starts runs (scheduler, driver, host). No record is written."""

    def with_log(self, log: object) -> Self:
        """Return this error with the path of a detailed log appended to its message.

        A message that names a log already is left as it is, because that log is closer to the cause.
        """
        if "(log: " not in str(self):
            self.args = (f"{self} (log: {log})", *self.args[1:])
        return self


class HostFailed(LaunchError):
    """Failure of hosts under an allocation. These hosts are left out from then on.

    Attributes:
        hosts: reason of the failure by host, as far as it is known.
    """

    def __init__(self, message: str, hosts: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.hosts = dict(hosts or {})


class RecordError(CampaignError):
    """Error of a record, table or results directory that cannot be read or written."""


class ArchiveError(CampaignError):
    """Error of an archive that is damaged, foreign or of another schema version."""


def convert_os_error(error: OSError, default_path: object) -> RecordError:
    """Convert an OSError, such as a full disk or a missing permission, into a RecordError with a remedy.

    Args:
        error: failure of a file operation.
        default_path: path for the message if the error names no file.
    """
    path = error.filename or default_path
    remedy = "free space or fix permissions"
    if error.errno in (errno.EACCES, errno.EPERM):
        remedy = f"fix permissions{describe_owner(Path(str(path)))}"
    return RecordError(
        f"{path}: could not be written or read ({error.strerror or error}); {remedy}, "
        "then run the same command again: finished records are kept"
    )


def describe_owner(path: Path) -> str:
    """Describe the owner of an inaccessible file and the command that shares it, to append to an error message.

    If the file itself cannot be examined, the nearest accessible directory above it is described. The result is empty if that
    file or directory belongs to this user.
    """
    for accessible in (path, *path.absolute().parents):
        with suppress(OSError):
            status = accessible.lstat()
            break
    else:
        return ""
    if status.st_uid == os.geteuid():
        return ""
    owner, group = get_user_name(status.st_uid), get_group_name(status.st_gid)
    top = accessible
    while top.parent.lstat().st_uid == status.st_uid and top != top.parent:
        top = top.parent
    share_command = f"chgrp -R {get_group_name(top.parent.lstat().st_gid)} {{0}} && chmod -R g+rwX {{0}}"
    return (
        f": {accessible} belongs to user {owner}, group {group} "
        f"({stat.filemode(status.st_mode)}), and you are {get_user_name(os.geteuid())}; "
        f"{owner} can share it with: {share_command.format(shlex.quote(str(top)))}"
    )


def get_user_name(uid: int) -> str:
    """Return the name of a user, or the number if the user has no name."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def get_group_name(gid: int) -> str:
    """Return the name of a group, or the number if the group has no name."""
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def find_missing_package(*names: str) -> str | None:
    """Return the first of these packages that cannot be imported, with the pip command that installs it.

    Returns None if all of them can be imported.
    """
    missing = next((name for name in names if importlib.util.find_spec(name) is None), None)
    return (
        missing and f"{missing}; run: {shlex.join([sys.executable, '-m', 'pip', 'install', missing.replace('_', '-')])}"
    )


@contextmanager
def require_extra(extra: str) -> Iterator[None]:
    """Turn a failed import in this block into a ConfigError that names the extra of this package to install."""
    try:
        yield
    except ImportError as error:
        raise make_missing_extra_error(extra, f"an optional package cannot be imported ({error})") from error


def make_missing_extra_error(extra: str, problem: str) -> ConfigError:
    """Build the ConfigError for a package that only optional dependencies install.

    Args:
        extra: name of the group of optional dependencies.
        problem: beginning of the message.
    """
    return ConfigError(f"{problem}; run: {format_install_command(extra)}")


def format_install_command(extra: str, *options: str) -> str:
    """Return the shell command that installs optional dependencies for the running Python, wherever this package comes from.

    Args:
        extra: name of the group of optional dependencies.
        *options: further options of `pip install`.
    """
    try:
        requirements = requires("composable-campaign") or []
    except PackageNotFoundError:
        requirements = []
    marker_pattern = re.compile(rf"\s*;\s*extra == ['\"]{extra}['\"]$")
    packages = [marker_pattern.sub("", line) for line in requirements if marker_pattern.search(line)] or [
        f"composable-campaign[{extra}]"
    ]
    return shlex.join([sys.executable, "-m", "pip", "install", *options, *packages])


def format_first_error(error: ValidationError, document_name: str = "") -> str:
    """Format the first problem of an invalid document as 'key.of.key: what is wrong'.

    Args:
        error: validation error of the document.
        document_name: name that replaces the key if the document as a whole is invalid.
    """
    first = error.errors(include_url=False)[0]
    return f"{'.'.join(map(str, first['loc'])) or document_name}: {first['msg'].removeprefix('Value error, ')}"


def suggest_name(name: str, allowed_names: Iterable[str]) -> str:
    """Suggest the most similar name, or else all allowed names, to append to a message about an unknown name."""
    names = sorted(allowed_names)
    matches = difflib.get_close_matches(name, names, n=1)
    return f"did you mean '{matches[0]}'?" if matches else f"there are: {', '.join(names) or 'none'}"


def collect_problems(check: Callable[..., object], *arguments: object) -> list[str]:
    """Return the messages of a check that raises ConfigError, one per line. The list is empty if the check passes.

    Args:
        check: function that raises ConfigError.
        *arguments: arguments of the function.
    """
    try:
        check(*arguments)
    except ConfigError as error:
        return str(error).split("\n")
    return []
