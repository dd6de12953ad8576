"""Combinations of axis values. Pure."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from campaign.errors import ConfigError

MAX_COMBINATIONS = 1_000_000  # beyond it a list is a mistake, and the plan would not fit into memory


def product(axes: Mapping[str, Sequence[Any]], zips: Sequence[Sequence[str]], where: str) -> Iterator[dict[str, Any]]:
    """All combinations of axis values, where the axes of one zip go together; ConfigError for a zip that cannot be."""
    groups: list[list[dict[str, Any]]] = []
    zipped: set[str] = set()
    for names in zips:
        for name in names:
            if name not in axes:
                raise ConfigError(f"{where}: zip: '{name}' is no axis here; there are: {', '.join(axes)}")
            if name in zipped:
                raise ConfigError(f"{where}: zip: '{name}' stands in two zips")
            zipped.add(name)
        lengths = {name: len(axes[name]) for name in names}
        if len(set(lengths.values())) > 1:
            told = ", ".join(f"{name} has {length}" for name, length in lengths.items())
            raise ConfigError(f"{where}: zip: the lists must be equally long, but {told}")
    done: set[str] = set()
    for name, values in axes.items():
        if name in done:
            continue
        together = next((names for names in zips if name in names), (name,))
        done.update(together)
        groups.append([{n: axes[n][index] for n in together} for index in range(len(values))])
    count = math.prod(len(group) for group in groups)
    if count > MAX_COMBINATIONS:
        raise ConfigError(f"{where}: the lists make {count} combinations; at most {MAX_COMBINATIONS} are possible")
    for combination in itertools.product(*groups):
        merged: dict[str, Any] = {}
        for part in combination:
            merged.update(part)
        yield merged
