"""Templates of commands, with names in braces, and variables of the command's environment."""

from __future__ import annotations

import os
import string
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from campaign.common.errors import ConfigError, LaunchError, suggest_name
from campaign.spec.cell import AXES, Cell, Scalar
from campaign.spec.fields import Variables

RUN_VALUES: Mapping[str, str] = {
    "repetition": "number of the repetition, from 1",
    "seed": "seed of the protocol",
    "warmup_steps": "number of steps before the measurement",
    "measured_steps": "number of timed steps",
    "workload_dir": "directory of the workload file, for input files next to it",
}
"""Meanings of those names in braces that are neither axes nor options of the workload."""

RESERVED_NAMES = frozenset(AXES) | frozenset(RUN_VALUES)
"""Names that options must not have, because they already have a meaning."""


WORKLOAD_DIR_PREFIX = "{workload_dir}/"
"""Prefix of the names of files in the directory of the workload file."""


def collect_template_values(
    options: Mapping[str, Scalar], cell: Cell, repetition: int, workload_dir: str = ""
) -> dict[str, Scalar]:
    """Collect the values of all names that are allowed in braces, for one run.

    Args:
        options: options of the workload file; those of the cell override them.
        cell: cell of the run.
        repetition: number of the repetition, from 1.
        workload_dir: directory of the workload file.
    """
    settings = cell.settings
    return {
        **options,
        **cell.axes(),
        "repetition": repetition,
        "seed": settings.seed,
        "warmup_steps": settings.warmup_steps,
        "measured_steps": settings.measured_steps,
        "workload_dir": workload_dir,
    }


def fill_template(template: str, values: Mapping[str, Scalar], location: str) -> str:
    """Replace every `{name}` in a template with its value. Raises ConfigError if a name is unknown."""
    return "".join(
        literal + (str(values[name]) if name is not None else "")
        for literal, name in _parse_template(template, values, location)
    )


def check_template(template: str, names: Collection[str], location: str) -> None:
    """Raise ConfigError if a template is malformed or contains a name in braces that is not among `names`."""
    for _ in _parse_template(template, names, location):
        pass


def resolve_variables(
    definitions: Variables, location: str, values: Mapping[str, Scalar] | None = None
) -> dict[str, str]:
    """Determine the values of environment variables that a workload file defines.

    Raises LaunchError if a variable with `from: environment` is not set in the environment.

    Args:
        definitions: variables as the workload file defines them.
        location: location of the definitions for error messages.
        values: values of the names in braces; if None, texts are used unchanged.
    """
    environment: dict[str, str] = {}
    for name, value in definitions.items():
        if isinstance(value, str):
            environment[name] = value if values is None else fill_template(value, values, f"{location}.{name}")
        elif name in os.environ:
            environment[name] = os.environ[name]
        else:
            raise LaunchError(
                f"{location}.{name}: this variable is not set in the environment of the driver; export it before you start the "
                "campaign, and pass the environment to jobs (no `export: NONE`)"
            )
    return environment


def find_names_in_braces(text: str) -> frozenset[str]:
    """Find all names in braces in a text. The result is empty if the text is not a valid template."""
    try:
        return frozenset(name for _, name, _, _ in string.Formatter().parse(text) if name is not None)
    except ValueError:
        return frozenset()


def walk_texts(document: Any, key_path: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Yield every text in a nested document, as a pair of its key path and its value.

    Args:
        document: mappings, sequences and scalars, nested.
        key_path: key path at which the document itself is located.
    """
    if isinstance(document, str):
        yield key_path, document
    elif isinstance(document, Mapping):
        for key, value in document.items():
            yield from walk_texts(value, (*key_path, key))
    elif isinstance(document, Sequence):
        for index, value in enumerate(document):
            yield from walk_texts(value, (*key_path, index))


def _parse_template(template: str, names: Collection[str], location: str) -> Iterator[tuple[str, str | None]]:
    """Yield the literal parts of a template, each with the name in braces that follows it, or None at the end."""
    # Only plain names are allowed, because format fields could otherwise access attributes.
    try:
        parts = list(string.Formatter().parse(template))
    except ValueError as error:
        raise ConfigError(f"{location}: '{template}': {error}; write {{{{ and }}}} for literal braces") from error
    for literal, name, format_spec, conversion in parts:
        if name is not None and (format_spec or conversion):
            raise ConfigError(
                f"{location}: '{template}': only plain names are allowed in braces; remove what follows ':' or '!'"
            )
        if name is not None and name not in names:
            raise ConfigError(
                f"{location}: '{{{name}}}' is not known; {suggest_name(name, names)} (write {{{{ and }}}} for literal braces)"
            )
        yield literal, name
