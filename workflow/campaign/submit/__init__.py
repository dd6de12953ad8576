"""Submission: how a driver gets to where it measures. One table says which ways there are."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Protocol, cast

from campaign.config.resolve import Campaign
from campaign.errors import ConfigError
from campaign.paths import Results
from campaign.submit.protocol import Fate, MakeDriver, StillQueued, Submission, Submitter

__all__ = ["Fate", "StillQueued", "Submission", "Submitter", "open_submitter"]

SUBMITTERS: dict[str, str] = {"local": "campaign.submit.local", "slurm": "campaign.submit.slurm"}


class _Module(Protocol):
    def open_submitter(
        self, campaign: Campaign, results: Results, driver: MakeDriver, say: Callable[[str], None]
    ) -> Submitter: ...


def open_submitter(
    campaign: Campaign, results: Results, driver: MakeDriver, say: Callable[[str], None] = print
) -> Submitter:
    """The submitter of the campaign's launcher. driver: makes what is started for a request; say: is told what it waits for."""
    name = campaign.system.launcher
    if name not in SUBMITTERS:
        raise ConfigError(f"launcher '{name}' is not available; there are: {', '.join(SUBMITTERS)}")
    return cast(_Module, import_module(SUBMITTERS[name])).open_submitter(campaign, results, driver, say)
