"""Which cells of a product were found, said as exclusions of the others: few rules, each short. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from campaign.documents.cell import Scalar

_TOGETHER = 12  # names in one list: an expression has an end


def others(
    names: Sequence[str], values: Sequence[Sequence[Scalar]], cells: Collection[Sequence[Scalar]], given: str = ""
) -> list[str]:
    """Expressions that together hold for exactly those combinations of values that are no cell, once each.

    names: of the axes, in the order of a cell's values; values: of each axis; given: what holds for all of these cells.
    """
    return list(_rules(names, values, {tuple(cell) for cell in cells}, given))


def either(name: str, values: Sequence[Scalar]) -> str:
    """An expression for any of the values, which are few."""
    return f"{name} == {values[0]!r}" if len(values) == 1 else f"{name} in {list(values)!r}"


def _rules(
    names: Sequence[str], values: Sequence[Sequence[Scalar]], cells: set[tuple[Scalar, ...]], given: str
) -> Iterator[str]:
    """Rules for the cells that remain below what is given; the first of `names` is decided next."""
    if not names:
        return
    name, every = names[0], values[0]
    below: dict[Scalar, set[tuple[Scalar, ...]]] = {}
    for first, *rest in cells:
        below.setdefault(first, set()).add(tuple(rest))
    if absent := [value for value in every if value not in below]:
        yield from (_and(given, rule) for rule in _among(name, absent))
    alike: dict[frozenset[tuple[Scalar, ...]], list[Scalar]] = {}
    for value in every:
        if value in below:
            alike.setdefault(frozenset(below[value]), []).append(value)
    for rest_of, same in alike.items():
        for chosen in _among(name, same) if len(same) < len(every) else [""]:
            yield from _rules(names[1:], values[1:], set(rest_of), _and(given, chosen))


def _among(name: str, values: Sequence[Scalar]) -> list[str]:
    return [either(name, values[at : at + _TOGETHER]) for at in range(0, len(values), _TOGETHER)]


def _and(given: str, rule: str) -> str:
    return f"{given} and {rule}" if given and rule else given or rule
