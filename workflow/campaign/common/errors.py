"""The few errors a person meets; each message says what, where, what is allowed, and what to do."""

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
    """Anything that is reported to the user as one message and a non-zero exit, without a traceback."""


class ConfigError(CampaignError):
    """A campaign, system or workload file that does not say a valid thing."""


class FabricError(CampaignError):
    """The fabric refused, failed or lied; the subject of the measurement is never blamed for it."""


class LaunchError(CampaignError):
    """The apparatus that starts runs (scheduler, driver, host) failed; no record is written."""

    def with_log(self, log: object) -> Self:
        """This error, which names the log that tells more; one that names a log already is left: its log is nearer."""
        if "(log: " not in str(self):
            self.args = (f"{self} (log: {log})", *self.args[1:])
        return self


class HostFailed(LaunchError):
    """Hosts that failed under an allocation, and why, where that is known: they are left out from then on."""

    def __init__(self, message: str, hosts: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.hosts = dict(hosts or {})


class RecordError(CampaignError):
    """A record, table or results directory that cannot be read or written."""


class ArchiveError(CampaignError):
    """An archive that is damaged, foreign or of another schema version."""


def unwritable(error: OSError, where: object) -> RecordError:
    """What a full disk or a lack of permission means to a person; `where` counts when the error names no file."""
    place = error.filename or where
    remedy = "free space or fix permissions"
    if error.errno in (errno.EACCES, errno.EPERM):
        remedy = f"fix permissions{whose(Path(str(place)))}"
    return RecordError(
        f"{place}: could not be written or read ({error.strerror or error}); {remedy}, "
        "then run the same command again: finished records are kept"
    )


def whose(path: Path) -> str:
    """The end of a message about a file that may not be used: whose it is, and what its owner can do; empty for this user's own.

    Of a file that cannot be looked at, the nearest directory that can be counts.
    """
    for each in (path, *path.absolute().parents):
        with suppress(OSError):
            status = each.lstat()
            break
    else:
        return ""
    if status.st_uid == os.geteuid():
        return ""
    owner, group = user_name(status.st_uid), group_name(status.st_gid)
    top = each
    while top.parent.lstat().st_uid == status.st_uid and top != top.parent:
        top = top.parent
    share = f"chgrp -R {group_name(top.parent.lstat().st_gid)} {{0}} && chmod -R g+rwX {{0}}"
    return (
        f": {each} is of user {owner}, group {group} ({stat.filemode(status.st_mode)}), and you are {user_name(os.geteuid())}; "
        f"{owner} can share it: {share.format(shlex.quote(str(top)))}"
    )


def user_name(uid: int) -> str:
    """A user's name, or number where there is none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def group_name(gid: int) -> str:
    """A group's name, or number where there is none."""
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def absent_package(*names: str) -> str | None:
    """The first of these packages that cannot be imported here, with its pip command; None where all can."""
    absent = next((name for name in names if importlib.util.find_spec(name) is None), None)
    return absent and f"{absent}; run: {shlex.join([sys.executable, '-m', 'pip', 'install', absent.replace('_', '-')])}"


@contextmanager
def needs_extra(extra: str) -> Iterator[None]:
    """Turn a failed import in this block into a ConfigError that names the extra of this package to install."""
    try:
        yield
    except ImportError as error:
        raise missing_extra(extra, f"an optional package cannot be imported ({error})") from error


def missing_extra(extra: str, problem: str) -> ConfigError:
    """The error for a package that only the optional dependencies `extra` bring."""
    return ConfigError(f"{problem}; run: {install_command(extra)}")


def install_command(extra: str, *options: str) -> str:
    """The shell command that installs the optional dependencies `extra` for the running Python, wherever this package is from."""
    try:
        known = requires("composable-campaign") or []
    except PackageNotFoundError:
        known = []
    ending = re.compile(rf"\s*;\s*extra == ['\"]{extra}['\"]$")
    packages = [ending.sub("", line) for line in known if ending.search(line)] or [f"composable-campaign[{extra}]"]
    return shlex.join([sys.executable, "-m", "pip", "install", *options, *packages])


def first_problem(error: ValidationError, whole: str = "") -> str:
    """'key.of.key: what is wrong' of a document that is not of its form; `whole` names the document where it is all of it."""
    first = error.errors(include_url=False)[0]
    return f"{'.'.join(map(str, first['loc'])) or whole}: {first['msg'].removeprefix('Value error, ')}"


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of a message about a name that is not known."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1)
    return f"did you mean '{near[0]}'?" if near else f"there are: {', '.join(names) or 'none'}"


def problems_of(check: Callable[..., object], *arguments: object) -> list[str]:
    """The messages of a check that raises ConfigError, one a line; empty when it passes."""
    try:
        check(*arguments)
    except ConfigError as error:
        return str(error).split("\n")
    return []
