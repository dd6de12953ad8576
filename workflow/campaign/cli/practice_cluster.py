"""The practice cluster of a person, which commands in every terminal find without a variable."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

from campaign.common.files import is_locked

_OF_SITE = Path("/etc/slurm/slurm.conf")


def default_directory() -> Path:
    """The directory of a person's cluster when nothing else is said."""
    return Path(tempfile.gettempdir()) / f"campaign-cluster-{os.getuid()}"


def use_practice_cluster() -> None:
    """Let Slurm's commands mean the practice cluster that is up, unless SLURM_CONF or a site's slurm.conf says otherwise."""
    directory = default_directory()
    conf = directory / "etc" / "slurm.conf"
    if "SLURM_CONF" in os.environ or _OF_SITE.exists() or not conf.is_file():
        return
    status = directory.lstat()
    # A well-known name in a temporary directory is anybody's to take first.
    if stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and is_locked(directory / "keeper.lock"):
        os.environ["SLURM_CONF"] = str(conf)
