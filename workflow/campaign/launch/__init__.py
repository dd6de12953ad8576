"""Launchers: whoever starts a run's processes inside an allocation. One table says which there are."""

from __future__ import annotations

from importlib import import_module
from typing import Protocol, cast

from campaign.config.system_file import SystemFile
from campaign.errors import ConfigError
from campaign.fabrics.hardware import Composition
from campaign.launch.protocol import Launcher

LAUNCHERS: dict[str, str] = {"local": "campaign.launch.local", "slurm": "campaign.launch.srun"}


class _Module(Protocol):
    def open_launcher(self, system: SystemFile, composition: Composition) -> Launcher: ...


def open_launcher(name: str, system: SystemFile, composition: Composition) -> Launcher:
    """A launcher by its name in the table, for steps on this composition. ConfigError: there is none of that name."""
    if name not in LAUNCHERS:
        raise ConfigError(f"launcher '{name}' is not available; there are: {', '.join(LAUNCHERS)}")
    return cast(_Module, import_module(LAUNCHERS[name])).open_launcher(system, composition)
