"""Strategies: how Slurm learns of composed devices. `STRATEGIES` has one row per strategy."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Protocol, cast

from campaign.config.system_file import SystemFile
from campaign.errors import ConfigError
from campaign.slurm.commands import Slurm
from campaign.slurm.strategies.protocol import Strategy

__all__ = ["STRATEGIES", "Strategy", "open_strategy"]

STRATEGIES: dict[str, str] = {
    "static": "campaign.slurm.strategies.static",
    "dynamic": "campaign.slurm.strategies.dynamic",
    "resume": "campaign.slurm.strategies.resume",
    "reservation": "campaign.slurm.strategies.reservation",
}


class _Module(Protocol):
    def open_strategy(self, system: SystemFile, slurm: Slurm, say: Callable[[str], None]) -> Strategy: ...


def open_strategy(system: SystemFile, slurm: Slurm, say: Callable[[str], None] = print) -> Strategy:
    """The strategy of the system file; `say` is told what it waits for. ConfigError: it lacks something.

    Without Slurm as launcher there is nobody to tell of devices, which is what `static` does.
    """
    name = system.slurm.strategy if system.launcher == "slurm" else "static"
    if name not in STRATEGIES:
        raise ConfigError(
            f"system {system.name}: slurm.strategy: '{name}' does not exist; there are: {', '.join(STRATEGIES)}"
        )
    return cast(_Module, import_module(STRATEGIES[name])).open_strategy(system, slurm, say)
