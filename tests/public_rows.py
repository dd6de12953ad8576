"""The model of a step held against public tables of one and of several GPUs of a host: `python -m tests.public_rows`.

The throughput of one GPU is given; that of several is predicted, with the defaults of the model. Eight rows calibrated them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from campaign.config.load import load_named
from campaign.documents.cell import Cell, Configuration
from campaign.model.description import ELEMENT_BYTES, MIB, ComputeTime, Network, StepCase, WorkSharing
from campaign.model.parameters import DEFAULTS, MISFIT, UncertainNumber, sample
from campaign.model.simulation import simulate
from campaign.plan.step_cases import topology_of
from campaign.workloads.protocol import Workload

ROOT = Path(__file__).resolve().parents[1]
DRAWS = 1000
_APEX_ELEMENTS = 10_000_000


@dataclass(frozen=True)
class Row:
    """A predicted number beside the published one; low, high: 80 %."""

    document: dict[str, Any]
    gpus: int
    published: float
    predicted: float
    low: float
    high: float

    @property
    def off(self) -> float:
        return self.predicted / self.published - 1

    @property
    def is_covered(self) -> bool:
        return self.low <= self.published <= self.high


def rows() -> Iterator[Row]:
    """Every number of `data/public-rows.yaml` of more than one GPU."""
    known = yaml.safe_load((ROOT / "data" / "public-rows.yaml").read_text(encoding="utf-8"))
    networks = {name: _network(each["workload"]) for name, each in known["models"].items()}
    noise = np.random.default_rng(0).standard_normal(DRAWS)
    for document in known["rows"]:
        system = known["systems"][document["system"]]
        rate = UncertainNumber.known(system["links"] * system["gb_per_s"] * 1e9, "byte/s", system["note"])
        one = {**DEFAULTS, "compute": UncertainNumber.known(1.0, "1", "given"), "rate[local]": rate}
        draws = sample(one, DRAWS)
        for gpus, published in document["several"].items():
            case = _case(document, networks[document["model"]], gpus)
            # A ratio of two cells.
            rates = document["batch"] * gpus / simulate(case, draws).step_s * np.exp(MISFIT * np.sqrt(2) * noise)
            low, median, high = np.quantile(rates, [0.1, 0.5, 0.9])
            yield Row(document, gpus, published, float(median), float(low), float(high))


def _network(workload: str) -> Network:
    of = load_named(Workload, workload, ROOT / "config" / "campaign.yaml").model
    at = Configuration("one", 1, 1, 1, 1, "any", "local", "local")
    facts = of.step_facts(Cell("0", at, workload, 1, of.precisions[0]))
    assert facts is not None
    return replace(facts.network, copied_bytes=0.0)  # these programs copy ahead


def _case(document: dict[str, Any], network: Network, gpus: int) -> StepCase:
    program, precision, batch = document["program"], document["precision"], document["batch"]
    sharing = WorkSharing()
    if program == "apex":
        size = float(_APEX_ELEMENTS * ELEMENT_BYTES[precision].gradient)
        sharing = WorkSharing(bucket_bytes=size, first_bucket_bytes=size)
    elif program == "horovod":
        sharing = WorkSharing("horovod", bucket_bytes=64 * MIB)
    at = Configuration("host", 1, gpus, gpus, gpus, "any", "local", "local")
    compute = ComputeTime("one GPU", {batch: batch / document["one"]})
    return StepCase(network, (compute,), batch, precision, topology_of(at), sharing)


@dataclass(frozen=True)
class Errors:
    """Of some rows: mean absolute error and bias of throughput, and the share of rows that the 80 % interval holds."""

    count: int
    mean: float
    bias: float
    covered: float

    @classmethod
    def of(cls, some: list[Row]) -> Errors:
        off = np.array([row.off for row in some])
        return cls(
            len(some), float(np.abs(off).mean()), float(off.mean()), float(np.mean([r.is_covered for r in some]))
        )


def held_out(known: list[Row], use: str = "hold_out") -> list[Row]:
    return [row for row in known if row.document["use"] == use]


def main() -> None:
    """Print both kinds of rows together, and each row."""
    known = list(rows())
    for use in ("calibrate", "hold_out"):
        errors = Errors.of(held_out(known, use))
        print(
            f"{use}: {errors.count} numbers, mean error {errors.mean:.1%}, bias {errors.bias:+.1%}, "
            f"80 % intervals hold {errors.covered:.0%}"
        )
    for row in known:
        d = row.document
        named = f"{d['model']} {d['system']} {d['program']} {d['precision']} batch {d['batch']} x {row.gpus}"
        print(f"{named:55} {row.published:9.1f} {row.predicted:9.1f} {row.off:+.1%} {d['source']}")


if __name__ == "__main__":
    main()
