"""Table of launchers, which start the processes of a run inside an allocation."""

from __future__ import annotations

import pkgutil
from typing import TYPE_CHECKING

from campaign.common.errors import ConfigError, suggest_name

if TYPE_CHECKING:  # Commands that start and stop slurmd import this package without the modules of configuration files.
    from campaign.spec.hardware import Composition
    from campaign.spec.system_file import SystemFile
    from campaign.workloads.launcher import Launcher

LAUNCHERS: dict[str, str] = {
    "local": "campaign.run.local_launcher:LocalLauncher",
    "slurm": "campaign.slurm.srun:SrunLauncher",
}
"""Class of each launcher, by its name in system files."""


def open_launcher(name: str, system: SystemFile, composition: Composition) -> Launcher:
    """Create the launcher named by a system's `launcher` key, for steps on this composition.

    Raises ConfigError if there is no launcher of this name.
    """
    if name not in LAUNCHERS:
        raise ConfigError(f"launcher: '{name}' does not exist; {suggest_name(name, LAUNCHERS)}")
    launcher: Launcher = pkgutil.resolve_name(LAUNCHERS[name])(system, composition)
    return launcher
