"""Search for the number of devices that each host takes from each bank. The search handles counts, not single devices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations

from campaign.fabrics.banks import Bank
from campaign.spec.hardware import Host

Counts = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class HostNeed:
    """Number of devices and drives that one host needs from the fabric."""

    devices: int
    drives: int


@dataclass(frozen=True, slots=True)
class HostShare:
    """Number of devices that one host takes from each bank, in the order of the banks, and the bank of its drive."""

    devices: Counts
    drive: int | None


@dataclass(frozen=True, slots=True)
class RemainingCapacity:
    """Capacity that remains during the search, in the order of the banks.

    `serving` is the number of hosts that each drawer serves.
    """

    devices: Counts
    drives: Counts
    serving: tuple[tuple[str, int], ...]


class PlacementSearch:
    """Depth-first search for each host's share of the banks. A combination that failed once is not tried again."""

    def __init__(self, banks: Sequence[Bank], need: HostNeed, hosts: int) -> None:
        self.banks = banks
        self.need = need
        self.hosts = hosts
        self.spreads: list[Counts] = []
        self._infeasible: set[tuple[int, int, RemainingCapacity]] = set()

    def find_shares(
        self, candidates: Sequence[Host], capacity: RemainingCapacity
    ) -> list[tuple[Host, HostShare]] | None:
        """Find shares for the required number of hosts, or return None if there is no solution."""
        if not has_capacity(capacity, self.need, self.hosts):
            return None
        all_spreads = sorted(_generate_spreads(self.need.devices, max(len(self.banks), 1)), key=_spread_sort_key)
        groups = [[host for host in candidates if host.name in names] for names in _group_connected_hosts(self.banks)]
        # Try one spread for all hosts first. Only if no single spread works may hosts differ.
        for self.spreads in [*([spread] for spread in all_spreads), all_spreads]:
            placements: list[tuple[Host, HostShare]] = []
            for group in groups:
                placements += self._serve_max_hosts(group, self.hosts - len(placements), capacity)
            if len(placements) == self.hosts:
                return placements
        return None

    def _serve_max_hosts(
        self, candidates: Sequence[Host], missing: int, capacity: RemainingCapacity
    ) -> list[tuple[Host, HostShare]]:
        """Assign shares to as many hosts of one group as possible, up to `missing` hosts.

        Groups share no drawers, so maximizing each group maximizes the total.
        """
        for count in range(min(len(candidates), missing), 0, -1):
            self._infeasible.clear()
            placements = self._serve_hosts(candidates, 0, count, capacity)
            if placements is not None:
                return placements
        return []

    def _serve_hosts(
        self, candidates: Sequence[Host], index: int, missing: int, capacity: RemainingCapacity
    ) -> list[tuple[Host, HostShare]] | None:
        """Find shares for `missing` hosts among the candidates from `index` on, or return None if that is impossible."""
        if missing == 0:
            return []
        if len(candidates) - index < missing or (index, missing, capacity) in self._infeasible:
            return None
        host = candidates[index]
        for share in self._generate_shares(host, capacity):
            further_placements = self._serve_hosts(
                candidates, index + 1, missing - 1, self._subtract_share(share, capacity)
            )
            if further_placements is not None:
                return [(host, share), *further_placements]
        placements = self._serve_hosts(candidates, index + 1, missing, capacity)
        if placements is None:
            self._infeasible.add((index, missing, capacity))
        return placements

    def _generate_shares(self, host: Host, capacity: RemainingCapacity) -> Iterator[HostShare]:
        """Yield the possible shares of a host, given the remaining capacity."""
        serving = dict(capacity.serving)
        reachable_banks = [
            index
            for index, bank in enumerate(self.banks)
            if host.name in bank.hosts and serving[bank.drawer] < bank.hosts_max
        ]
        for spread in self.spreads:
            if len(spread) > len(reachable_banks):
                continue
            for bank_indices in dict.fromkeys(permutations(reachable_banks, len(spread))):
                counts = [0] * len(self.banks)
                for bank_index, count in zip(bank_indices, spread, strict=True):
                    counts[bank_index] = count
                if any(count > free for count, free in zip(counts, capacity.devices, strict=True)):
                    continue
                if not self.need.drives:
                    yield HostShare(tuple(counts), None)
                    continue
                sorted_bank_indices = sorted(reachable_banks, key=lambda bank_index: bank_index not in bank_indices)
                yield from (
                    HostShare(tuple(counts), bank_index)
                    for bank_index in sorted_bank_indices
                    if capacity.drives[bank_index]
                )

    def _subtract_share(self, share: HostShare, capacity: RemainingCapacity) -> RemainingCapacity:
        """Return the capacity that remains after a share is taken."""
        used_banks = {index for index, count in enumerate(share.devices) if count} | {share.drive}
        drawers = {self.banks[index].drawer for index in used_banks if index is not None}
        return RemainingCapacity(
            tuple(free - count for free, count in zip(capacity.devices, share.devices, strict=True)),
            tuple(free - (index == share.drive) for index, free in enumerate(capacity.drives)),
            tuple((drawer, hosts + (drawer in drawers)) for drawer, hosts in capacity.serving),
        )


def has_capacity(capacity: RemainingCapacity, need: HostNeed, hosts: int) -> bool:
    """Return True if the total capacity covers the needs of all hosts."""
    return sum(capacity.devices) >= need.devices * hosts and sum(capacity.drives) >= need.drives * hosts


def _group_connected_hosts(banks: Sequence[Bank]) -> list[set[str]]:
    """Group host names so that hosts of different groups reach no common drawer."""
    groups: list[tuple[set[str], set[str]]] = []
    for bank in banks:
        drawers, hosts = {bank.drawer}, set(bank.hosts)
        unconnected_groups = []
        for group in groups:
            if group[0] & drawers or group[1] & hosts:
                drawers, hosts = drawers | group[0], hosts | group[1]
            else:
                unconnected_groups.append(group)
        groups = [*unconnected_groups, (drawers, hosts)]
    return [hosts for _, hosts in groups]


def _generate_spreads(total: int, parts: int, largest: int | None = None) -> Iterator[Counts]:
    """Yield all ways to write `total` as a sum of at most `parts` positive descending numbers; () for zero."""
    if total == 0:
        yield ()
    elif parts > 0:
        for first in range(min(total, largest or total), 0, -1):
            for remaining_parts in _generate_spreads(total - first, parts - 1, first):
                yield (first, *remaining_parts)


def _spread_sort_key(spread: Counts) -> tuple[int, int]:
    """Return a sort key that prefers few drawers, then equal numbers per drawer."""
    return (len(spread), max(spread, default=0) - min(spread, default=0))
