"""Baseline of a campaign: the configuration that overheads refer to."""

from __future__ import annotations

from campaign.plan.campaign.resolve import Campaign
from campaign.spec.cell import Configuration


def choose_baseline(campaign: Campaign) -> str:
    """Return the name of the baseline: the named one, or the local configuration with the most ranks on the fewest hosts.

    A campaign on several systems has one baseline per system, joined by ', '.
    """
    if not campaign.part:
        return ", ".join(map(choose_baseline, campaign.parts))
    baseline = campaign.file.baselines.get(campaign.part) or campaign.file.baselines.get("")
    if baseline:
        return baseline
    local = [configuration for configuration in campaign.configurations if _is_local(configuration)]
    return max(local or campaign.configurations, key=lambda shape: (shape.ranks, -shape.hosts)).name


def _is_local(configuration: Configuration) -> bool:
    return configuration.attach == "local" and configuration.storage == "local"
