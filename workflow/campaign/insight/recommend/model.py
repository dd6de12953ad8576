"""The time of a step as a sum of parts, and how it changes with each parameter. Pure.

A step of `batch` samples on each of n ranks, k of them on every host, takes

    T = C + H + Q + max(0, A - overlap C)
    C = t0 + batch (t1 + attach)                          compute; `attach`: what a device behind the fabric takes longer a sample
    H = host batch (k - 1)                                what ranks on one host take from each other
    Q = storage batch k                                   input that reading from another storage does not hide
    A = 2(n-1) alpha + 2(n-1)/n S/B                       ring all-reduce of S bytes over the slowest kind of link on the way

t0 and t1 belong to a precision and its options, alpha and B to a kind of way (`campaign.observe.links.link_kinds`), the others
to the workload.
t0 + t1 batch is the linear model of compute, A the latency-bandwidth model of a ring (Thakur, Rabenseifner & Gropp 2005, IJHPCA
19(1), 4.5); `overlap` is the share of compute behind which communication can hide (Li et al. 2020, "PyTorch Distributed", VLDB
13(12)). All parameters but `overlap` are positive and stand here as logarithms.
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
LIMITS = ("overlap", "host", "attach")
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

    unknown_bytes: groups whose S has to be fitted; limits: those of LIMITS that are part of it.
    """

    has_t0: tuple[bool, ...]
    ways: tuple[str, ...]
    storages: tuple[str, ...] = ()
    unknown_bytes: tuple[int, ...] = ()
    limits: frozenset[str] = frozenset()

    def names(self) -> tuple[str, ...]:
        """Of the parameters, in order."""
        groups = range(len(self.has_t0))
        return (
            *(f"t1[{group}]" for group in groups),
            *(f"t0[{group}]" for group in groups if self.has_t0[group]),
            *(f"alpha[{way}]" for way in self.ways),
            *(f"bandwidth[{way}]" for way in self.ways),
            *(f"bytes[{group}]" for group in self.unknown_bytes),
            *(f"storage[{name}]" for name in self.storages),
            *(name for name in LIMITS if name in self.limits),
        )

    def columns(self, kind: str, keys: Sequence[Any]) -> Ints:
        """For each key, the position of the parameter `kind[key]`; -1 where there is none."""
        places = {name: place for place, name in enumerate(self.names())}
        return np.array([places.get(f"{kind}[{key}]", -1) for key in keys], dtype=np.int64)

    def column(self, name: str) -> int:
        """The position of a parameter without a key; -1 where there is none."""
        names = self.names()
        return names.index(name) if name in names else -1


@dataclass(frozen=True)
class Evaluated:
    """Of every row: seconds of a step and of its all-reduce (0 for one rank), and the derivative of the logarithm of each."""

    step_s: Floats
    allreduce_s: Floats
    by_step: Floats
    by_allreduce: Floats


class Model:
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
        self._overlap = structure.column("overlap")
        self._several = rows.way >= 0

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
        ):
            kept = (column >= 0) & there
            used[places[kept], column[kept]] = True
        if self._overlap >= 0:
            used[:, self._overlap] = self._several
        return used

    def at(self, theta: Floats) -> Evaluated:
        """Evaluate; theta in the order of `Structure.names`."""
        rows = self.rows
        values = np.append(np.exp(theta), 0.0)
        overlap = float(theta[self._overlap]) if self._overlap >= 0 else 0.0
        several = self._several
        start, each = values[self._t0], values[self._t1] * rows.batch
        attach = values[self._attach] * rows.batch * rows.fabric
        compute = start + each + attach
        host = values[self._host] * rows.batch * (rows.on_host - 1)
        storage = values[self._storage] * rows.batch * rows.on_host
        size = np.where(self._bytes >= 0, values[self._bytes], np.nan_to_num(rows.bytes))
        hops = np.where(several, 2 * (rows.ranks - 1), 0.0)
        latency = hops * values[self._alpha]
        transfer = np.where(several, hops / rows.ranks * size / np.where(several, values[self._bandwidth], 1.0), 0.0)
        allreduce = latency + transfer
        exposed = allreduce - overlap * compute
        seen = (several & (exposed > 0)).astype(np.float64)
        step = compute + host + storage + seen * exposed
        compute_counts = 1 - overlap * seen
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
        ):
            _add(by_step, column, change / step)
        if self._overlap >= 0:
            by_step[:, self._overlap] -= compute * seen / step
        positive = np.where(allreduce > 0, allreduce, 1.0)
        for column, change in (
            (self._alpha, latency),
            (self._bandwidth, -transfer),
            (self._bytes, transfer * several),
        ):
            _add(by_allreduce, column, change / positive)
        return Evaluated(step, allreduce, by_step, by_allreduce)


def _add(to: Floats, column: Ints, change: Floats) -> None:
    there = np.flatnonzero(column >= 0)
    to[there, column[there]] += change[there]
