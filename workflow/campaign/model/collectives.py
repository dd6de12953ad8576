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
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import Self

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
    trees load if each hop carries S, None on one host; depth: hops between hosts and inside of them, from a leaf to the root."""

    ranks: int
    ring: Crossings
    chain: Crossings
    hops: tuple[str, ...]
    tree: Crossings | None
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
        _tree(topology, groups) if several else None,
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


class Collectives:
    """Collectives of some groups of ranks, which communicate at the same time, under draws: seconds of each that is called, and the
    bytes of all of them. KeyError: no link on the ways has a rate, and there is no `rate` for any.

    carried: by kind of link, bytes over all of its ports, in and out; sent: by one rank of a ring; times: how often in a step what
    is called now takes place.
    """

    times = 1

    def __init__(self, topology: Topology, groups: Groups, draws: Draws) -> None:
        self.ways = ways(topology, groups)
        self.ranks: int | Floats = self.ways.ranks
        self.carried: dict[str, Floats] = {}
        self.sent = 0.0
        self._draws, self._nics = draws, topology.nics
        self._launch = draws.of("launch")
        self._chain_s, self._ring_s = self._per_byte(self.ways.chain), self._per_byte(self.ways.ring)
        self._tree_s = self._per_byte(self.ways.tree) if self.ways.tree else None
        latencies = Counter(self.ways.hops)
        self._hop_s = sum(
            (draws.of("latency", kind) * count for kind, count in latencies.items()), np.zeros(len(draws))
        ) / len(self.ways.hops)
        between, inside = self.ways.depth
        self._deep_s = between * draws.of("latency", "network") + inside * draws.of("latency", "local")

    @classmethod
    def side_by_side(cls, those: Sequence[Self], draws: Draws) -> Self:
        """The same collectives over several topologies at once, whose draws stand one after the other; what they carry is not
        counted."""
        found = cls.__new__(cls)
        trees = [each._tree_s for each in those]
        found.ways = replace(
            those[0].ways,
            ring=_NOTHING,
            chain=_NOTHING,
            tree=None if all(tree is None for tree in trees) else _NOTHING,
        )
        found.carried, found.sent, found._draws, found._nics = {}, 0.0, draws, 1
        found.ranks = np.concatenate([np.full(len(each._draws), float(each.ways.ranks)) for each in those])
        for name in ("_launch", "_chain_s", "_ring_s", "_hop_s", "_deep_s"):
            setattr(found, name, np.concatenate([getattr(each, name) for each in those]))
        found._tree_s = np.concatenate(
            [
                np.full(len(each._draws), np.inf) if tree is None else tree
                for each, tree in zip(those, trees, strict=True)
            ]
        )
        return found

    def slowed(self, factor: Floats) -> Self:
        """The same, each of which takes so many times as long."""
        for name in ("_launch", "_chain_s", "_ring_s", "_hop_s", "_deep_s"):
            setattr(self, name, getattr(self, name) * factor)
        self._tree_s = None if self._tree_s is None else self._tree_s * factor
        return self

    def all_reduce(self, size: float) -> Floats:
        """Of `size` bytes on each rank."""
        n = np.asarray(self.ranks)
        ring = 2 * (n - 1) * (self._hop_s + size / n * self._ring_s)
        self._send(2 * (n - 1) / n * size)
        if self._tree_s is None or self.ways.tree is None:
            self._carry(self.ways.ring, 2 * (n - 1) / n * size)
            return self._launch + ring
        tree = 2 * self._deep_s + size * self._tree_s
        better = tree < ring
        self._carry(self.ways.ring, 2 * (n - 1) / n * size * ~better)
        self._carry(self.ways.tree, size * better)
        return self._launch + np.minimum(ring, tree)

    def gather(self, size: float) -> Floats:
        """An all-gather, or a reduce-scatter, of `size` bytes as a whole."""
        n = np.asarray(self.ranks)
        self._send((n - 1) / n * size)
        self._carry(self.ways.ring, (n - 1) / n * size)
        return self._launch + (n - 1) * (self._hop_s + size / n * self._ring_s)

    def broadcasts(self, size: float) -> Floats:
        """Of `size` bytes together, a share from each rank, one after the other along binary trees, as gloo does it."""
        n = np.asarray(self.ranks)
        depth = np.ceil(np.log2(n))
        self._send((n - 1) / n * size)
        self._carry(self.ways.ring, (n - 1) / n * size)
        return np.asarray(n * (self._launch + depth * self._hop_s) + depth * size * self._ring_s)

    def pass_along(self, size: float) -> Floats:
        """A broadcast or a reduction of `size` bytes, in pieces along the ranks."""
        n = np.asarray(self.ranks)
        self._send((n - 1) / n * size)
        self._carry(self.ways.chain, size)
        return self._launch + (n - 1) * self._hop_s + size * self._chain_s

    def all_reduces(self, sent: float, calls: int) -> Floats:
        """Of so many all-reduces in a ring, in which each rank sends so many bytes together."""
        self._send(sent)
        self._carry(self.ways.ring, sent)
        return calls * (self._launch + 2 * (self.ways.ranks - 1) * self._hop_s) + sent * self._ring_s

    def message(self, size: float) -> Floats:
        """Of `size` bytes from each rank to the next."""
        self._carry(self.ways.chain, size)
        return self._launch + self._hop_s + size * self._chain_s

    def _send(self, size: npt.ArrayLike) -> None:
        self.sent += self.times * float(np.max(size))

    def _carry(self, load: Crossings, size: npt.ArrayLike) -> None:
        for kind, ports in load.ports.items():
            self.carried[kind] = self.carried.get(kind, 0.0) + self.times * ports * np.broadcast_to(
                size, len(self._draws)
            )

    def _per_byte(self, load: Crossings) -> Floats:
        """Seconds of a byte on each hop: that of the slowest link. Those without a rate of their own count where none has one."""
        slowest = np.zeros(len(self._draws))
        known = [kind for kind in load.flows if f"rate[{kind}]" in self._draws.values]
        for kind in known or load.flows:
            rate = self._draws.of("bus", kind) * self._draws.of("rate", kind) * (self._nics if kind == "network" else 1)
            slowest = np.maximum(slowest, load.flows[kind] / rate)
        return slowest
