"""Names in braces that a command is filled in with, and variables of its environment."""

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
    "warmup_steps": "steps before the measurement",
    "measured_steps": "steps that are timed",
    "workload_dir": "directory of the workload file, for inputs that stand beside it",
}
"""What can be filled in beside the axes and the workload's options."""

RESERVED = frozenset(AXES) | frozenset(RUN_VALUES)
"""Names that an option cannot have."""


BESIDE = "{workload_dir}/"
"""Begins the name of a file beside the workload file."""


def run_values(options: Mapping[str, Scalar], cell: Cell, repetition: int, workload_dir: str = "") -> dict[str, Scalar]:
    """What may stand in braces in a run. options: those of the workload's file, which the cell's replace."""
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


def fill(text: str, values: Mapping[str, Scalar], where: str) -> str:
    """`text` with every `{name}` replaced by its value; ConfigError for a name that is not known."""
    return "".join(
        literal + (str(values[name]) if name is not None else "") for literal, name in _parts(text, values, where)
    )


def check_template(text: str, known: Collection[str], where: str) -> None:
    """ConfigError when `text` cannot be filled in."""
    for _ in _parts(text, known, where):
        pass


def variables(said: Variables, where: str, values: Mapping[str, Scalar] | None = None) -> dict[str, str]:
    """Environment variables with their values: filled in where there are `values`, or those of this process's environment.

    LaunchError for one that is to come from the environment, and is not set there.
    """
    found: dict[str, str] = {}
    for name, value in said.items():
        if isinstance(value, str):
            found[name] = value if values is None else fill(value, values, f"{where}.{name}")
        elif name in os.environ:
            found[name] = os.environ[name]
        else:
            raise LaunchError(
                f"{where}.{name}: this variable is not set where the driver runs; export it before you start the campaign, and let "
                "jobs have the environment (no `export: NONE`)"
            )
    return found


def names_in(text: str) -> frozenset[str]:
    """Names in braces; none for a text that is no template."""
    try:
        return frozenset(name for _, name, _, _ in string.Formatter().parse(text) if name is not None)
    except ValueError:
        return frozenset()


def texts(document: Any, place: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Place and value of every text in a document."""
    if isinstance(document, str):
        yield place, document
    elif isinstance(document, Mapping):
        for key, value in document.items():
            yield from texts(value, (*place, key))
    elif isinstance(document, Sequence):
        for index, value in enumerate(document):
            yield from texts(value, (*place, index))


def _parts(text: str, known: Collection[str], where: str) -> Iterator[tuple[str, str | None]]:
    # Plain names only: format fields could otherwise reach into attributes.
    try:
        parts = list(string.Formatter().parse(text))
    except ValueError as error:
        raise ConfigError(f"{where}: '{text}': {error}; write {{{{ and }}}} for literal braces") from error
    for literal, name, form, conversion in parts:
        if name is not None and (form or conversion):
            raise ConfigError(
                f"{where}: '{text}': only plain names are allowed in braces; remove what follows ':' or '!'"
            )
        if name is not None and name not in known:
            raise ConfigError(
                f"{where}: '{{{name}}}' is not known; {suggest_name(name, known)} (write {{{{ and }}}} for literal braces)"
            )
        yield literal, name
