"""Placement of hosts that differ: which host takes what of which bank. A search over numbers, as `search` is for equal hosts.

Hosts that have the same and reach the same are interchangeable: of these only the first is tried, which keeps the search small.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from campaign.documents.cell import HostShape
from campaign.fabrics.banks import Bank

Part = tuple[int, str]
"""Place of a bank, and what is taken from it: a device model, or DRIVE."""
DRIVE = "\0drive"


@dataclass(frozen=True, slots=True)
class Candidate:
    """A host that may be taken. own: what it has itself, by model (or DRIVE)."""

    name: str
    own: Mapping[str, int]

    def offers(self, shape: HostShape, own_drive: bool) -> bool:
        drive = not own_drive or self.own.get(DRIVE, 0) > 0
        return drive and all(self.own.get(each.model, 0) >= each.local for each in shape.devices)


@dataclass(frozen=True)
class Wanted:
    """shapes: of the hosts, in their order; own_drive, pool_drive: whether each is to have a drive, of its own or of the pool."""

    shapes: Sequence[HostShape]
    own_drive: bool
    pool_drive: bool


Placed = dict[int, tuple[str, dict[Part, int]]]
"""By place of a shape: the host that takes it, and what of which bank."""


class UnequalSearch:
    """serving: how many hosts each drawer serves already."""

    def __init__(self, banks: Sequence[Bank], wanted: Wanted, serving: Mapping[str, int]) -> None:
        self.banks, self.wanted, self.serving = banks, wanted, serving
        self._hopeless: set[object] = set()

    def run(self, candidates: Sequence[Candidate], left: Mapping[Part, int]) -> Placed | None:
        """None where it cannot be. left: what of which bank is free."""
        # The largest first: what is left over fits the small ones.
        order = sorted(range(len(self.wanted.shapes)), key=lambda place: -self.wanted.shapes[place].count)
        return self._serve(tuple(order), tuple(candidates), dict(left), dict(self.serving))

    def _serve(
        self, order: tuple[int, ...], hosts: tuple[Candidate, ...], left: dict[Part, int], serving: dict[str, int]
    ) -> Placed | None:
        if not order:
            return {}
        key = (order, tuple(host.name for host in hosts), frozenset(left.items()), frozenset(serving.items()))
        if len(hosts) < len(order) or key in self._hopeless:
            return None
        shape, tried = self.wanted.shapes[order[0]], set[object]()
        for host in hosts:
            reach = tuple(n for n, bank in enumerate(self.banks) if host.name in bank.hosts)
            alike = (tuple(sorted(host.own.items())), reach)
            if alike in tried or not host.offers(shape, self.wanted.own_drive):
                continue
            tried.add(alike)
            need = {each.model: each.fabric for each in shape.devices if each.fabric}
            need |= {DRIVE: 1} if self.wanted.pool_drive else {}
            for taken in self._shares(list(need.items()), reach, left, serving, {}):
                after = {part: count - taken.get(part, 0) for part, count in left.items()}
                drawers = {self.banks[place].drawer for place, _ in taken}
                now = {drawer: count + (drawer in drawers) for drawer, count in serving.items()}
                rest = self._serve(order[1:], tuple(other for other in hosts if other is not host), after, now)
                if rest is not None:
                    return {**rest, order[0]: (host.name, taken)}
        self._hopeless.add(key)
        return None

    def _shares(
        self,
        need: Sequence[tuple[str, int]],
        reach: Sequence[int],
        left: Mapping[Part, int],
        serving: Mapping[str, int],
        taken: dict[Part, int],
    ) -> Iterator[dict[Part, int]]:
        """Ways to take what a host needs: of one bank where that is possible, else of as few as can be."""
        if not need:
            yield taken
            return
        (what, count), *others = need
        mine = {self.banks[place].drawer for place, _ in taken}
        open_to = [
            place
            for place in reach
            if self.banks[place].drawer in mine or serving[self.banks[place].drawer] < self.banks[place].hosts_max
        ]
        near_first = sorted(open_to, key=lambda place: self.banks[place].drawer not in mine)
        for split in sorted(_splits(count, [left.get((place, what), 0) for place in near_first]), key=_banks_used):
            more = {(place, what): part for place, part in zip(near_first, split, strict=True) if part}
            yield from self._shares(others, reach, left, serving, taken | more)


def _splits(total: int, most: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """All ways to take `total` of places that have so many."""
    if not most:
        if total == 0:
            yield ()
        return
    for first in range(min(total, most[0]), -1, -1):
        for rest in _splits(total - first, most[1:]):
            yield (first, *rest)


def _banks_used(split: Sequence[int]) -> int:
    return sum(map(bool, split))
