"""Parameters of the model: each a number with a unit, a source and a distribution. Pure.

A distribution is written as the interval that holds 80 % of it. Every parameter is a function of a standard normal variable, so
that a prior is a standard normal in as many dimensions as there are parameters that are not known exactly.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, cast

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

Scale = Literal["log", "share", "linear"]
NORMAL_80 = 1.2815515655446004
"""A standard normal variable is between minus this and this with a probability of 80 %."""


@dataclass(frozen=True, slots=True)
class UncertainNumber:
    """low, high: 80 % lie between them; one number where it is known exactly. unit: of both.

    scale: `log` (a lognormal; positive), `share` (a logistic normal; between 0 and 1) or `linear` (a normal). Bounds of a `log` are
    above 0, of a `share` above 0 and below 1, except where it is known exactly.
    """

    low: float
    high: float
    unit: str
    source: str
    scale: Scale = "log"

    def __post_init__(self) -> None:
        inner = {"log": self.low > 0, "share": self.low > 0 and self.high < 1, "linear": True}[self.scale]
        if self.low > self.high or not (self.exact or inner):
            raise ValueError(f"no 80 % interval of a {self.scale} parameter: [{self.low:g}, {self.high:g}] {self.unit}")

    @classmethod
    def known(cls, value: float, unit: str, source: str) -> UncertainNumber:
        """A number that is known exactly."""
        return cls(value, value, unit, source, "linear")

    @classmethod
    def about(cls, value: float, factor: float, unit: str, source: str) -> UncertainNumber:
        """A positive number that is known up to a factor: 80 % lie between value / factor and value x factor."""
        return cls(value / factor, value * factor, unit, source)

    @property
    def exact(self) -> bool:
        return self.low == self.high

    @property
    def median(self) -> float:
        return float(self.at(np.zeros(1))[0])

    def at(self, z: Floats) -> Floats:
        """Values at standard normal z, of its shape."""
        if self.exact:
            return np.full(np.shape(z), self.low)
        low, high = (self._normal(bound) for bound in (self.low, self.high))
        x = (low + high) / 2 + z * (high - low) / (2 * NORMAL_80)
        if self.scale == "log":
            return np.exp(x)
        return 1 / (1 + np.exp(-x)) if self.scale == "share" else x

    def _normal(self, value: float) -> float:
        if self.scale == "log":
            return float(np.log(value))
        return float(np.log(value / (1 - value))) if self.scale == "share" else value


Prior = Mapping[str, UncertainNumber]
"""Parameters by name. `NAME[KEY]` is that of one kind of link, device or storage; where it is absent, `NAME` holds for it."""


@dataclass(frozen=True)
class Draws:
    """Values of the parameters by name, each an array of one length."""

    values: Mapping[str, Floats]

    def __len__(self) -> int:
        return len(next(iter(self.values.values())))

    def of(self, name: str, key: str = "") -> Floats:
        """Values of `name[key]`, or else of `name`. KeyError: there is neither."""
        found = self.values.get(keyed(name, key))
        return self.values[name] if found is None else found

    def has(self, name: str, key: str = "") -> bool:
        return keyed(name, key) in self.values or name in self.values

    def take(self, chosen: npt.ArrayLike) -> Draws:
        """Some of the draws, by positions or a mask."""
        return Draws({name: value[np.asarray(chosen)] for name, value in self.values.items()})


def keyed(name: str, key: str = "") -> str:
    return f"{name}[{key}]" if key else name


def standard(prior: Prior, count: int, seed: int = 0) -> Floats:
    """[draw][parameter]: standard normal variables in the order of the prior.

    Those of a parameter depend on its name and the seed only: cells with different priors are compared under the same draws.
    """
    columns = [np.random.default_rng((zlib.crc32(name.encode()), seed)).standard_normal(count) for name in prior]
    return np.column_stack(columns) if columns else np.zeros((count, 0))


def at(prior: Prior, z: Floats) -> Draws:
    """Values at standard normal z [draw][parameter]."""
    return Draws({name: parameter.at(z[:, place]) for place, (name, parameter) in enumerate(prior.items())})


def sample(prior: Prior, count: int, seed: int = 0) -> Draws:
    """Draws from the prior; see `standard`."""
    return at(prior, standard(prior, count, seed))


def medians(prior: Prior) -> Draws:
    """One draw: the median of each parameter."""
    return at(prior, np.zeros((1, len(prior))))


_TABLE = """\
compute          log    0.95   1.05   1      factor of a device's time; rows of equal machines in NVIDIA DeepLearningExamples differ by this
start            share  0.03   0.2    1      share of a step that does not grow with its batch, where one batch was measured; assumed
slowdown         share  0.05   0.35   1      compute slows down by it while devices communicate; arXiv 2507.03114 has 0.189
attach           share  0.001  0.02   1      a device behind the fabric computes slower by it; assumed
crowd            share  0.0005 0.006  1      each further rank of a host adds it to the compute time; one and eight GPUs in NVIDIA DeepLearningExamples
jitter           share  0.002  0.02   1      standard deviation of a rank's compute time from step to step, relative; assumed
fixed            log    0.008  0.019  s      of a step of several ranks, beside compute and collectives; fitted to the eight calibration rows of data/public-rows.yaml
python           log    0.008  0.03   s      Python of a replica of DataParallel under one lock; HFAiLab/pytorch_distributed has 0.016
bus              share  0.74   0.92   1      share of a link's rate that collectives reach; NCCL 2.8.4 topo.h: 21 of 25 GB/s (NVLink), 12 of 15.75 (PCIe)
launch           log    8e-6   5e-5   s      of a collective, before it moves anything; NCCL 2.8.4 tuning.cc, nccl-tests of 8 bytes
latency          log    2e-6   1e-5   s      of a message; NCCL 2.8.4 tuning.cc
latency[network] log    5e-6   3e-5   s      of a message between hosts; NCCL 2.8.4 tuning.cc
traffic          linear 1      1      1      factor of the time of collectives; 1 where a strategy has those that are simulated
growth           linear 0      0      1      power of half the ranks, by which that factor grows
cycle            linear 1e-3   1e-3   s      tensors are fused in such cycles; release notes of Horovod 0.21
decode           log    0.75   1.35   1      factor of the time that a core decodes a sample; cores differ by it, assumed
rate             log    1e9    25e9   byte/s of a way on which no link has a rate that somebody states; assumed
copy             log    5e9    12.5e9 byte/s from host memory to a device; PCIe 3.0 and 4.0 x16
context          log    600    1800   MiB    what CUDA, cuDNN, cuBLAS and NCCL take of a device; assumed
allocator        log    1.02   1.12   1      memory that the allocator holds over what tensors take; assumed
"""  # noqa: E501


def _default(line: str) -> tuple[str, UncertainNumber]:
    name, scale, low, high, unit, source = line.split(maxsplit=5)
    return name, UncertainNumber(float(low), float(high), unit, source, cast(Scale, scale))


DEFAULTS: Prior = dict(map(_default, _TABLE.splitlines()))
"""What is taken where nobody says better. Rates of links (`rate[KIND]`, byte/s in one direction) and of storage
(`read[KIND]`, byte/s of a host) are the system's; storage without one has no limit."""

MISFIT = 0.032
"""What the model is off by for a cell of its own, as a standard deviation of the logarithm: half of the variance that is left of
the eight calibration rows of data/public-rows.yaml (0.045), which are ratios of two cells."""


def named(name: str, low: float, high: float, source: str) -> UncertainNumber:
    """A parameter of this name, in the unit and on the scale of its default. ValueError: there is none, or no such interval."""
    kind, keyed_by, key = name.partition("[")
    known = DEFAULTS.get("rate" if kind == "read" and key else kind)
    if known is None or bool(keyed_by) != key.endswith("]"):
        choices = ", ".join(sorted({"rate[KIND]", "read[KIND]", *DEFAULTS}))
        raise ValueError(f"no parameter has this name; there are: {choices}")
    return UncertainNumber(low, high, known.unit, source, "linear" if low == high else known.scale)


_EMULATED = """\
compute          log    0.99   1.02   1      devices have a pace, or wait
slowdown         share  0.0005 0.02   1      compute on this machine beside its communication
attach           share  1e-5   1e-3   1      emulated devices are alike
crowd            share  1e-5   2e-3   1      ranks share this machine's cores
jitter           share  0.001  0.02   1      of this machine
fixed            log    2e-4   1e-2   s      of a step of several processes on this machine
bus              share  0.9    0.99   1      headers of packets, and acknowledgements
launch           log    1e-4   2e-3   s      of a collective of gloo
latency          log    3e-5   4e-4   s      of a message of gloo over emulated links
latency[network] log    3e-5   4e-4   s      of a message of gloo over emulated links
copy             linear inf    inf    byte/s nothing is copied
"""
EMULATED: Prior = dict(map(_default, _EMULATED.splitlines()))
"""Instead of the defaults where devices and links are emulated on one machine; assumed, and measured by every campaign."""
