"""Search for the number of devices that each host takes from each bank. The search handles counts, not single devices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations

from campaign.fabrics.banks import Bank
from campaign.spec.hardware import Host

Counts = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Need:
    """Number of devices and drives that one host needs from the fabric."""

    devices: int
    drives: int


@dataclass(frozen=True, slots=True)
class Share:
    """Number of devices that one host takes from each bank (in the order of the banks), and the bank of its drive."""

    devices: Counts
    drive: int | None


@dataclass(frozen=True, slots=True)
class Left:
    """Capacity that remains while hosts are served, in the order of the banks.

    `serving` is the number of hosts per drawer.
    """

    devices: Counts
    drives: Counts
    serving: tuple[tuple[str, int], ...]


class Search:
    """Depth-first search over hosts in order. A combination that failed once is not tried again."""

    def __init__(self, banks: Sequence[Bank], need: Need, hosts: int) -> None:
        self.banks = banks
        self.need = need
        self.hosts = hosts
        self.spreads: list[Counts] = []
        self._hopeless: set[tuple[int, int, Left]] = set()

    def run(self, candidates: Sequence[Host], left: Left) -> list[tuple[Host, Share]] | None:
        """Find a share for the required number of hosts, or return None if there is no solution."""
        if not enough(left, self.need, self.hosts):
            return None
        every = sorted(_spreads(self.need.devices, max(len(self.banks), 1)), key=_untidiness)
        groups = [[host for host in candidates if host.name in names] for names in _neighbourhoods(self.banks)]
        # Try one spread for all hosts first. Only if no single spread works may hosts differ.
        for self.spreads in [*([spread] for spread in every), every]:
            found: list[tuple[Host, Share]] = []
            for group in groups:
                found += self._serve_most(group, self.hosts - len(found), left)
            if len(found) == self.hosts:
                return found
        return None

    def _serve_most(self, candidates: Sequence[Host], missing: int, left: Left) -> list[tuple[Host, Share]]:
        """Serve as many hosts of one group as possible, at most `missing`.

        Groups share no drawers, so the maximum per group gives the maximum in total.
        """
        for count in range(min(len(candidates), missing), 0, -1):
            self._hopeless.clear()
            found = self._serve(candidates, 0, count, left)
            if found is not None:
                return found
        return []

    def _serve(
        self, candidates: Sequence[Host], index: int, missing: int, left: Left
    ) -> list[tuple[Host, Share]] | None:
        """Find shares for `missing` hosts among the candidates from `index` on, or return None."""
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
        """Yield the possible shares of a host, given the remaining capacity."""
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
        """Return the capacity that remains after a share is taken."""
        used = {index for index, count in enumerate(share.devices) if count} | {share.drive}
        drawers = {self.banks[index].drawer for index in used if index is not None}
        return Left(
            tuple(free - count for free, count in zip(left.devices, share.devices, strict=True)),
            tuple(free - (index == share.drive) for index, free in enumerate(left.drives)),
            tuple((drawer, hosts + (drawer in drawers)) for drawer, hosts in left.serving),
        )


def enough(left: Left, need: Need, hosts: int) -> bool:
    """Return True if the total capacity covers the needs of all hosts."""
    return sum(left.devices) >= need.devices * hosts and sum(left.drives) >= need.drives * hosts


def _neighbourhoods(banks: Sequence[Bank]) -> list[set[str]]:
    """Group host names so that hosts of different groups reach no common drawer."""
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
    """Yield all ways to write `total` as at most `parts` descending positive numbers; yields () for zero."""
    if total == 0:
        yield ()
    elif parts > 0:
        for first in range(min(total, largest or total), 0, -1):
            for rest in _spreads(total - first, parts - 1, first):
                yield (first, *rest)


def _untidiness(spread: Counts) -> tuple[int, int]:
    """Return a sort key that prefers few drawers, then equal numbers per drawer."""
    return (len(spread), max(spread, default=0) - min(spread, default=0))
