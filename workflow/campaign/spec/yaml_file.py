"""YAML files as plain data with the line of every key.

Only plain YAML is accepted, without Python tags, duplicate keys, alias bombs, and octal or sexagesimal numbers. Keys are strings.
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
MAX_VALUES = (
    100_000  # This limit and the next apply after the expansion of aliases, by which ten lines can become billions.
)
MAX_CHARACTERS = 2 * MAX_BYTES
MAX_DEPTH = 50

_OCTAL = re.compile(r"[-+]?0[0-7_]+")

# Control characters of terminals, except tab and line ends, and control characters of the text direction.
_HIDDEN_CHARACTERS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\u202a-\u202e\u2066-\u2069]")

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

Location = tuple[str | int, ...]


@dataclass(frozen=True)
class YamlFile:
    """YAML file with the positions of its keys.

    Attributes:
        path: path of the file.
        data: top-level mapping of the document.
        lines: line number, from 1, of each key or list item by its location.
    """

    path: Path
    data: dict[str, Any]
    lines: dict[Location, int]

    def find_line(self, location: Location) -> int:
        """Return the line number of a location in the document, or that of its nearest ancestor with a known line."""
        for end in range(len(location), -1, -1):
            if location[:end] in self.lines:
                return self.lines[location[:end]]
        return 1

    def format_location(self, *location: str | int, name: str = "") -> str:
        """Format a location for messages, as 'file:line: key.key'. The line is left out if the document is not a file."""
        line = f":{self.find_line(location)}" if self.lines else ""
        where = ".".join(map(str, location)) or name
        return f"{self.path}{line}: {where}" if where else f"{self.path}{line}"


def read_yaml(path: Path) -> YamlFile:
    """Read a YAML file whose top level is a mapping. Raises ConfigError with file and line if it is invalid."""
    try:
        text = read_text(path, MAX_BYTES)
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 text (byte {error.start}); save it in UTF-8") from error
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})") from error
    return parse_yaml(text, path)


def parse_yaml(text: str, path: Path) -> YamlFile:
    """Parse a YAML text whose top level is a mapping. Raises ConfigError if it is invalid.

    Args:
        text: content of the file.
        path: path of the file, for messages.
    """
    loader: Any = None
    try:
        _reject_depth(text, path)
        loader = _Loader(text)
        node = loader.get_single_node()
        if not isinstance(node, yaml.MappingNode):
            raise ConfigError(
                f"{path}:1: the top level of the file must be a mapping of keys to values, such as `name: mine`"
            )
        lines: dict[Location, int] = {(): 1}
        _record_lines(node, (), lines, path, [MAX_VALUES, MAX_CHARACTERS])
        data = _to_json_value(loader.construct_document(node))
    except yaml.constructor.ConstructorError as error:
        raise ConfigError(
            f"{path}:{_find_error_line(error)}: {error.problem}; only plain YAML values without tags are allowed"
        ) from error
    except yaml.YAMLError as error:
        if "nesting depth" in str(error):  # PyYAML 6.0.4 reads ahead of its events, with its own limit of the depth.
            raise _make_depth_error(path, _find_error_line(error)) from error
        raise ConfigError(
            f"{path}:{_find_error_line(error)}: not valid YAML: {_describe_problem(error, text)}"
        ) from error
    except (RecursionError, ValueError, OverflowError) as error:
        raise ConfigError(f"{path}: not a valid document: {str(error) or 'nested too deeply'}") from error
    finally:
        if loader is not None:
            loader.dispose()
    return YamlFile(path, data, lines)


def _to_json_value(value: Any) -> Any:
    """Convert a value to JSON types. Keys and dates become strings."""
    return json.loads(json.dumps(value, default=_format_date))


def _format_date(value: object) -> str:
    if isinstance(value, datetime.date):
        return str(value)
    raise ValueError(f"a {type(value).__name__} is not a plain YAML value")


def _reject_depth(text: str, path: Path) -> None:
    # Only events are parsed here, because the composition of nodes recurses in C, where a deep document crashes the process.
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > MAX_DEPTH:
                raise _make_depth_error(path, event.start_mark.line + 1 if event.start_mark else 1)
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def _make_depth_error(path: Path, line: int | str) -> ConfigError:
    return ConfigError(f"{path}:{line}: the document is nested deeper than {MAX_DEPTH} levels; flatten it")


def _describe_problem(error: yaml.YAMLError, text: str) -> str:
    """Describe a syntax error and its remedy."""
    problem = getattr(error, "problem", None) or str(error).splitlines()[0]
    mark = getattr(error, "problem_mark", None)
    lines = text.splitlines()
    if mark is None or mark.line >= len(lines):
        return f"{problem}; check quotes, brackets and indentation"
    line = lines[mark.line]
    if "\t" in line[: len(line) - len(line.lstrip())]:
        return "this line is indented by a tab, but YAML allows only spaces; replace the tab by spaces"
    if "cannot start any token" in problem and line[mark.column : mark.column + 1] in ("@", "`", "%"):
        return f"a value cannot begin with {line[mark.column]}; put it in quotes"
    return f"{problem}; check quotes, brackets and indentation here and above"


def _find_error_line(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    if "end of stream" in str(
        getattr(error, "problem", None)
    ):  # For an unclosed quote, the line of its start is more helpful.
        mark = getattr(error, "context_mark", None) or mark
    return str(mark.line + 1) if mark is not None else "1"


def _record_lines(
    node: yaml.Node, location: Location, lines: dict[Location, int], path: Path, remaining_counts: list[int]
) -> None:
    """Record the line of every key and item, and reject invalid nodes before any data is constructed.

    Raises ConfigError for duplicate keys, keys that are not plain strings, alias bombs, deep nesting, hidden characters, and
    numbers that YAML reads in another base.

    Args:
        node: node to examine.
        location: location of the node in the document.
        lines: line numbers by location, which are added here.
        path: path of the file, for messages.
        remaining_counts: number of values and of characters that may still follow.
    """
    remaining_counts[0] -= 1
    remaining_counts[1] -= len(node.value) if isinstance(node, yaml.ScalarNode) else 0
    if min(remaining_counts) < 0:
        limit_text = f"{MAX_VALUES} values" if remaining_counts[0] < 0 else f"{MAX_CHARACTERS} characters"
        raise ConfigError(f"{path}: the file has more than {limit_text} after expansion of aliases; remove the aliases")
    if len(location) > MAX_DEPTH:
        raise _make_depth_error(path, node.start_mark.line + 1)
    if isinstance(node, yaml.MappingNode):
        keys: set[str] = set()
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise ConfigError(f"{path}:{key.start_mark.line + 1}: a key must be a plain string; write `key: value`")
            if key.value in keys:
                raise ConfigError(
                    f"{path}:{key.start_mark.line + 1}: the key '{key.value}' appears twice; remove one of them"
                )
            keys.add(key.value)
            remaining_counts[1] -= len(key.value)
            lines[(*location, key.value)] = key.start_mark.line + 1
            _record_lines(value, (*location, key.value), lines, path, remaining_counts)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            lines[(*location, index)] = value.start_mark.line + 1
            _record_lines(value, (*location, index), lines, path, remaining_counts)
    elif isinstance(node, yaml.ScalarNode) and (hidden_character := _HIDDEN_CHARACTERS.search(node.value)):
        place = f"{path}:{node.start_mark.line + 1}: {'.'.join(map(str, location))}"
        raise ConfigError(
            f"{place}: the text contains the character U+{ord(hidden_character[0]):04X}, which changes its display; remove it"
        )
    elif isinstance(node, yaml.ScalarNode) and not node.style and node.tag.endswith((":int", ":float")):
        _reject_ambiguous_number(node, f"{path}:{node.start_mark.line + 1}: {'.'.join(map(str, location))}")


def _reject_ambiguous_number(node: yaml.ScalarNode, where: str) -> None:
    """Raise ConfigError for a number that YAML reads in a different base than users expect."""
    octal = _OCTAL.fullmatch(node.value)
    if octal or ":" in node.value:
        read = f"YAML reads {node.value} as {yaml.safe_load(node.value)}, in base {'8' if octal else '60'}"
        number = f"without the leading zero ({node.value.lstrip('0') or 0})" if octal else "without a colon"
        raise ConfigError(f'{where}: {read}; write a number {number}, or a string in quotes ("{node.value}")')
