"""JSON Schemas as Markdown tables of keys. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from campaign.spec.fields import AXIS_PATTERN, HOSTS_PATTERN, NAME_PATTERN, TEXT_PATTERN, VARIABLE_PATTERN
from campaign.workloads.parsers import PARSERS

Schema = Mapping[str, Any]

_PATTERNS = {
    NAME_PATTERN: "name",
    HOSTS_PATTERN: "name, or name with a range",
    AXIS_PATTERN: "name in lower case",
    VARIABLE_PATTERN: "name of a variable",
    TEXT_PATTERN: "text",
}
_SCALAR = "text, number, or true/false"


def sections(schema: Schema, heading: str, prefix: str = "", *, described: bool = False) -> Iterator[str]:
    """The table of a schema's keys, then one section for every model that they refer to, each followed by its own."""
    definitions: Schema = schema.get("$defs", {})
    if described:
        yield _sentence(schema, definitions)
    yield _keys(schema, definitions)
    yield from _sections(schema, definitions, heading, prefix, set())


def _sections(owner: Schema, definitions: Schema, heading: str, path: str, done: set[str]) -> Iterator[str]:
    for key, value in owner.get("properties", {}).items():
        for name, suffix in _references(value):
            if name in done:
                continue
            done.add(name)
            here = f"{path}.{key}{suffix}" if path else f"{key}{suffix}"
            yield f"{heading} `{here}`\n\n{_sentence(definitions[name], definitions)}"
            yield _keys(definitions[name], definitions)
            yield from _sections(definitions[name], definitions, heading, here, done)


def _keys(schema: Schema, definitions: Schema) -> str:
    required = schema.get("required", ())
    return table(
        ("Key", "Type", "Default", "Meaning"),
        (
            (
                f"`{key}`",
                words(value),
                "**required**" if key in required else _default(value),
                _sentence(value, definitions),
            )
            for key, value in schema.get("properties", {}).items()
        ),
    )


def table(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """A Markdown table."""
    lines = [header, ("---",) * len(header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def words(schema: Schema) -> str:
    """What may stand for a value, for people."""
    if "$ref" in schema:
        return "any value" if schema["$ref"].endswith("/JsonValue") else "keys below"
    if "const" in schema:
        return f"`{schema['const']}`" if schema["const"] else "not given"
    if schema.get("enum") == list(PARSERS):
        return "a [parser](workloads.md#parsers)"
    if "enum" in schema:
        return " or ".join(f"`{value}`" for value in schema["enum"])
    choices = schema.get("anyOf") or schema.get("oneOf")
    if choices and all("kind" in choice.get("properties", {}) for choice in choices):
        return "one of [the adapters](fabric-options.md)"
    return _choice(choices) if choices else _of_type(schema)


def _of_type(schema: Schema) -> str:
    match schema.get("type"):
        case "integer":
            return f"whole number{_range(schema)}"
        case "number":
            return f"number{_range(schema)}"
        case "boolean":
            return "`true` or `false`"
        case "string":
            return _PATTERNS.get(schema.get("pattern", ""), "text")
        case "array" if "prefixItems" in schema:
            return f"list of {len(schema['prefixItems'])}: {words(schema['prefixItems'][0])}"
        case "array" if "items" in schema:
            return f"list of {words(schema['items'])}" if "$ref" not in schema["items"] else "list, keys below"
        case "object" if "patternProperties" in schema or isinstance(schema.get("additionalProperties"), Mapping):
            if (name := schema.get("propertyNames", {}).get("const")) and "const" in schema["additionalProperties"]:
                return f"`{{{name}: {schema['additionalProperties']['const']}}}`"
            patterns = schema.get("patternProperties", {})
            pattern, value = next(iter(patterns.items()), ("", schema.get("additionalProperties") or {}))
            return f"{_PATTERNS.get(pattern, 'text')} → {words(value)}"
    return "any keys"


def _choice(choices: Iterable[Schema]) -> str:
    known = [choice for choice in choices if choice.get("type") != "null"]
    types = {choice.get("type") for choice in known}
    if types == {"string", "integer", "number", "boolean"}:
        return _SCALAR
    if len(known) == 2 and known[1].get("type") == "array" and known[1].get("items") == known[0]:
        return f"{words(known[0])}; one or a list"
    return " or ".join(words(choice) for choice in known)


def _range(schema: Schema) -> str:
    low, high = schema.get("minimum"), schema.get("maximum")
    if "exclusiveMinimum" in schema:
        return f" > {schema['exclusiveMinimum']}" + (f", ≤ {high}" if high is not None else "")
    if low is not None and high is not None:
        return f", {low} to {high}"
    return f" ≥ {low}" if low is not None else f" ≤ {high}" if high is not None else ""


def _default(schema: Schema) -> str:
    default = schema.get("default")
    if default is None or default in ([], {}, ""):
        return ""
    if isinstance(default, list) and len(default) == 1 and not isinstance(default[0], dict | list):
        default = default[0]
    if isinstance(default, dict | list):
        return "see below"
    return f"`{default}`" if isinstance(default, str) else f"`{json.dumps(default)}`"


def _sentence(schema: Schema, definitions: Schema) -> str:
    if "description" not in schema and "$ref" in schema:
        schema = definitions[schema["$ref"].rpartition("/")[2]]
    return sentence(str(schema.get("description", "")))


def sentence(text: str) -> str:
    """Begins large, unless with a word of the language (`key: meaning`), and ends with a full stop."""
    text = " ".join(text.split())
    if re.match(r"[a-z]+[ ,]", text):
        text = text[:1].upper() + text[1:]
    return text if not text or text.endswith((".", "!", "?")) else f"{text}."


def _references(schema: Schema, suffix: str = "") -> Iterator[tuple[str, str]]:
    """(definition, suffix of its path) of every model that a value can hold."""
    if "$ref" in schema and not schema["$ref"].endswith("/JsonValue"):
        yield schema["$ref"].rpartition("/")[2], suffix
    for choice in (*schema.get("anyOf", ()), *schema.get("oneOf", ()), *schema.get("allOf", ())):
        yield from _references(choice, suffix)
    if isinstance(schema.get("items"), Mapping):
        yield from _references(schema["items"], f"{suffix}[]")
    for value in (schema.get("additionalProperties"), *schema.get("patternProperties", {}).values()):
        if isinstance(value, Mapping):
            yield from _references(value, f"{suffix}.NAME")
