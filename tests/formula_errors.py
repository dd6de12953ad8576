"""How far the formula of `campaign recommend` is from simulated steps, cell by cell, over models, links, devices and strategies.

`python -m tests.formula_errors` prints the table of all (two minutes). A cell is `left out` where its configuration was measured
and left out of the fit, and `unseen` where its configuration, within the measured range, was never measured.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from campaign.documents.cell import Cell, Configuration
from campaign.insight.recommend.candidates import modelled
from campaign.insight.recommend.fit import predict
from campaign.insight.recommend.observations import link_starts, with_ways
from campaign.statistics.comparable_cells import option_columns
from tests.simulated_campaigns import Simulated
from tests.step_simulator import TRACES, Machine
from tests.unit.report.report_data import cell, configuration

MEASURED = (
    *(configuration(each=n, attach="local") for n in (1, 2, 4, 8)),
    *(configuration(each=n) for n in (1, 2, 4, 8, 12, 20)),
    *(configuration(hosts=h, each=n) for h, n in ((2, 2), (4, 1), (2, 4))),
    *(configuration(hosts=h, each=2, attach="local") for h in (2, 4)),
    configuration(each=8, attach="hybrid"),
)
UNSEEN = (
    configuration(each=6, attach="local"),
    *(configuration(each=n) for n in (6, 16)),
    configuration(hosts=4, each=2),
    configuration(each=4, attach="hybrid"),
    *(configuration(hosts=h, each=n, attach="local") for h, n in ((2, 4), (4, 1))),
)
LINKS: Mapping[str, Mapping[str, tuple[float, float]]] = {
    "NVLink": {"local": (10e-6, 36e9), "fabric": (15e-6, 12.2e9), "network": (20e-6, 12.5e9)},
    "PCIe": {"local": (10e-6, 20e9), "fabric": (15e-6, 6e9), "network": (30e-6, 1.25e9)},
    "Ethernet": {"local": (20e-6, 12e9), "fabric": (30e-6, 3e9), "network": (60e-6, 0.3e9)},
}
SECONDS = {
    "bert-large": (0.02, 0.027),
    "bert-base": (0.01, 0.009),
    "resnet50": (0.006, 0.0025),
    "mobilenetv2": (0.004, 0.0012),
    "yolov5l": (0.01, 0.012),
}
"""(t0, t1) in fp32 of a device of speed 1."""
STRATEGIES: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "ddp": [{}],
    "ddp, two precisions": [{}],
    "ddp, not overlapped": [{"overlap": False}],
    "ddp, overlapped and not": [{"overlap": True}, {"overlap": False}],
    "ddp, accumulation 1 and 4": [{"accumulation": 1}, {"accumulation": 4}],
    "zero1": [{"parallel": "zero1"}],
    "fsdp": [{"parallel": "fsdp"}],
    "dp": [{"parallel": "dp"}],
    "ddp, zero1, fsdp, dp": [{"parallel": each} for each in ("ddp", "zero1", "fsdp", "dp")],
}


def errors(strategies: str, links: str, trace: str, speed: float, noise: float = 0.007) -> pd.DataFrame:
    """A row for each cell: `cell` (left out, or unseen), `configuration`, `batch`, options, `error_pct` of throughput, `trusted`.

    noise: deviation of compositions and of runs (two compositions, a run in each).
    """
    half = strategies == "ddp, two precisions"
    t0, t1 = SECONDS[trace]
    factors = {"fp32": 1.0, "fp16-o2": 0.4}
    compute = {(trace, "A100", name): (t0 * by / speed, t1 * by / speed) for name, by in factors.items()}
    machine = Machine(TRACES, compute, LINKS[links])
    of = (trace, tuple(factors) if half else ("fp32",), STRATEGIES[strategies])
    seen = Simulated(machine, tuple(_cells(MEASURED, *of)), compositions=2, repetitions=1)
    tables = seen.tables(np.random.default_rng(1), noise, noise)
    named = ["precision", *option_columns(tables.cells)]
    stated = {name: {"gb_per_s": rate / 1e9, "latency_us": 1e6 * alpha} for name, (alpha, rate) in LINKS[links].items()}
    (model,) = modelled(tables.runs, tables.cells, named, link_starts([], stated), [])
    assert model.fitted is not None
    own = model.observed.cells
    true = own["batch_global"] / seen.true_rate[own["cell_id"]].to_numpy()
    left_out = own.assign(cell="left out", error_pct=100 * (true / model.checked.predicted_s - 1))
    hidden = Simulated(machine, tuple(_cells(UNSEEN, *of)), compositions=1, repetitions=1)
    other = with_ways(hidden.tables(np.random.default_rng(1), 0.0, 0.0).cells)
    place = {group: number for number, group in enumerate(model.observed.groups)}
    other["group"] = [place[key] for key in other[named].itertuples(index=False, name=None)]
    other["bytes"] = other["group"].map(own.groupby("group")["bytes"].median())
    said = predict(model.fitted, model.observed.rows(other)).step_s
    true = other["batch_global"] / hidden.true_rate[other["cell_id"]].to_numpy()
    unseen = other.assign(cell="unseen", error_pct=100 * (true / said - 1))
    kept = ["cell", "configuration", "batch", *named, "error_pct"]
    return pd.concat([left_out[kept], unseen[kept]], ignore_index=True).assign(trusted=model.trusted)


def _cells(
    shapes: Sequence[Configuration], trace: str, precisions: Sequence[str], options: Sequence[Mapping[str, Any]]
) -> Iterator[Cell]:
    for at, batch, precision, chosen in itertools.product(shapes, (4, 8, 16), precisions, options):
        if at.hosts == 1 or chosen.get("parallel") != "dp":
            yield cell(at, trace, batch, precision, **chosen)


def summary(found: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """Cells, median and worst error in percent, and the percentage of cells that are more than 10 % off."""
    size = found.assign(size=found["error_pct"].abs(), over=100.0 * (found["error_pct"].abs() > 10))
    return size.groupby(list(by), sort=False).agg(
        cells=("size", "count"), median=("size", "median"), worst=("size", "max"), over_10=("over", "mean")
    )


if __name__ == "__main__":
    grid = itertools.product(STRATEGIES, LINKS, SECONDS, (1.0, 6.0))
    whole = [errors(*each).assign(strategies=each[0], links=each[1], trace=each[2]) for each in grid]
    everything = pd.concat(whole, ignore_index=True)
    for by in (["cell", "strategies"], ["cell", "links"], ["cell", "trace"]):
        print(summary(everything, by).round(1).to_string())
