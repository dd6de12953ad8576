"""Discovery of a user's practice cluster. Commands in every terminal find it without an environment variable."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

from campaign.common.files import is_locked

_SITE_SLURM_CONF = Path("/etc/slurm/slurm.conf")


def get_default_directory() -> Path:
    """Return the default directory of the current user's practice cluster."""
    return Path(tempfile.gettempdir()) / f"campaign-cluster-{os.getuid()}"


def use_practice_cluster() -> None:
    """Set SLURM_CONF to the running practice cluster of this user.

    Nothing is changed if SLURM_CONF is set, if the site has its own slurm.conf, or if no practice cluster runs.
    """
    directory = get_default_directory()
    conf = directory / "etc" / "slurm.conf"
    if "SLURM_CONF" in os.environ or _SITE_SLURM_CONF.exists() or not conf.is_file():
        return
    status = directory.lstat()
    # Another user could have created a directory of this well-known name first, so the owner is checked.
    if stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and is_locked(directory / "keeper.lock"):
        os.environ["SLURM_CONF"] = str(conf)
