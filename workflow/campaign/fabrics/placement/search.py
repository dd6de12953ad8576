"""How many devices each host takes from which bank: searches over numbers, which know no single device.

`Search` places hosts that are alike, `UnequalSearch` hosts that differ. There, hosts that have the same and reach the same are
interchangeable: of these only the first is tried, which keeps the search small.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations

from campaign.documents.cell import HostShape
from campaign.fabrics.banks import Bank
from campaign.fabrics.hardware import Host

Counts = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Need:
    """What one host needs from the fabric."""

    devices: int
    drives: int


@dataclass(frozen=True, slots=True)
class Share:
    """What one host takes: devices per bank (aligned with the banks), and the bank of its drive."""

    devices: Counts
    drive: int | None


@dataclass(frozen=True, slots=True)
class Left:
    """What is left while hosts are served, aligned with the banks; `serving` counts hosts per drawer."""

    devices: Counts
    drives: Counts
    serving: tuple[tuple[str, int], ...]


class Search:
    """Depth-first search over hosts in order; a situation that led nowhere once is not entered again."""

    def __init__(self, banks: Sequence[Bank], need: Need, hosts: int) -> None:
        self.banks = banks
        self.need = need
        self.hosts = hosts
        self.spreads: list[Counts] = []
        self._hopeless: set[tuple[int, int, Left]] = set()

    def run(self, candidates: Sequence[Host], left: Left) -> list[tuple[Host, Share]] | None:
        if not enough(left, self.need, self.hosts):
            return None
        every = sorted(_spreads(self.need.devices, max(len(self.banks), 1)), key=_untidiness)
        groups = [[host for host in candidates if host.name in names] for names in _neighbourhoods(self.banks)]
        # One spread for all hosts first; only when no single one works may hosts differ.
        for self.spreads in [*([spread] for spread in every), every]:
            found: list[tuple[Host, Share]] = []
            for group in groups:
                found += self._serve_most(group, self.hosts - len(found), left)
            if len(found) == self.hosts:
                return found
        return None

    def _serve_most(self, candidates: Sequence[Host], missing: int, left: Left) -> list[tuple[Host, Share]]:
        """As many hosts as can be, at most `missing`. Neighbourhoods share nothing, so the most of each is the most of all."""
        for count in range(min(len(candidates), missing), 0, -1):
            self._hopeless.clear()
            found = self._serve(candidates, 0, count, left)
            if found is not None:
                return found
        return []

    def _serve(
        self, candidates: Sequence[Host], index: int, missing: int, left: Left
    ) -> list[tuple[Host, Share]] | None:
        if missing == 0:
            return []
        if len(candidates) - index < missing or (index, missing, left) in self._hopeless:
            return None
        host = candidates[index]
        for share in self._shares(host, left):
            rest = self._serve(candidates, index + 1, missing - 1, self._take(share, left))
            if rest is not None:
                return [(host, share), *rest]
        found = self._serve(candidates, index + 1, missing, left)
        if found is None:
            self._hopeless.add((index, missing, left))
        return found

    def _shares(self, host: Host, left: Left) -> Iterator[Share]:
        serving = dict(left.serving)
        reachable = [
            index
            for index, bank in enumerate(self.banks)
            if host.name in bank.hosts and serving[bank.drawer] < bank.hosts_max
        ]
        for spread in self.spreads:
            if len(spread) > len(reachable):
                continue
            for places in dict.fromkeys(permutations(reachable, len(spread))):
                counts = [0] * len(self.banks)
                for place, count in zip(places, spread, strict=True):
                    counts[place] = count
                if any(count > free for count, free in zip(counts, left.devices, strict=True)):
                    continue
                if not self.need.drives:
                    yield Share(tuple(counts), None)
                    continue
                near_first = sorted(reachable, key=lambda place: place not in places)
                yield from (Share(tuple(counts), place) for place in near_first if left.drives[place])

    def _take(self, share: Share, left: Left) -> Left:
        used = {index for index, count in enumerate(share.devices) if count} | {share.drive}
        drawers = {self.banks[index].drawer for index in used if index is not None}
        return Left(
            tuple(free - count for free, count in zip(left.devices, share.devices, strict=True)),
            tuple(free - (index == share.drive) for index, free in enumerate(left.drives)),
            tuple((drawer, hosts + (drawer in drawers)) for drawer, hosts in left.serving),
        )


def enough(left: Left, need: Need, hosts: int) -> bool:
    return sum(left.devices) >= need.devices * hosts and sum(left.drives) >= need.drives * hosts


def _neighbourhoods(banks: Sequence[Bank]) -> list[set[str]]:
    """Host names, grouped so that hosts of different groups reach no common drawer."""
    groups: list[tuple[set[str], set[str]]] = []
    for bank in banks:
        drawers, hosts = {bank.drawer}, set(bank.hosts)
        apart = []
        for group in groups:
            if group[0] & drawers or group[1] & hosts:
                drawers, hosts = drawers | group[0], hosts | group[1]
            else:
                apart.append(group)
        groups = [*apart, (drawers, hosts)]
    return [hosts for _, hosts in groups]


def _spreads(total: int, parts: int, largest: int | None = None) -> Iterator[Counts]:
    """All ways to write `total` as at most `parts` descending positive numbers; () for zero."""
    if total == 0:
        yield ()
    elif parts > 0:
        for first in range(min(total, largest or total), 0, -1):
            for rest in _spreads(total - first, parts - 1, first):
                yield (first, *rest)


def _untidiness(spread: Counts) -> tuple[int, int]:
    return (len(spread), max(spread, default=0) - min(spread, default=0))


BankPart = tuple[int, str]
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


Placed = dict[int, tuple[str, dict[BankPart, int]]]
"""By place of a shape: the host that takes it, and what of which bank."""


class UnequalSearch:
    """serving: how many hosts each drawer serves already."""

    def __init__(self, banks: Sequence[Bank], wanted: Wanted, serving: Mapping[str, int]) -> None:
        self.banks, self.wanted, self.serving = banks, wanted, serving
        self._hopeless: set[object] = set()

    def run(self, candidates: Sequence[Candidate], left: Mapping[BankPart, int]) -> Placed | None:
        """None where it cannot be. left: what of which bank is free."""
        # The largest first: what is left over fits the small ones.
        order = sorted(range(len(self.wanted.shapes)), key=lambda place: -self.wanted.shapes[place].count)
        return self._serve(tuple(order), tuple(candidates), dict(left), dict(self.serving))

    def _serve(
        self, order: tuple[int, ...], hosts: tuple[Candidate, ...], left: dict[BankPart, int], serving: dict[str, int]
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
        left: Mapping[BankPart, int],
        serving: Mapping[str, int],
        taken: dict[BankPart, int],
    ) -> Iterator[dict[BankPart, int]]:
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
