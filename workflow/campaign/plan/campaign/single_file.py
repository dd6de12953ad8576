"""Check of a single system, workload or claims file, without a campaign that names it."""

from __future__ import annotations

import tempfile
from pathlib import Path

from campaign.common.errors import ConfigError
from campaign.plan.campaign.check import system_problems, workload_problems
from campaign.plan.campaign.load import Noun, validate
from campaign.plan.campaign.open_fabric import fabric_of
from campaign.plan.campaign.probable_mistakes import in_system, in_workload
from campaign.spec.system_file import SystemFile
from campaign.spec.yaml_file import YamlFile
from campaign.workloads.protocol import Workload


def check_alone(noun: Noun, source: YamlFile) -> list[str]:
    """Check a file and return its warnings. Raises ConfigError with every problem of the file."""
    if noun == "system":
        system = validate(source, SystemFile, source.path.stem)
        _refuse(system_problems(system, source))
        with tempfile.TemporaryDirectory() as state, fabric_of(system, Path(state), source.place("fabric")):
            return list(in_system(source))
    if noun == "workload":
        workload = validate(source, Workload, source.path.stem)
        _refuse(workload_problems(workload, source))
        return list(in_workload(workload, source))
    from campaign.spec.published_file import from_document  # few files are claims, and their models take time to build

    from_document(source.data, str(source.path), source.place)
    return []


def _refuse(problems: list[str]) -> None:
    if problems:
        raise ConfigError("\n".join(dict.fromkeys(problems)))
