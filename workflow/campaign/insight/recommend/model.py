"""The time of a step as a sum of parts, and how it changes with each parameter. Pure.

A step of `batch` samples on each of n ranks, k of them on every host, takes

    T = C + H + Q + max(tail A, A - overlap C)
    C = t0 + batch (t1 + attach)                          compute; `attach`: what a device behind the fabric takes longer a sample
    H = host batch (k - 1)                                what ranks on one host take from each other
    Q = storage batch k                                   input that reading from another storage does not hide
    A = 2(n-1) messages alpha + 2(n-1)/n traffic S/B      ring all-reduce of S bytes over the slowest kind of link on the way

t0 and t1 belong to a precision and its options, alpha and B to a kind of way (`campaign.observe.links.document`); overlap, tail,
messages and traffic to a strategy, which is all options that say how devices share the work; the others to the workload.
t0 + t1 batch is the linear model of compute, A the latency-bandwidth model of a ring (Thakur, Rabenseifner & Gropp 2005, IJHPCA
19(1), 4.5); `overlap` is the share of compute behind which communication can hide (Li et al. 2020, "PyTorch Distributed", VLDB
13(12)), `tail` the share of communication that nothing hides: the last bucket is ready when the backward pass is over, and what
zero1 and fsdp send before and after it has nothing to hide behind. Strategies whose collectives are others than the all-reduce have
`traffic` (n/2)^growth times its bytes (a tree and a star grow otherwise than a ring) and `messages` times its latencies; both are 1
for all-reduces. All parameters but LINEAR are positive and stand here as logarithms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

COMMUNICATION = ("alpha", "bandwidth")
SHARES = ("overlap", "tail")
"""Parameters between 0 and 1."""
LINEAR = (*SHARES, "growth")
"""Parameters that are no logarithms."""
UNLIKE_RING = ("messages", "growth")
LIMITS = (*SHARES, *UNLIKE_RING, "host", "attach")
"""Parts that a model has only where the data ask for them."""


@dataclass(frozen=True)
class Rows:
    """What is known of steps before they are run; all arrays have one length.

    group: index of precision and options; way, storage: indices into `Structure.ways` and `.storages`, -1 for one rank, and for
    the storage that others are compared with. fabric: 1 where a device is behind the fabric. bytes: S, nan where unknown.
    """

    batch: Floats
    ranks: Floats
    on_host: Floats
    fabric: Floats
    group: Ints
    way: Ints
    storage: Ints
    bytes: Floats

    def __len__(self) -> int:
        return len(self.batch)

    def take(self, chosen: Any) -> Rows:
        """Some of the rows, by a mask or by positions."""
        return Rows(**{name: getattr(self, name)[chosen] for name in self.__dataclass_fields__})


@dataclass(frozen=True)
class Structure:
    """Which parameters a model has. has_t0: for each group, whether several batches tell t0 from t1.

    unknown_bytes: groups whose S has to be fitted; limits: those of LIMITS that are part of it. strategies: their names;
    strategy: that of each group; unlike_ring: strategies whose traffic has to be fitted.
    """

    has_t0: tuple[bool, ...]
    ways: tuple[str, ...]
    storages: tuple[str, ...] = ()
    unknown_bytes: tuple[int, ...] = ()
    limits: frozenset[str] = frozenset()
    strategies: tuple[str, ...] = ("",)
    strategy: tuple[int, ...] = ()
    unlike_ring: tuple[str, ...] = ()

    def names(self) -> tuple[str, ...]:
        """Names of the parameters, in order."""
        groups = range(len(self.has_t0))
        return (
            *(f"t1[{group}]" for group in groups),
            *(f"t0[{group}]" for group in groups if self.has_t0[group]),
            *(f"alpha[{way}]" for way in self.ways),
            *(f"bandwidth[{way}]" for way in self.ways),
            *(f"bytes[{group}]" for group in self.unknown_bytes),
            *(f"storage[{name}]" for name in self.storages),
            *(keyed("traffic", name) for name in self.unlike_ring),
            *(keyed(kind, name) for kind in UNLIKE_RING if kind in self.limits for name in self.unlike_ring),
            *(keyed(share, name) for share in SHARES if share in self.limits for name in self.strategies),
            *(name for name in ("host", "attach") if name in self.limits),
        )

    def columns(self, kind: str, keys: Sequence[Any]) -> Ints:
        """For each key, the position of the parameter `kind[key]`; -1 where there is none."""
        places = {name: place for place, name in enumerate(self.names())}
        return np.array([places.get(keyed(kind, key), -1) for key in keys], dtype=np.int64)

    def by_strategy(self, kind: str) -> Ints:
        """For each group, the position of the parameter `kind` of its strategy; -1 where there is none."""
        return self.columns(kind, self.strategies)[self.of_groups()]

    def of_groups(self) -> Ints:
        """The strategy of each group, as a position in `strategies`."""
        return np.array(self.strategy or (0,) * len(self.has_t0), dtype=np.int64)

    def column(self, name: str) -> int:
        """The position of a parameter without a key; -1 where there is none."""
        names = self.names()
        return names.index(name) if name in names else -1

    def shares(self) -> Ints:
        """Positions of the parameters that are shares."""
        kinds = [kind_of(name) for name in self.names()]
        return np.array([place for place, kind in enumerate(kinds) if kind in SHARES], dtype=np.int64)


def keyed(kind: str, key: Any) -> str:
    """The name of a parameter; what there is only one of has no key."""
    return kind if key == "" else f"{kind}[{key}]"


def kind_of(name: str) -> str:
    """'alpha' of 'alpha[fabric]'."""
    return name.partition("[")[0]


@dataclass(frozen=True)
class Evaluated:
    """Seconds of each row's step and of its all-reduce (0 for one rank), and the derivative of the logarithm of each.

    hidden: whether compute hides all communication but its tail; so it is for one rank.
    """

    step_s: Floats
    allreduce_s: Floats
    hidden: npt.NDArray[np.bool_]
    by_step: Floats
    by_allreduce: Floats


class StepTimeModel:
    """The equations for fixed rows, evaluated at many parameters; positions of parameters are looked up once."""

    def __init__(self, structure: Structure, rows: Rows) -> None:
        self.rows = rows
        self.count = len(structure.names())
        groups = range(len(structure.has_t0))
        self._t0 = structure.columns("t0", groups)[rows.group]
        self._t1 = structure.columns("t1", groups)[rows.group]
        self._bytes = structure.columns("bytes", groups)[rows.group]
        # Position -1 of these is looked up by rows without a way or another storage.
        self._alpha = np.append(structure.columns("alpha", structure.ways), -1)[rows.way]
        self._bandwidth = np.append(structure.columns("bandwidth", structure.ways), -1)[rows.way]
        self._storage = np.append(structure.columns("storage", structure.storages), -1)[rows.storage]
        everywhere = np.ones(len(rows), dtype=np.int64)
        self._host = everywhere * structure.column("host")
        self._attach = everywhere * structure.column("attach")
        self._several = rows.way >= 0
        self._overlap, self._tail, self._traffic, self._growth, self._messages = (
            np.where(self._several, structure.by_strategy(kind)[rows.group], -1)
            for kind in ("overlap", "tail", "traffic", "growth", "messages")
        )
        self._doubled = np.log(np.maximum(rows.ranks, 2) / 2)

    def uses(self) -> npt.NDArray[np.bool_]:
        """[row][parameter]: whether a row's step time depends on it."""
        used = np.zeros((len(self.rows), self.count), dtype=bool)
        places = np.arange(len(self.rows))
        for column, there in (
            (self._t0, True),
            (self._t1, True),
            (self._bytes, self._several),
            (self._alpha, True),
            (self._bandwidth, True),
            (self._storage, True),
            (self._host, self.rows.on_host > 1),
            (self._attach, self.rows.fabric > 0),
            (self._traffic, True),
            (self._growth, self.rows.ranks > 2),
            (self._messages, True),
            (self._overlap, True),
            (self._tail, True),
        ):
            kept = (column >= 0) & there
            used[places[kept], column[kept]] = True
        return used

    def at(self, theta: Floats) -> Evaluated:
        """Evaluate; theta in the order of `Structure.names`."""
        rows = self.rows
        # Position -1 is of what a row does not have: nothing is added, and factors are 1.
        values, factors, plain = np.append(np.exp(theta), 0.0), np.append(np.exp(theta), 1.0), np.append(theta, 0.0)
        overlap, tail = plain[self._overlap], plain[self._tail]
        several = self._several
        start, each = values[self._t0], values[self._t1] * rows.batch
        attach = values[self._attach] * rows.batch * rows.fabric
        compute = start + each + attach
        host = values[self._host] * rows.batch * (rows.on_host - 1)
        storage = values[self._storage] * rows.batch * rows.on_host
        size = np.where(self._bytes >= 0, values[self._bytes], np.nan_to_num(rows.bytes))
        size = factors[self._traffic] * np.exp(plain[self._growth] * self._doubled) * size
        hops = np.where(several, 2 * (rows.ranks - 1), 0.0)
        latency = hops * factors[self._messages] * values[self._alpha]
        transfer = np.where(several, hops / rows.ranks * size / np.where(several, values[self._bandwidth], 1.0), 0.0)
        allreduce = latency + transfer
        # Where links are slow, all but what compute hides is seen; where they are fast, the tail.
        slow = (several & (allreduce - overlap * compute > tail * allreduce)).astype(np.float64)
        seen = np.where(slow > 0, 1.0, tail)
        step = compute + host + storage + seen * allreduce - slow * overlap * compute
        compute_counts = 1 - overlap * slow
        by_step, by_allreduce = (np.zeros((len(rows), self.count)) for _ in range(2))
        for column, change in (
            (self._t0, start * compute_counts),
            (self._t1, each * compute_counts),
            (self._attach, attach * compute_counts),
            (self._host, host),
            (self._storage, storage),
            (self._alpha, latency * seen),
            (self._bandwidth, -transfer * seen),
            (self._bytes, transfer * seen),
            (self._traffic, transfer * seen),
            (self._growth, transfer * seen * self._doubled),
            (self._messages, latency * seen),
            (self._overlap, -compute * slow),
            (self._tail, allreduce * (1 - slow)),
        ):
            _add(by_step, column, change, step)
        positive = np.where(allreduce > 0, allreduce, 1.0)
        for column, change in (
            (self._alpha, latency),
            (self._bandwidth, -transfer),
            (self._bytes, transfer * several),
            (self._traffic, transfer),
            (self._growth, transfer * self._doubled),
            (self._messages, latency),
        ):
            _add(by_allreduce, column, change, positive)
        return Evaluated(step, allreduce, slow == 0, by_step, by_allreduce)


def _add(to: Floats, column: Ints, change: Floats, of: Floats) -> None:
    there = np.flatnonzero(column >= 0)
    if there.size:
        to[there, column[there]] += change[there] / of[there]
