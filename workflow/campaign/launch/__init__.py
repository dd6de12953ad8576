"""Launchers start the processes of a run inside an allocation. `LAUNCHERS` has one row per launcher."""

from __future__ import annotations

from importlib import import_module
from typing import Protocol, cast

from campaign.config.system_file import SystemFile
from campaign.errors import ConfigError, nearest
from campaign.fabrics.hardware import Composition
from campaign.launch.protocol import Launcher

LAUNCHERS: dict[str, str] = {"local": "campaign.launch.local", "slurm": "campaign.launch.srun"}


class _Module(Protocol):
    def open_launcher(self, system: SystemFile, composition: Composition) -> Launcher: ...


def open_launcher(name: str, system: SystemFile, composition: Composition) -> Launcher:
    """The launcher of a system's `launcher` key, for steps on this composition."""
    if name not in LAUNCHERS:
        raise ConfigError(f"launcher: '{name}' does not exist; {nearest(name, LAUNCHERS)}")
    return cast(_Module, import_module(LAUNCHERS[name])).open_launcher(system, composition)
