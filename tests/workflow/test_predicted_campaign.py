"""A campaign of replayed training, and what the formula of `campaign recommend` says of cells that it was not shown."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from campaign.launch.emulation.network import availability
from tests.workflow.checkout_twin import Project

SYSTEM = {
    "launcher": "local",
    "fabric": {"kind": "simulated"},
    "hosts": [{"name": "host[1-4]", "devices": [{"kind": "gpu", "model": "v100", "count": 4}]}],
    "pool": [{"kind": "gpu", "model": "v100", "count": 8}],
    "devices": {"v100": {"runs_on": "cpu"}},
    "links": {"local": {"gb_per_s": 36.0}, "fabric": {"gb_per_s": 5.0}, "network": {"gb_per_s": 4.0}},
    # Half a second takes ten: a collective's own time is little of it.
    "emulation": {"scale": 0.0005, "dilation": 8},
}
WORKLOAD = {
    "name": "replayed",
    "kind": "replay",
    "precisions": ["fp32"],
    "layers": [{"name": "layer", "repeat": 12, "tensors": [7_000_000, 2000], "forward": 1, "backward": 2}],
    "optimizer": 1,
    "compute": [{"device": "v100", "precision": "fp32", "batch": 8, "seconds": 0.12, "source": "planted"}],
}
CAMPAIGN = {
    "configurations": [
        {"devices_per_host": [1, 2, 4]},
        {"hosts": [2, 4], "devices_per_host": [2, 1], "zip": [["hosts", "devices_per_host"]]},
        {"devices_per_host": [2, 4], "attach": "fabric"},
        {"devices_per_host": 4, "attach": "hybrid"},
    ],
    "axes": {"workload": "replayed", "batch": [8, 16], "precision": "fp32"},
    "protocol": {"warmup_steps": 1, "measured_steps": 1, "repetitions": 1, "compositions": 1, "links": {"when": []}},
}


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.skipif(not availability().mode, reason=f"hosts cannot be emulated here: {availability().reason}")
def test_the_formula_says_what_the_replay_gives(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.write("systems/bench.yaml", {"name": "bench", **SYSTEM})
    project.write("workloads/replayed.yaml", WORKLOAD)
    project.write("c.yaml", {"name": "c", "system": "bench", **CAMPAIGN})
    project.run("recommend", time_out_s=600)
    results = project.results().directory
    cells = pd.read_parquet(results / "tables" / "cells.parquet")
    assert cells["predicted"].all()
    # The link is what costs: a replay is told apart from waiting alone.
    rate = cells[cells["batch"] == 8].set_index("configuration")["mean"]
    assert rate["1x4-fabric"] < 0.95 * rate["1x4-local"]
    left_out = pd.read_csv(results / "recommendation" / "recommendation.csv").dropna(subset=["error_pct"])
    assert len(left_out) >= 12
    assert left_out["error_pct"].abs().median() < 5
    far = left_out[left_out["error_pct"].abs() > 10]
    assert len(far) <= 2
    assert far["reason"].notna().all()
    (model,) = json.loads((results / "recommendation" / "recommendation.json").read_text())["models"]
    assert model["trusted"]
    assert model["sentence"].split(":")[0] in project.page("pareto")
