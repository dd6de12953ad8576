"""Check of a single system, workload or claims file without a campaign."""

from __future__ import annotations

import tempfile
from pathlib import Path

from campaign.common.errors import ConfigError
from campaign.plan.campaign.check import find_system_problems, find_workload_problems
from campaign.plan.campaign.load import Noun, validate
from campaign.plan.campaign.open_fabric import open_system_fabric
from campaign.plan.campaign.probable_mistakes import warn_of_system, warn_of_workload
from campaign.spec.system_file import SystemFile
from campaign.spec.yaml_file import YamlFile
from campaign.workloads.protocol import Workload


def check_single_file(noun: Noun, source: YamlFile) -> list[str]:
    """Check a file and return its warnings. Raises ConfigError with every problem of the file."""
    if noun == "system":
        system = validate(source, SystemFile, source.path.stem)
        _raise_problems(find_system_problems(system, source))
        with (
            tempfile.TemporaryDirectory() as state,
            open_system_fabric(system, Path(state), source.format_location("fabric")),
        ):
            return list(warn_of_system(source))
    if noun == "workload":
        workload = validate(source, Workload, source.path.stem)
        _raise_problems(find_workload_problems(workload, source))
        return list(warn_of_workload(workload, source))
    from campaign.spec.published_file import (
        from_document,
    )  # imported only if needed, because the models take time to build

    from_document(source.data, str(source.path), source.format_location)
    return []


def _raise_problems(problems: list[str]) -> None:
    if problems:
        raise ConfigError("\n".join(dict.fromkeys(problems)))
