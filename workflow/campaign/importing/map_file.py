"""Map of an import, a YAML file that assigns logs to runs by path patterns with names in braces."""

from __future__ import annotations

import re
import string
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from campaign.common.errors import ConfigError, suggest_name
from campaign.importing.campaign_files import make_system_document, make_workload_document
from campaign.importing.log_facts import INTEGER_NAMES, LogImportError, MapDeclarations
from campaign.plan.campaign.expand_shapes import expand_shapes
from campaign.plan.campaign.import_file import ImportFile, LogPattern
from campaign.plan.campaign.load import collect_results, load_named, validate
from campaign.spec.published_file import load_set as load_reference
from campaign.spec.system_file import SystemFile
from campaign.spec.yaml_file import YamlFile, read_yaml
from campaign.workloads.protocol import Workload


@dataclass(frozen=True)
class PathPattern:
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

        Raises LogImportError if the path can be read in several ways.
        """
        match, shortest_match = self.strict.fullmatch(path), self.shortest.fullmatch(path)
        if match is not None and shortest_match is not None and match.groupdict() != shortest_match.groupdict():
            raise LogImportError(
                f"its path can be read in several ways, such as {_format_match(match)}, "
                f"or {_format_match(shortest_match)}; list what a name can be "
                "under 'words' of its pattern, or separate names by '/' or by a text that is in none of them"
            )
        match = match or self.loose.fullmatch(path)
        return None if match is None else match.groupdict()


@dataclass(frozen=True)
class ImportMap:
    """Valid map, with everything that follows from it alone.

    Attributes:
        path: file of the map.
        import_file: content of the map.
        declarations: configurations and workloads of the map.
        patterns: patterns of logs with their compiled paths.
        ignored_paths: patterns of paths that are ignored.
    """

    path: Path
    import_file: ImportFile
    declarations: MapDeclarations
    patterns: tuple[tuple[LogPattern, PathPattern], ...]
    ignored_paths: tuple[re.Pattern[str], ...]


def read_map(path: Path) -> ImportMap:
    """Read a map and the workload files that it names.

    Raises ConfigError with every problem, its position and the allowed values.
    """
    source = read_yaml(path)
    import_file = validate(source, ImportFile)
    system = validate(make_yaml_file(path, make_system_document(import_file, {})), SystemFile)
    expansion = expand_shapes(import_file.configurations, [system], source)
    if expansion.impossible:
        shape, reason = expansion.impossible[0].shape, expansion.impossible[0].why
        raise ConfigError(f"{source.format_location('configurations')}: {shape}: {reason}")
    models = collect_results(partial(_load_workload, import_file, name, source) for name in import_file.workloads)
    workloads = dict(zip(import_file.workloads, models, strict=True))
    for name in import_file.references:
        load_reference(name, path.parent)
    declarations = MapDeclarations(expansion.configurations, workloads)
    patterns = []
    for number, log_pattern in enumerate(import_file.logs):
        location = source.format_location("logs", number, "path")
        patterns.append(
            (
                log_pattern,
                compile_pattern(
                    log_pattern.path, declarations.list_names(), declarations.list_words(log_pattern), location
                ),
            )
        )
    return ImportMap(
        path, import_file, declarations, tuple(patterns), tuple(map(compile_plain_pattern, import_file.ignore))
    )


def make_yaml_file(path: Path, document: Mapping[str, object]) -> YamlFile:
    """Wrap a document as a YAML file that was not read from disk."""
    return YamlFile(path, dict(document), {})


def _load_workload(import_file: ImportFile, name: str, source: YamlFile) -> Workload:
    """Load a workload that the map names. Raises ConfigError if its results are not in the log."""
    entry = import_file.workloads[name]
    if entry.parser is not None or entry.parsers:
        return validate(make_yaml_file(source.path, make_workload_document(name, import_file)), Workload)
    named_file = load_named(Workload, name, source.path)
    if not named_file.model.reads_log:
        raise ConfigError(
            f"{source.format_location('workloads', name)}: workload '{name}' "
            f"({named_file.model.kind}) writes its results to other files than its log; "
            "give a workload with another name and a 'parser' or 'parsers' here"
        )
    return named_file.model


def compile_pattern(
    text: str, names: Collection[str], words: Mapping[str, Collection[str]], location: str
) -> PathPattern:
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
        raise ConfigError(f"{location}: '{text}': {error}; write {{{{ and }}}} for literal braces") from error
    strict, shortest, loose, used_names = "", "", "", set[str]()
    for literal, name, form, conversion in parts:
        strict, loose = strict + _translate_literal(literal), loose + _translate_literal(literal)
        shortest += _translate_literal(literal, lazy="?")
        if name is None:
            continue
        if form or conversion or name not in names:
            raise ConfigError(
                f"{location}: '{{{name}}}' is not a name that a path can contain; {suggest_name(name, names)}"
            )
        if name in used_names:
            strict, shortest, loose = (regex + f"(?P={name})" for regex in (strict, shortest, loose))
            continue
        used_names.add(name)
        word_patterns = sorted(map(re.escape, words.get(name, ())), key=len, reverse=True)
        anything = r"\d{1,9}" if name in INTEGER_NAMES else r"[^/]+"
        strict += f"(?P<{name}>{'|'.join(word_patterns) or anything})"
        shortest += f"(?P<{name}>{'|'.join(reversed(word_patterns)) or f'{anything}?'})"
        loose += f"(?P<{name}>{anything})"
    return PathPattern(re.compile(strict), re.compile(shortest), re.compile(loose))


def _format_match(match: re.Match[str]) -> str:
    return ", ".join(f"{{{name}}} '{text}'" for name, text in match.groupdict().items())


def compile_plain_pattern(text: str) -> re.Pattern[str]:
    """Compile a path pattern without names, in which braces have no meaning."""
    return re.compile(_translate_literal(text))


def _translate_literal(text: str, lazy: Literal["", "?"] = "") -> str:
    """Translate text with the wildcards `*` and `**/` into a regular expression.

    Args:
        text: text without names.
        lazy: '?' makes the wildcards match as little as possible.
    """
    wildcards = {"**/": f"(?:[^/]+/)*{lazy}", "*": f"[^/]*{lazy}"}
    return "".join(wildcards.get(part) or re.escape(part) for part in re.split(r"(\*\*/|\*)", text))
