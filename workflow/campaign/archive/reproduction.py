"""The campaign of an archive as files that make it run again, here or on another system."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import yaml

from campaign.archive.layout import CAMPAIGN, CONFIG
from campaign.archive.programs import is_program
from campaign.archive.read import Opened
from campaign.archive.write import beside
from campaign.config.expand_shapes import device_models
from campaign.config.load import LoadedFile
from campaign.config.system_file import SystemFile
from campaign.errors import ArchiveError, ConfigError, unwritable

SUFFIX = "-again"
"""End of the campaign's name, so that no record of the archive's campaign counts for it."""


def write_campaign(archive: Opened, directory: Path, system: LoadedFile[SystemFile] | None = None) -> Path:
    """Write `config/` with the campaign, its systems, workloads and programs into a directory that is not there;
    gives the campaign file.

    system: another one to run on. Devices that it does not have become its own. ArchiveError for what was never measured by this
    program; ConfigError for a campaign of several systems and another one.
    """
    campaign = archive.campaign
    if campaign.file.imported:
        raise ArchiveError(f"campaign '{campaign.name}' was imported from logs; its runs cannot be made again")
    if system and campaign.file.systems:
        raise ConfigError(
            f"campaign '{campaign.name}' compares {campaign.system_names}; leave --system out, and name others in "
            f"`systems` of its file"
        )
    if directory.exists():
        raise ConfigError(f"{directory}: already exists and is not replaced; give another --output")
    # campaign.json says what the programs were called, so that those in config/inputs/ are found.
    members = {
        name: each for name, each in beside(campaign).items() if name == CAMPAIGN or name.startswith(f"{CONFIG}/")
    }
    programs = [name for name in archive.index.sha256 if is_program(name)]
    path = f"{CONFIG}/campaign.yaml"
    document = yaml.safe_load(members[path]) | {"name": f"{campaign.name}{SUFFIX}"}
    if system:
        del members[f"{CONFIG}/systems/{document['system']}.yaml"]
        document |= {
            "system": system.model.name,
            "configurations": _on_devices(document["configurations"], device_models(system.model)),
        }
        members[f"{CONFIG}/systems/{system.model.name}.yaml"] = system.source.path.read_bytes()
    members[path] = _yaml(document)
    try:
        for name, content in {
            **members,
            **{name: (archive.directory / name).read_bytes() for name in programs},
        }.items():
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            (directory / name).write_bytes(content)
        for name in programs:
            (directory / name).chmod((archive.directory / name).stat().st_mode)
    except OSError as error:
        raise unwritable(error, directory) from error
    return directory / path


def keep_configurations(path: Path, names: Collection[str]) -> None:
    """Have a campaign file measure these configurations only."""
    document = yaml.safe_load(path.read_bytes())
    document["axes"]["configuration"] = list(names)
    if isinstance(document.get("baseline"), str) and document["baseline"] not in names:
        del document["baseline"]
    path.write_bytes(_yaml(document))


def _on_devices(shape: Any, known: Collection[str]) -> Any:
    """Shapes without the device models that a system does not have."""
    if isinstance(shape, list):
        return [_on_devices(each, known) for each in shape]
    if not isinstance(shape, Mapping):
        return shape
    kept = {key: _on_devices(each, known) for key, each in shape.items() if key != "device"}
    asked = shape.get("device") or []
    there = [each for each in ([asked] if isinstance(asked, str) else asked) if each in known]
    return {**kept, **({"device": there if isinstance(asked, list) else there[0]} if there else {})}


def _yaml(document: Any) -> bytes:
    text: str = yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=100)
    return text.encode()
