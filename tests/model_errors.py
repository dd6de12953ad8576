"""How far predictions of `campaign recommend` are from planted truths, over networks, links and strategies.

`python -m tests.model_errors` prints the table. Steps are simulated with parameters that are drawn from what is known of them, and
deviate by compositions and by runs. A cell is `left out` where its configuration was measured and left out of the fit, and `unseen`
where its configuration, within the measured range, was never measured. covers: whether the 95 % interval holds the truth.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np
import pandas as pd

from campaign.config.system_file import SystemFile
from campaign.config.workload_inputs import stored_workload
from campaign.documents.cell import Cell, Configuration
from campaign.insight.recommend.observations import observed, with_ways
from campaign.insight.recommend.step_model import modelled
from campaign.insight.recommend.step_rows import MeasuredProgram
from campaign.model.parameters import sample
from campaign.plan.step_cases import prior_of
from campaign.statistics.comparable_cells import option_columns
from campaign.statistics.intervals import student_quantile
from campaign.workloads.protocol import Workload
from tests.simulated_campaigns import Machine, Simulated
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
LINKS: Mapping[str, Mapping[str, float]] = {
    "NVLink": {"local": 36, "fabric": 12.2, "network": 12.5},
    "PCIe": {"local": 20, "fabric": 6, "network": 1.25},
    "Ethernet": {"local": 12, "fabric": 3, "network": 0.3},
}
MODELS: Mapping[str, Mapping[str, Any]] = {"bert-base": {"seq_len": 128}, "resnet50": {}, "mobilenetv2": {}}
STRATEGIES: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "ddp": [{}],
    "ddp, not overlapped": [{"overlap": False}],
    "ddp, accumulation 1 and 4": [{"accumulation": 1}, {"accumulation": 4}],
    "zero1": [{"parallel": "zero1"}],
    "fsdp": [{"parallel": "fsdp"}],
    "dp": [{"parallel": "dp"}],
    "ddp, zero1, fsdp, dp": [{"parallel": each} for each in ("ddp", "zero1", "fsdp", "dp")],
}


def errors(strategies: str, links: str, model: str, seed: int, noise: float = 0.01, known: bool = True) -> pd.DataFrame:
    """A row for each cell: `cell` (left out, or unseen), `configuration`, `batch`, options, `error_pct` of throughput, `covers` and
    `half` of its interval in percent (of those unseen).

    noise: deviation of compositions and of runs (two compositions, a run in each); known: whether the inside of a step is known.
    """
    program = {"schema_version": "workload/1", "name": model, "kind": "train", "model": model, "precisions": ["fp32"]}
    workload = stored_workload({"workloads": {model: {**program, "options": dict(MODELS[model])}}}, model)
    assert workload is not None
    stated = {name: {"gb_per_s": rate, "source": "planted"} for name, rate in LINKS[links].items()}
    hosts = [{"name": "host[1-4]", "devices": [{"model": "A100", "count": 8}]}]
    about = {
        "name": "planted",
        "fabric": {"kind": "simulated"},
        "hosts": hosts,
        "pool": [{"model": "A100", "count": 32}],
    }
    system = SystemFile.model_validate({**about, "links": stated})
    prior = prior_of(system, workload)
    planted = {name: float(value[0]) for name, value in sample(prior, 1, seed).values.items() if name != "copy"}
    machine = Machine(system, {model: workload}, planted)
    seen = Simulated(machine, tuple(_cells(MEASURED, model, STRATEGIES[strategies])), compositions=2, repetitions=1)
    tables = seen.tables(np.random.default_rng(seed), noise, noise)
    named = ["precision", *option_columns(tables.cells)]
    (measured,) = observed(tables.runs, tables.cells, named)
    of_program = MeasuredProgram(system, workload if known else unknown_inside(workload))
    hidden = Simulated(machine, tuple(_cells(UNSEEN, model, STRATEGIES[strategies])), compositions=1, repetitions=1)
    others = with_ways(hidden.tables(np.random.default_rng(seed), 0.0, 0.0).cells)
    frames = []
    for of in modelled(measured, named, of_program):
        own, fitted = of.cells, of.model
        assert fitted is not None
        true = own["batch_global"] / seen.true_rate[own["cell_id"]].to_numpy()
        frames.append(own.assign(cell="left out", error_pct=100 * (true / own["predicted_s"] - 1)))
        other = others.merge(own[[*named, "group", "strategy"]].drop_duplicates())
        said = fitted.predict(other)
        half = float(student_quantile(fitted.freedom)) * said.sd
        away = np.log(other["batch_global"] / hidden.true_rate[other["cell_id"]].to_numpy()) - said.log_s
        wrong = {"error_pct": 100 * np.expm1(away), "covers": np.abs(away) <= half, "half": 100 * half}
        frames.append(other.assign(cell="unseen", **wrong))
    kept = ["cell", "configuration", "batch", *named, "error_pct"]
    return pd.concat(frames, ignore_index=True).reindex(columns=[*kept, "covers", "half"])


def unknown_inside(workload: Workload) -> Workload:
    """The same program, of whose steps nobody knows anything."""
    opaque = type("Opaque", (type(workload),), {"step_facts": lambda self, cell: None})
    return cast(Workload, opaque(**vars(workload)))


def _cells(shapes: Sequence[Configuration], model: str, options: Sequence[Mapping[str, Any]]) -> Iterator[Cell]:
    for at, batch, chosen in itertools.product(shapes, (4, 8, 16), options):
        if at.hosts == 1 or chosen.get("parallel") != "dp":
            yield cell(at, model, batch, "fp32", **chosen)


def summary(found: pd.DataFrame, by: Sequence[str]) -> pd.DataFrame:
    """Cells, median and worst error, cells that are more than 10 % off, intervals that hold the truth, and the median of half their
    width; in percent."""
    size = found.assign(
        size=found["error_pct"].abs(),
        over=100.0 * (found["error_pct"].abs() > 10),
        holds=100.0 * found["covers"].astype(float),
    )
    return size.groupby(list(by), sort=False).agg(
        cells=("size", "count"),
        median=("size", "median"),
        worst=("size", "max"),
        over_10=("over", "mean"),
        covers=("holds", "mean"),
        half=("half", "median"),
    )


if __name__ == "__main__":
    for known in (True, False):
        grid = itertools.product(STRATEGIES, LINKS, MODELS)
        whole = [errors(*each, seed, known=known).assign(strategies=each[0]) for seed, each in enumerate(grid)]
        print("known program" if known else "program of unknown inside")
        print(summary(pd.concat(whole, ignore_index=True), ["cell", "strategies"]).round(1).to_string(), flush=True)
