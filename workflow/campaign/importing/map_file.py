"""The map of an import: what the logs of a directory are logs of, read from a YAML file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import cast

from campaign.config.expand_shapes import expand_shapes
from campaign.config.import_file import ImportFile, LogPattern
from campaign.config.load import Loaded, gathered, load_workload_file, validate
from campaign.config.published_file import load as load_reference
from campaign.config.system_file import SystemFile
from campaign.config.yaml_file import YamlFile, read_yaml
from campaign.errors import ConfigError
from campaign.importing.campaign_files import system_document, workload_document
from campaign.importing.log_identity import Known
from campaign.importing.path_pattern import Pattern, pattern, plain
from campaign.workloads.protocol import Workload


@dataclass(frozen=True)
class Map:
    """A valid map, with what follows from it alone."""

    path: Path
    said: ImportFile
    known: Known
    patterns: tuple[tuple[LogPattern, Pattern], ...]
    ignored: tuple[re.Pattern[str], ...]


def read_map(path: Path) -> Map:
    """Read a map and the workload files that it names; ConfigError lists what is wrong, where, and what is allowed."""
    source = read_yaml(path)
    said = cast(ImportFile, validate(source, "import"))
    system = cast(SystemFile, validate(unsaved_file(path, system_document(said, {})), "system"))
    configurations, impossible = expand_shapes(said.configurations, system, source)
    if impossible:
        raise ConfigError(f"{source.place('configurations')}: {impossible[0].shape}: {impossible[0].why}")
    models = gathered(partial(_workload, said, name, source) for name in said.workloads)
    workloads = dict(zip(said.workloads, models, strict=True))
    for name in said.references:
        load_reference(name, path.parent)
    known = Known(configurations, workloads)
    compiled = []
    for number, each in enumerate(said.logs):
        where = source.place("logs", number, "path")
        compiled.append((each, pattern(each.path, known.names(), known.words(each), where)))
    return Map(path, said, known, tuple(compiled), tuple(map(plain, said.ignore)))


def unsaved_file(path: Path, document: Mapping[str, object]) -> YamlFile:
    """A document that stands for a YAML file."""
    return YamlFile(path, dict(document), {})


def _workload(said: ImportFile, name: str, source: YamlFile) -> Workload:
    entry = said.workloads[name]
    if entry.parser is not None or entry.parsers:
        return cast(Workload, validate(unsaved_file(source.path, workload_document(name, said)), "workload"))
    loaded: Loaded[Workload] = load_workload_file(name, source.path)
    if not loaded.model.reads_log:
        raise ConfigError(
            f"{source.place('workloads', name)}: workload '{name}' ({loaded.model.kind}) gives its numbers in files of its own, "
            "not in its log; give a 'parser' or 'parsers' here, under a name of their own"
        )
    return loaded.model
