"""How long collectives take over a topology, and what they carry over each kind of link. Pure.

Every hop from one device to another crosses links. Hops of all groups that communicate at the same time are counted on each link in
each direction: a collective is as slow as the link with the most hops for its rate. Rings and trees are those of NCCL: a ring sends
2(n-1)/n S over each hop in 2(n-1) steps, which pass chunks on, so that rates and latencies add up. Between hosts, a double tree is
taken where it is faster: between two hosts a NIC sends S, between more 2 S, in as many messages as the tree is deep.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from campaign.model.description import RankPlace, Topology
from campaign.model.parameters import Draws, Floats

Groups = tuple[tuple[int, ...], ...]
_Link = tuple[str, object, str]


@dataclass(frozen=True)
class Crossings:
    """flows: by kind of link, the most hops on one link in one direction; ports: by kind, how many ends of links all hops cross."""

    flows: dict[str, int]
    ports: dict[str, int]


_NOTHING = Crossings({}, {})


@dataclass(frozen=True)
class Ways:
    """The ways of some groups of ranks. hops: the kind of the longest link of each hop in the ring of the widest group; tree: what
    trees load if each hop carries S, nothing where there are none; depth: hops between hosts and inside of them, from a leaf to the
    root."""

    ranks: int
    ring: Crossings
    chain: Crossings
    hops: tuple[str, ...]
    tree: Crossings
    depth: tuple[int, int]


@lru_cache(maxsize=4096)
def ways(topology: Topology, groups: Groups) -> Ways:
    """The ways of groups of equal size that communicate at the same time."""
    widest = max(groups, key=lambda group: len({topology.ranks[rank].host for rank in group}))
    ring: list[tuple[int, int]] = []
    chain: list[tuple[int, int]] = []
    for group in groups:
        chain += pairwise(group)
        ring += [*pairwise(group), (group[-1], group[0])] if len(group) > 1 else []
    hosts = Counter(topology.ranks[rank].host for rank in widest)
    several = len(hosts) > 1 and topology.algorithm == "nccl"
    return Ways(
        len(widest),
        _load(topology, ring),
        _load(topology, chain),
        tuple(_longest(topology, one, other) for one, other in [*pairwise(widest), (widest[-1], widest[0])]),
        _tree(topology, groups) if several else _NOTHING,
        (math.ceil(math.log2(len(hosts))), max(hosts.values()) - 1),
    )


def _load(topology: Topology, hops: Sequence[tuple[int, int]]) -> Crossings:
    links = [link for one, other in hops for link in _crossed(topology, one, other)]
    flows: dict[str, int] = {}
    for (kind, *_), count in Counter(links).items():
        flows[kind] = max(flows.get(kind, 0), count)
    return Crossings(flows, dict(Counter(kind for kind, *_ in links)))


def _tree(topology: Topology, groups: Groups) -> Crossings:
    """A chain in each host, and one through the hosts, up and down: its inner hosts send as much as those of a double tree."""
    hops: list[tuple[int, int]] = []
    for group in groups:
        by_host: dict[int, list[int]] = {}
        for rank in group:
            by_host.setdefault(topology.ranks[rank].host, []).append(rank)
        for chain in (*by_host.values(), [ranks[0] for ranks in by_host.values()]):
            hops += [*pairwise(chain), *pairwise(reversed(chain))]
    return _load(topology, hops)


def _crossed(topology: Topology, one: int, other: int) -> list[_Link]:
    """Ports of links, with their direction, on the way from a rank's device to another's."""
    a, b = topology.ranks[one], topology.ranks[other]
    ends: list[_Link] = [(_port(a), one, "out"), (_port(b), other, "in")]
    if a.host != b.host:
        ends += [("uplink", a.host, "in")] * a.fabric + [("uplink", b.host, "out")] * b.fabric
        return [*ends, ("network", a.host, "out"), ("network", b.host, "in")]
    if a.switch != b.switch and a.fabric == b.fabric:
        ends += [("bridge", (a.host, a.switch), "out"), ("bridge", (b.host, b.switch), "in")]
    if a.fabric and b.fabric:
        return ends if topology.p2p else [*ends, ("uplink", a.host, "in"), ("uplink", a.host, "out")]
    if a.fabric != b.fabric:
        way = "in" if a.fabric else "out"
        return [*ends, ("mixed", (min(one, other), max(one, other)), way), ("uplink", a.host, way)]
    return ends


def _port(place: RankPlace) -> str:
    return "fabric" if place.fabric else "local"


def _longest(topology: Topology, one: int, other: int) -> str:
    """The kind of link that names the latency of a hop."""
    kinds = {kind for kind, *_ in _crossed(topology, one, other)}
    return next(kind for kind in ("network", "mixed", "uplink", "fabric", "bridge", "local") if kind in kinds)


class _Costs(NamedTuple):
    """By draw: ranks of a group, seconds of a call, of a byte on each hop of a chain, a ring and a tree (inf without one), of a
    message on a hop, and of messages from the leaves of a tree to its root."""

    ranks: Floats
    launch: Floats
    chain: Floats
    ring: Floats
    tree: Floats
    hop: Floats
    deep: Floats


@dataclass
class Collectives:
    """Collectives of some groups of ranks, which communicate at the same time, under draws: seconds of each that is called, and the
    bytes of all of them.

    carried: by kind of link, bytes over all of its ports, in and out; sent: by one rank of a ring; times: how often in a step what
    is called now takes place.
    """

    costs: _Costs
    ways: Ways | None = None
    carried: dict[str, Floats] = field(default_factory=dict)
    sent: float = 0.0
    times: int = 1

    @classmethod
    def of(cls, topology: Topology, groups: Groups, draws: Draws, slower: Floats | float = 1.0) -> Self:
        """slower: factor of all times. KeyError: no link on the ways has a rate, and there is no `rate` for any."""
        along = ways(topology, groups)
        chain, ring = (_per_byte(load, draws) for load in (along.chain, along.ring))
        tree = _per_byte(along.tree, draws) if along.tree.flows else np.full(len(draws), np.inf)
        latencies = Counter(along.hops)
        hop = sum((draws.of("latency", kind) * count for kind, count in latencies.items()), np.zeros(len(draws)))
        between, inside = along.depth
        deep = between * draws.of("latency", "network") + inside * draws.of("latency", "local")
        times = (draws.of("launch"), chain, ring, tree, hop / len(along.hops), deep)
        return cls(_Costs(np.full(len(draws), float(along.ranks)), *(each * slower for each in times)), along)

    @classmethod
    def side_by_side(cls, those: Sequence[Self]) -> Self:
        """The same collectives over several topologies at once, whose draws stand one after the other; what they carry is not
        counted."""
        return cls(_Costs(*map(np.concatenate, zip(*(each.costs for each in those), strict=True))))

    @property
    def ranks(self) -> Floats:
        return self.costs.ranks

    def all_reduce(self, size: float) -> Floats:
        """Of `size` bytes on each rank."""
        n, of = self.ranks, self.costs
        ring = 2 * (n - 1) * (of.hop + size / n * of.ring)
        tree = 2 * of.deep + max(size, 1.0) * of.tree  # which may be inf
        self._send("ring", 2 * (n - 1) / n * size, where=~(tree < ring))
        self._carry("tree", size * (tree < ring))
        return np.asarray(of.launch + np.fmin(ring, tree))

    def gather(self, size: float) -> Floats:
        """An all-gather, or a reduce-scatter, of `size` bytes as a whole."""
        n, of = self.ranks, self.costs
        self._send("ring", (n - 1) / n * size)
        return of.launch + (n - 1) * (of.hop + size / n * of.ring)

    def broadcasts(self, size: float) -> Floats:
        """Of `size` bytes together, a share from each rank, one after the other along binary trees, as gloo does it."""
        n, of = self.ranks, self.costs
        depth = np.ceil(np.log2(n))
        self._send("ring", (n - 1) / n * size)
        return np.asarray(n * (of.launch + depth * of.hop) + depth * size * of.ring)

    def pass_along(self, size: float) -> Floats:
        """A broadcast or a reduction of `size` bytes, in pieces along the ranks."""
        n, of = self.ranks, self.costs
        self.sent += self.times * float(np.max((n - 1) / n * size))
        self._carry("chain", size)
        return of.launch + (n - 1) * of.hop + size * of.chain

    def all_reduces(self, sent: float, calls: int) -> Floats:
        """Of so many all-reduces in a ring, in which each rank sends so many bytes together."""
        of = self.costs
        self._send("ring", sent)
        return calls * (of.launch + 2 * (self.ranks - 1) * of.hop) + sent * of.ring

    def message(self, size: float) -> Floats:
        """Of `size` bytes from each rank to the next."""
        self._carry("chain", size)
        return self.costs.launch + self.costs.hop + size * self.costs.chain

    def _send(self, way: str, size: npt.ArrayLike, where: npt.ArrayLike = True) -> None:
        """Each rank sends `size` bytes; they go this way under the draws `where`."""
        self.sent += self.times * float(np.max(size))
        self._carry(way, np.multiply(size, where))

    def _carry(self, way: str, size: npt.ArrayLike) -> None:
        load: Crossings = getattr(self.ways, way) if self.ways else _NOTHING
        for kind, ports in load.ports.items():
            more = self.times * ports * np.broadcast_to(size, self.ranks.shape)
            self.carried[kind] = self.carried.get(kind, 0.0) + more


def _per_byte(load: Crossings, draws: Draws) -> Floats:
    """Seconds of a byte on each hop: that of the slowest link. Those without a rate of their own count where none has one."""
    slowest = np.zeros(len(draws))
    known = [kind for kind in load.flows if f"rate[{kind}]" in draws.values]
    for kind in known or load.flows:
        rate = draws.of("bus", kind) * draws.of("rate", kind)
        slowest = np.maximum(slowest, load.flows[kind] / rate)
    return slowest
