"""How it is known that the work of runs was on their devices, for readers of the report."""

from __future__ import annotations

from collections.abc import Iterable

from campaign import wording
from campaign.config.resolve import Campaign
from campaign.documents.record import Record


def device_evidence(campaign: Campaign, records: Iterable[Record]) -> list[str]:
    """A sentence; nothing where devices are processes on CPU cores, or no run is valid."""
    kinds = {each.name: campaign.device_of(each).runs_on for each in campaign.configurations}
    valid = [r for r in records if r.status == "ok" and kinds.get(r.cell.configuration, "cpu") != "cpu"]
    if not valid:
        return []
    told = [bool(record.ran_on) for record in valid]
    seen = ["device_utilisation_peak_pct" in record.metrics for record in valid]
    neither = len(valid) - sum(map(max, told, seen))
    lacking = f" {neither} have neither: that their work was on the devices is not known." if neither else ""
    return [
        f"Evidence that work was on the devices, of {wording.plural(len(valid), 'valid run')}: ranks of {sum(told)} reported the "
        f"devices of their parameters, gradients and losses; telemetry sampled how busy those of {sum(seen)} were.{lacking}"
    ]
