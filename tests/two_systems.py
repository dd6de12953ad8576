"""The small campaign on two systems: `bench` composes, `plain` has two devices in each of four hosts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from campaign.plan.campaign.resolve import Campaign, load_campaign
from tests import campaign_files

PLAIN: Mapping[str, Any] = {
    "name": "plain",
    "fabric": {"kind": "static"},
    "hosts": [{"name": "node[1-4]", "cores": 4, "devices": [{"model": "cpu-rank", "count": 2}]}],
    "devices": {"cpu-rank": {"runs_on": "cpu"}},
}
TWO: Mapping[str, Any] = {
    "campaign.system": None,
    "campaign.systems": ["plain", "bench"],
    "campaign.configurations": [
        {"devices_per_host": [1, 2, 4], "attach": "local"},
        {"hosts": 2, "devices_per_host": 2, "attach": "local"},
        {"devices_per_host": [2, 4], "attach": "fabric", "system": "bench"},
    ],
    "campaign.axes.precision": ["fp32"],
}


def write_files(directory: Path, changes: Mapping[str, Any] | None = None) -> Path:
    """As `campaign_files.write_site_files`, with systems/plain.yaml beside."""
    path = campaign_files.write_files(directory, {**TWO, **(changes or {})})
    (directory / "systems" / "plain.yaml").write_text(yaml.safe_dump(dict(PLAIN), sort_keys=False))
    return path


def load(directory: Path, changes: Mapping[str, Any] | None = None) -> Campaign:
    """`write_site_files` and read it back."""
    return load_campaign(write_files(directory, changes))
