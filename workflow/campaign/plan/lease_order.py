"""The order of leases within blocks, where devices stay attached from lease to lease (`Fabric.leave`). Pure.

A lease costs what it attaches and its hosts do not have; each device that is attached is detached once, by the end of the block at
the latest. So an order costs the number of devices that it attaches. All blocks follow one tour of the configurations; each begins
elsewhere, so that none is always early or late. The objective is what a block attaches on average over all starts.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Protocol, TypeVar

from campaign.config.resolve import Campaign
from campaign.documents.cell import Configuration
from campaign.files import content_hash
from campaign.plan.planned_operations import stays_attached

Need = tuple[int, ...]
"""Devices of the fabric that one host has or needs, by model."""
Stop = tuple[tuple[Need, int], ...]
"""What hosts have, or need for a lease: how many of them have or need the same."""

DRIVE = "nvme"
_EACH = 6
"""Up to so many different stops: every tour is looked at."""
_STARTS = 13
"""Up to so many leases: a block may begin with each; beyond, so many of them stand for all."""
_GOLDEN = (5**0.5 - 1) / 2
_TRIES = 600_000
"""Steps that the walk from tour to tour may look at, about."""
_REFINED, _REFINEMENTS = 12, 150
"""Up to so many configurations: so many tours are looked at as placement chooses."""
_LOOKS = 60_000
"""Steps from lease to lease that a search may look at, about."""


Earlier = Sequence[tuple[int, str]]
"""Composition and configuration of leases, in order."""


class Lease(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def configuration(self) -> Configuration: ...
    @property
    def composition(self) -> int: ...


Leased = TypeVar("Leased", bound=Lease)
Place = TypeVar("Place")
Attached = Callable[[Sequence[Configuration]], int]
"""How many devices leases of one block attach, in order."""


def in_order(campaign: Campaign, leases: Iterable[Leased], earlier: Earlier, attached: Attached) -> list[Leased]:
    """Leases as `protocol.lease_order` says; those of several systems, each in its own order, take turns at random within blocks.

    earlier: an order on the same basis (`order_basis`), in which the leases were planned before and keep their places.
    """
    of_system: dict[str, list[Leased]] = {}
    for lease in leases:
        of_system.setdefault(lease.configuration.system, []).append(lease)
    parts = [
        _in_order(part, own, earlier, attached if stays_attached(part) else None)
        for part in campaign.parts
        if (own := of_system.get(part.system.name))
    ]
    if len(parts) < 2:
        return next(iter(parts), [])
    blocks = defaultdict[int, list[list[Leased]]](list)
    for part_leases in parts:
        for composition, group in itertools.groupby(part_leases, key=lambda each: each.composition):
            blocks[composition].append(list(group))
    return [
        lease for block in sorted(blocks) for lease in _in_turns(blocks[block], f"{campaign.protocol.seed}/{block}")
    ]


def _in_turns(parts: Sequence[Sequence[Leased]], seed: str) -> Iterator[Leased]:
    """The elements of all parts, each in its order, drawn at random: so drift is no difference between systems."""
    turns = [number for number, part in enumerate(parts) for _ in part]
    Random(f"{seed}/systems").shuffle(turns)
    following = [iter(part) for part in parts]
    return (next(following[number]) for number in turns)


def _in_order(
    campaign: Campaign, leases: Iterable[Leased], earlier: Earlier, attached: Attached | None
) -> list[Leased]:
    """The same on one system. attached: None where no device stays attached from one to the next."""
    protocol = campaign.protocol
    position = {c.name: index for index, c in enumerate(campaign.configurations)}

    def least(lease: Leased) -> tuple[Any, ...]:
        # Compositions of one configuration are neighbours, local ones (which need no fabric) come first, and what is moved from one
        # to the next stays small.
        shape = lease.configuration
        moved = bool(shape.fabric_devices) or shape.storage == "fabric-nvme"
        return (moved, shape.storage, shape.device, shape.fabric_devices, position[shape.name], lease.composition)

    if protocol.lease_order == "least-recomposition":
        return sorted(leases, key=least)
    drawn = random_blocks(campaign, leases)
    if attached is None or protocol.lease_order == "random-blocks":
        return drawn
    moves, models = _moves(campaign)
    stops = {configuration.name: stop_of(configuration, models) for configuration in campaign.configurations}
    if not any(map(any, (need for stop in stops.values() for need, _ in stop))):
        return drawn
    place = {each: number for number, each in enumerate(earlier)}
    if all((lease.composition, lease.configuration.name) in place for lease in drawn):
        return sorted(drawn, key=lambda lease: (lease.composition, place[lease.composition, lease.configuration.name]))
    shapes = {configuration.name: configuration for configuration in campaign.configurations}
    tour, ordered = tour_of(stops, moves, str(protocol.seed)), list[Leased]()
    tour = refined(tour, lambda names: attached([shapes[name] for name in names]), str(protocol.seed))
    for block, group in itertools.groupby(drawn, key=lambda each: each.composition):
        here = list(group)
        there = {lease.configuration.name for lease in here}
        order = [name for name in order_of(tour, block - 1, str(protocol.seed)) if name in there]
        order = kept(order, [name for composition, name in earlier if composition == block], stops, moves)
        ordered += sorted(here, key=lambda lease: order.index(lease.configuration.name))
    return ordered


def random_blocks(campaign: Campaign, leases: Iterable[Leased]) -> list[Leased]:
    """Leases in blocks, each in random order."""
    seed = campaign.protocol.seed
    # Drawn from the name, so that what is missing keeps its place when configurations or compositions are added.
    return sorted(leases, key=lambda each: (each.composition, Random(f"{seed}/leases/{each.name}").random()))


def order_basis(campaign: Campaign) -> str:
    """Hash of what an order of leases rests on, but for the configurations."""
    basis: list[Any] = [campaign.protocol.seed, campaign.protocol.lease_order]
    for part in campaign.parts:
        moves, models = _moves(part)
        basis += [moves.hosts, moves.pool, models]
    return content_hash(basis, 12)


def _moves(campaign: Campaign) -> tuple[Moves, list[str]]:
    pool: Counter[str] = Counter()
    for entry in campaign.system.pool:
        pool[DRIVE if entry.kind == DRIVE else entry.model] += entry.count
    models = sorted(pool)
    return Moves(sum(len(group.names()) for group in campaign.system.hosts), tuple(pool[m] for m in models)), models


def stop_of(configuration: Configuration, models: Sequence[str]) -> Stop:
    """What a lease attaches; models: those of the pool, and `DRIVE`."""
    drive = int(configuration.storage == "fabric-nvme")
    hosts: Counter[Need] = Counter()
    for shape in configuration.host_shapes:
        need = Counter({DRIVE: drive})
        for each in shape.devices:
            need[each.model] += each.fabric
        hosts[tuple(need[model] for model in models)] += 1
    return tuple(sorted(hosts.items()))


@dataclass
class Moves:
    """Counts devices to attach, as placement chooses them: on hosts that are alike, with the fewest moves.

    hosts: how many there are; pool: devices by model.
    """

    hosts: int
    pool: Need
    _known: dict[tuple[Stop, Stop], tuple[Stop, int]] = field(default_factory=dict, repr=False)

    def step(self, there: Stop, stop: Stop) -> tuple[Stop, int]:
        """What is attached after a lease, by host, and how many devices were attached for it. there: before it."""
        key = there, stop
        if key not in self._known:
            self._known[key] = self._step(there, stop)
        return self._known[key]

    def _step(self, there: Stop, stop: Stop) -> tuple[Stop, int]:
        left = Counter(dict(there))
        left[(0,) * len(self.pool)] += self.hosts - left.total()
        after: Counter[Need] = Counter()
        attached = 0
        for need, hosts in sorted(stop, reverse=True):
            missing = hosts
            for have in sorted(left, key=lambda host: (-sum(map(min, host, need)), sum(host))):
                taken = min(missing, left[have])
                left[have] -= taken
                missing -= taken
                attached += taken * (sum(need) - sum(map(min, have, need)))
            after[need] += hosts
        for model, most in enumerate(self.pool):
            over = sum(count * need[model] for each in (after, left) for need, count in each.items()) - most
            for have in sorted(left, key=sum):
                while over > 0 and have[model] and left[have] > 0:
                    gone = min(over, have[model])
                    left[have] -= 1
                    left[(*have[:model], have[model] - gone, *have[model + 1 :])] += 1
                    over -= gone
        after.update(left)
        return tuple(sorted((have, count) for have, count in after.items() if count > 0 and any(have))), attached

    def of(self, stops: Sequence[Stop]) -> int:
        """Devices attached by leases in this order, from an empty fabric."""
        there: Stop = ()
        total = 0
        for stop in stops:
            there, attached = self.step(there, stop)
            total += attached
        return total


def _totals(stop: Stop) -> Need:
    return tuple(sum(counts) for counts in zip(*([count * each for each in need] for need, count in stop), strict=True))


def fewest(stops: Sequence[Stop], moves: Moves) -> list[Stop]:
    """An order of distinct stops that attaches few devices from an empty fabric on (beam search)."""
    totals = [_totals(stop) for stop in stops]
    largest = [sorted(((each[m], n) for n, each in enumerate(totals)), reverse=True) for m in range(len(moves.pool))]

    def at_least(visited: int, there: Stop) -> int:
        """Devices that are still to be attached, whatever the order."""
        have = _totals(there) or (0,) * len(largest)
        most = (next((count for count, n in each if not visited >> n & 1), 0) for each in largest)
        return sum(max(0, count - got) for count, got in zip(most, have, strict=True))

    beam: dict[tuple[int, Stop], tuple[int, int, tuple[int, ...]]] = {(0, ()): (0, 0, ())}
    for _ in stops:
        further: dict[tuple[int, Stop], tuple[int, int, tuple[int, ...]]] = {}
        for (visited, there), (_, cost, path) in beam.items():
            for number, stop in enumerate(stops):
                if visited >> number & 1:
                    continue
                after, attached = moves.step(there, stop)
                key, so_far = (visited | 1 << number, after), cost + attached
                if key not in further or so_far < further[key][1]:
                    further[key] = (so_far + at_least(*key), so_far, (*path, number))
        beam = dict(sorted(further.items(), key=lambda item: item[1])[: max(2, min(100, _LOOKS // len(stops) ** 2))])
    return [stops[number] for number in min(beam.values())[2]]


def attached_on(tour: Sequence[Stop], moves: Moves) -> float:
    """Devices that a block on this tour attaches on average, whichever of its leases it begins with."""
    starts = {_start(number, len(tour)) for number in range(_STARTS)} if len(tour) > _STARTS else range(len(tour))
    return sum(moves.of([*tour[start:], *tour[:start]]) for start in starts) / len(starts)


def tour_of(stops: Mapping[str, Stop], moves: Moves, seed: str) -> list[str]:
    """Names in the order of a tour on which blocks attach few devices; those of one stop are neighbours, at random.

    Every tour is looked at where there are few stops; else the search begins with what is good from an empty fabric, and goes on
    from one tour to another at random, first also to slightly worse ones.
    """
    random = Random(f"{seed}/tour")
    names = sorted(stops)
    random.shuffle(names)  # equally good tours are as likely
    together: dict[Stop, list[str]] = {}
    for name in names:
        together.setdefault(stops[name], []).append(name)

    def cost(order: Sequence[Stop]) -> float:
        return attached_on([stop for stop in order for _ in together[stop]], moves)

    first, *others = together
    if len(together) <= _EACH:
        best = min(([first, *rest] for rest in itertools.permutations(others)), key=cost)
    else:
        tries = max(200, _TRIES // (len(names) * min(len(names), _STARTS)))
        best = _walked(fewest(list(together), moves), cost, tries, random)
    return [name for stop in best for name in together[stop]]


def refined(tour: list[str], attached: Callable[[Sequence[str]], int], seed: str) -> list[str]:
    """A tour that is no worse by what orders really attach, which drawers and cables decide as well. For few configurations."""
    if len(tour) > _REFINED:
        return tour

    def cost(order: Sequence[str]) -> float:
        return sum(attached([*order[start:], *order[:start]]) for start in range(len(order))) / len(order)

    return _walked(tour, cost, _REFINEMENTS, Random(f"{seed}/refined"))


def _walked(tour: list[Place], cost: Callable[[Sequence[Place]], float], tries: int, random: Random) -> list[Place]:
    best, least = tour, cost(tour)
    now, there = best, least
    for number in range(tries):
        low, high = sorted(random.sample(range(len(now) + 1), 2))
        part, rest = now[low:high], now[:low] + now[high:]
        place = random.choice((low, random.randint(0, len(rest))))
        other = rest[:place] + part[:: random.choice((1, -1))] + rest[place:]
        found = cost(other)
        if found <= there + max(0.0, 0.02 * least * (1 - 2 * number / tries)):
            now, there = other, found
            if found < least:
                best, least = other, found
    return best


def order_of(tour: Sequence[str], block: int, seed: str) -> list[str]:
    """The names in the order of one block, from 0: along the tour, from a start at random for the first block.

    Others begin a golden section further each. So every name comes early in some blocks and late in others, however many there are.
    """
    start = _start(block, len(tour), Random(f"{seed}/start").random())
    return [*tour[start:], *tour[:start]]


def kept(order: Sequence[str], earlier: Sequence[str], stops: Mapping[str, Stop], moves: Moves) -> list[str]:
    """The order, or the earlier one with what it lacks put where it attaches the fewest devices."""
    known = [name for name in earlier if name in order]
    if known == [name for name in order if name in known]:
        return list(order)
    for name in order:
        if name not in known:
            places = ([*known[:place], name, *known[place:]] for place in range(len(known) + 1))
            known = min(places, key=lambda each: moves.of([stops[one] for one in each]))
    return known


def _start(number: int, length: int, first: float = 0.0) -> int:
    return int((first + number * _GOLDEN) % 1 * length)
