"""Snakemake's `--configfile`: a campaign file may be given there as it is."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from campaign.config.campaign_file import CampaignFile
from campaign.config.yaml_file import read_yaml
from campaign.errors import ConfigError


def with_campaign_path(config: Mapping[str, Any], configfiles: Sequence[Path]) -> dict[str, Any]:
    """Snakemake's configuration, with `campaign: PATH` instead of the keys of a campaign file that is one of the configfiles.

    ConfigError for keys of a campaign that are in no file, or that --config or another file has changed.
    """
    keys = [key for key in config if key in CampaignFile.model_fields]
    rest = {key: value for key, value in config.items() if key not in keys}
    if not keys:
        return rest
    for path in reversed(configfiles):
        document = read_yaml(path).data
        if {"configurations", "axes"} <= document.keys():
            break
    else:
        raise ConfigError(
            f"--config {keys[0]}: belongs in a campaign file; give the file with --configfile FILE or --config campaign=FILE"
        )
    changed = [key for key in keys if config[key] != document.get(key)]
    if changed:
        raise ConfigError(
            f"--config {changed[0]}: differs from {path}, and only the file counts; change it there, or copy the file"
        )
    if "campaign" in rest:
        raise ConfigError(f"--config campaign={rest['campaign']}: {path} is a campaign too; give one of the two")
    return {**rest, "campaign": os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)}
