"""A YAML file as plain data plus the line of every key, read defensively.

Only plain YAML is accepted: no Python tags, no duplicate keys, no alias bombs, no octal and sexagesimal numbers. Keys are texts.
"""

from __future__ import annotations

import datetime
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from campaign.common.errors import ConfigError
from campaign.common.files import read_text

MAX_BYTES = 4_000_000
MAX_VALUES = 100_000  # after aliases are expanded, as the next; a bomb of ten lines expands to billions
MAX_CHARACTERS = 2 * MAX_BYTES
MAX_DEPTH = 50

_OCTAL = re.compile(r"[-+]?0[0-7_]+")

# Controls of terminals but tab and line ends, and of the direction of writing.
_HIDING = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\u202a-\u202e\u2066-\u2069]")

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

Location = tuple[str | int, ...]


@dataclass(frozen=True)
class YamlFile:
    """`data`: the document's top mapping. `lines`: 1-based line of each key or list item, by path."""

    path: Path
    data: dict[str, Any]
    lines: dict[Location, int]

    def find_line(self, location: Location) -> int:
        """Return the line of a location in the document, or of its nearest ancestor that has one."""
        for end in range(len(location), -1, -1):
            if location[:end] in self.lines:
                return self.lines[location[:end]]
        return 1

    def format_location(self, *location: str | int, name: str = "") -> str:
        """Format a location for messages, as 'file:line: key.key'; the line is left out if the document is no file."""
        line = f":{self.find_line(location)}" if self.lines else ""
        where = ".".join(map(str, location)) or name
        return f"{self.path}{line}: {where}" if where else f"{self.path}{line}"


def read_yaml(path: Path) -> YamlFile:
    """Read one mapping from a YAML file; every problem is a ConfigError with file and line."""
    try:
        text = read_text(path, MAX_BYTES)
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 text (byte {error.start}); save it in UTF-8") from error
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from error
    return parse_yaml(text, path)


def parse_yaml(text: str, path: Path) -> YamlFile:
    """`read_yaml` for text that is in memory already; `path` only names it in messages."""
    loader: Any = None
    try:
        _refuse_depth(text, path)
        loader = _Loader(text)
        node = loader.get_single_node()
        if not isinstance(node, yaml.MappingNode):
            raise ConfigError(
                f"{path}:1: expected a mapping of keys to values at the top of the file, such as `name: mine`"
            )
        lines: dict[Location, int] = {(): 1}
        _record_lines(node, (), lines, path, [MAX_VALUES, MAX_CHARACTERS])
        data = _plain(loader.construct_document(node))
    except yaml.constructor.ConstructorError as error:
        raise ConfigError(
            f"{path}:{_find_error_line(error)}: {error.problem}; only plain YAML values are allowed, no tags"
        ) from error
    except yaml.YAMLError as error:
        if "nesting depth" in str(error):  # PyYAML 6.0.4 looks ahead of its events, and has a limit of its own there
            raise _too_deep(path, _find_error_line(error)) from error
        raise ConfigError(
            f"{path}:{_find_error_line(error)}: not valid YAML: {_describe_problem(error, text)}"
        ) from error
    except (RecursionError, ValueError, OverflowError) as error:
        raise ConfigError(f"{path}: not a valid document: {str(error) or 'nested too deeply'}") from error
    finally:
        if loader is not None:
            loader.dispose()
    return YamlFile(path, data, lines)


def _plain(value: Any) -> Any:
    """Values as JSON knows them: texts for keys, and for dates, which nothing here means."""
    return json.loads(json.dumps(value, default=_date_text))


def _date_text(value: object) -> str:
    if isinstance(value, datetime.date):
        return str(value)
    raise ValueError(f"a {type(value).__name__} is no plain YAML value")


def _refuse_depth(text: str, path: Path) -> None:
    # Event by event: composing nodes recurses in C, where no RecursionError saves the process.
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > MAX_DEPTH:
                raise _too_deep(path, event.start_mark.line + 1 if event.start_mark else 1)
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def _too_deep(path: Path, line: int | str) -> ConfigError:
    return ConfigError(f"{path}:{line}: nested deeper than {MAX_DEPTH} levels; write it flat")


def _describe_problem(error: yaml.YAMLError, text: str) -> str:
    """What is wrong, and what to do."""
    problem = getattr(error, "problem", None) or str(error).splitlines()[0]
    mark = getattr(error, "problem_mark", None)
    lines = text.splitlines()
    if mark is None or mark.line >= len(lines):
        return f"{problem}; check quotes, brackets and indentation"
    line = lines[mark.line]
    if "\t" in line[: len(line) - len(line.lstrip())]:
        return "a tab indents this line, and YAML takes only spaces there; write spaces instead"
    if "cannot start any token" in problem and line[mark.column : mark.column + 1] in ("@", "`", "%"):
        return f"a value cannot begin with {line[mark.column]}; put it in quotes"
    return f"{problem}; check quotes, brackets and indentation here and above"


def _find_error_line(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    if "end of stream" in str(getattr(error, "problem", None)):  # of a quote that is never closed, the start helps
        mark = getattr(error, "context_mark", None) or mark
    return str(mark.line + 1) if mark is not None else "1"


def _record_lines(
    node: yaml.Node, location: Location, lines: dict[Location, int], path: Path, remaining_counts: list[int]
) -> None:
    """Note the line of everything, and refuse duplicates, bombs and bottomless nesting before data is constructed."""
    remaining_counts[0] -= 1
    remaining_counts[1] -= len(node.value) if isinstance(node, yaml.ScalarNode) else 0
    if min(remaining_counts) < 0:
        limit_text = f"{MAX_VALUES} values" if remaining_counts[0] < 0 else f"{MAX_CHARACTERS} characters"
        raise ConfigError(f"{path}: more than {limit_text} once aliases are expanded; write the values out")
    if len(location) > MAX_DEPTH:
        raise _too_deep(path, node.start_mark.line + 1)
    if isinstance(node, yaml.MappingNode):
        keys: set[str] = set()
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise ConfigError(f"{path}:{key.start_mark.line + 1}: a key must be a plain text; write `key: value`")
            if key.value in keys:
                raise ConfigError(f"{path}:{key.start_mark.line + 1}: '{key.value}' is given twice; remove one")
            keys.add(key.value)
            remaining_counts[1] -= len(key.value)
            lines[(*location, key.value)] = key.start_mark.line + 1
            _record_lines(value, (*location, key.value), lines, path, remaining_counts)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            lines[(*location, index)] = value.start_mark.line + 1
            _record_lines(value, (*location, index), lines, path, remaining_counts)
    elif isinstance(node, yaml.ScalarNode) and (hidden_character := _HIDING.search(node.value)):
        place = f"{path}:{node.start_mark.line + 1}: {'.'.join(map(str, location))}"
        raise ConfigError(
            f"{place}: has the character U+{ord(hidden_character[0]):04X}, which changes how the text is shown; remove it"
        )
    elif isinstance(node, yaml.ScalarNode) and not node.style and node.tag.endswith((":int", ":float")):
        _refuse_trap(node, f"{path}:{node.start_mark.line + 1}: {'.'.join(map(str, location))}")


def _refuse_trap(node: yaml.ScalarNode, where: str) -> None:
    """ConfigError for a number that YAML reads as another one than people do."""
    octal = _OCTAL.fullmatch(node.value)
    if octal or ":" in node.value:
        read = f"YAML reads {node.value} as {yaml.safe_load(node.value)}, in base {'8' if octal else '60'}"
        number = f"without the leading zero, {node.value.lstrip('0') or 0}" if octal else "without a colon"
        raise ConfigError(f'{where}: {read}; write a number {number}, or a text in quotes, "{node.value}"')
