"""Map of an import, a YAML file that assigns logs to runs by path patterns with names in braces."""

from __future__ import annotations

import re
import string
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from campaign.common.errors import ConfigError, nearest
from campaign.importing.campaign_files import system_document, workload_document
from campaign.importing.log_facts import NUMBERS, MapDeclarations, Unread
from campaign.plan.campaign.expand_shapes import expand_shapes
from campaign.plan.campaign.import_file import ImportFile, LogPattern
from campaign.plan.campaign.load import gathered, load_named, validate
from campaign.spec.published_file import load as load_reference
from campaign.spec.system_file import SystemFile
from campaign.spec.yaml_file import YamlFile, read_yaml
from campaign.workloads.protocol import Workload


@dataclass(frozen=True)
class Pattern:
    """Path pattern as regular expressions.

    Attributes:
        strict: matches if every name has one of its known words.
        shortest: the same with the shortest text for each name, from the left.
        loose: matches even if a name has an unknown word.
    """

    strict: re.Pattern[str]
    shortest: re.Pattern[str]
    loose: re.Pattern[str]

    def match(self, path: str) -> Mapping[str, str] | None:
        """Return the text of each name in the path, or None if the pattern does not match.

        Raises UnreadLogError if the path can be read in several ways.
        """
        found, other = self.strict.fullmatch(path), self.shortest.fullmatch(path)
        if found is not None and other is not None and found.groupdict() != other.groupdict():
            raise Unread(
                f"its path can be read in several ways, such as {_listed(found)}, or {_listed(other)}; list what a name can be "
                "under 'words' of its pattern, or separate names by '/' or by a text that is in none of them"
            )
        found = found or self.loose.fullmatch(path)
        return None if found is None else found.groupdict()


@dataclass(frozen=True)
class Map:
    """Valid map, with everything that follows from it alone.

    Attributes:
        path: file of the map.
        import_file: content of the map.
        declarations: configurations and workloads of the map.
        patterns: patterns of logs with their compiled paths.
        ignored_paths: patterns of paths that are ignored.
    """

    path: Path
    said: ImportFile
    known: MapDeclarations
    patterns: tuple[tuple[LogPattern, Pattern], ...]
    ignored: tuple[re.Pattern[str], ...]


def read_map(path: Path) -> Map:
    """Read a map and the workload files that it names.

    Raises ConfigError with every problem, its position and the allowed values.
    """
    source = read_yaml(path)
    said = validate(source, ImportFile)
    system = validate(unsaved_file(path, system_document(said, {})), SystemFile)
    expanded = expand_shapes(said.configurations, [system], source)
    if expanded.impossible:
        shape, why = expanded.impossible[0].shape, expanded.impossible[0].why
        raise ConfigError(f"{source.place('configurations')}: {shape}: {why}")
    models = gathered(partial(_workload, said, name, source) for name in said.workloads)
    workloads = dict(zip(said.workloads, models, strict=True))
    for name in said.references:
        load_reference(name, path.parent)
    known = MapDeclarations(expanded.configurations, workloads)
    compiled = []
    for number, each in enumerate(said.logs):
        where = source.place("logs", number, "path")
        compiled.append((each, pattern(each.path, known.names(), known.words(each), where)))
    return Map(path, said, known, tuple(compiled), tuple(map(plain, said.ignore)))


def unsaved_file(path: Path, document: Mapping[str, object]) -> YamlFile:
    """Wrap a document as a YAML file that was not read from disk."""
    return YamlFile(path, dict(document), {})


def _workload(said: ImportFile, name: str, source: YamlFile) -> Workload:
    """Load a workload that the map names. Raises ConfigError if its results are not in the log."""
    entry = said.workloads[name]
    if entry.parser is not None or entry.parsers:
        return validate(unsaved_file(source.path, workload_document(name, said)), Workload)
    loaded = load_named(Workload, name, source.path)
    if not loaded.model.reads_log:
        raise ConfigError(
            f"{source.place('workloads', name)}: workload '{name}' ({loaded.model.kind}) gives its numbers in files of its own, "
            "not in its log; give a 'parser' or 'parsers' here, under a name of their own"
        )
    return loaded.model


def pattern(text: str, names: Collection[str], words: Mapping[str, Collection[str]], where: str) -> Pattern:
    """Compile a path pattern. Raises ConfigError for an unknown name and for braces that do not close.

    Args:
        text: pattern with names in braces.
        names: names that are allowed in braces.
        words: known texts by name, preferred if a path can be read in two ways.
        location: position of the pattern in the map, for messages.
    """
    try:
        parts = list(string.Formatter().parse(text))
    except ValueError as error:
        raise ConfigError(f"{where}: '{text}': {error}; write {{{{ and }}}} for literal braces") from error
    strict, shortest, loose, seen = "", "", "", set[str]()
    for literal, name, form, conversion in parts:
        strict, loose = strict + _literal(literal), loose + _literal(literal)
        shortest += _literal(literal, lazy="?")
        if name is None:
            continue
        if form or conversion or name not in names:
            raise ConfigError(f"{where}: '{{{name}}}' is not a name that a path can contain; {nearest(name, names)}")
        if name in seen:
            strict, shortest, loose = (each + f"(?P={name})" for each in (strict, shortest, loose))
            continue
        seen.add(name)
        known = sorted(map(re.escape, words.get(name, ())), key=len, reverse=True)
        anything = r"\d{1,9}" if name in NUMBERS else r"[^/]+"
        strict += f"(?P<{name}>{'|'.join(known) or anything})"
        shortest += f"(?P<{name}>{'|'.join(reversed(known)) or f'{anything}?'})"
        loose += f"(?P<{name}>{anything})"
    return Pattern(re.compile(strict), re.compile(shortest), re.compile(loose))


def _listed(found: re.Match[str]) -> str:
    return ", ".join(f"{{{name}}} '{text}'" for name, text in found.groupdict().items())


def plain(text: str) -> re.Pattern[str]:
    """Compile a path pattern without names, in which braces have no meaning."""
    return re.compile(_literal(text))


def _literal(text: str, lazy: Literal["", "?"] = "") -> str:
    """Translate text with the wildcards `*` and `**/` into a regular expression.

    Args:
        text: text without names.
        lazy: '?' makes the wildcards match as little as possible.
    """
    wild = {"**/": f"(?:[^/]+/)*{lazy}", "*": f"[^/]*{lazy}"}
    return "".join(wild.get(part) or re.escape(part) for part in re.split(r"(\*\*/|\*)", text))
