"""Results of clients of inference servers, imported: their rates and latencies are those of measured services."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from click.testing import CliRunner

from campaign.analysis.tables.collect import build_tables, read_campaign_results
from campaign.analysis.tables.io import Tables
from campaign.cli.main import main
from campaign.plan.campaign.resolve import load_campaign
from campaign.report.figure import build_figure_data, load_figure
from tests.unit.report.service_data import latency_ms

LOG = Path(__file__).parents[2] / "data/logs/vllm/file.log"
RATES = (20, 35, 45)
SERVICE = {
    "name": "own-service",
    "kind": "service",
    "precisions": ["bf16"],
    "options": {"rate_per_s": 1},
    "server": {"command": ["serve"]},
    "client": {"command": ["vllm", "bench"], "parser": "vllm"},
}


def result(rate: float, seed: int) -> str:
    """What `vllm bench serve --save-result` writes of a queue that serves 50 requests a second."""
    noise = float(np.random.default_rng(seed).normal(1, 0.02))
    latencies = {
        f"{name}_{latency}_ms": factor * noise * latency_ms(percent, rate, 1.0)
        for name, percent in (("median", 50), ("p99", 99))
        for latency, factor in (("ttft", 1), ("tpot", 0.1), ("e2el", 3))
    }
    counts = {"completed": 400, "failed": 0, "duration": 400 / rate, "request_throughput": rate}
    tokens = {"total_output_tokens": 800, "output_throughput": 2 * rate, "max_concurrency": None}
    return json.dumps(json.loads(LOG.read_text()) | counts | tokens | latencies | {"request_rate": rate})


@pytest.fixture(autouse=True)
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    cells = itertools.product(("1x1", "1x2"), (1, 2, 3), RATES)
    for number, (configuration, lease, rate) in enumerate(cells):
        path = Path(f"logs/{configuration}/lease{lease}/rate{rate}.json")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(result(rate, number))


def imported(workload: dict[str, Any], name: str = "llm", **more: Any) -> Any:
    path = "{configuration}/{lease}/rate{rate_per_s}.json"
    devices = [{"model": "a100", "count": 2}]
    document = {
        "name": "served",
        "system": {"name": "old", "hosts": [{"name": "n1", "cores": 8, "memory_gib": 64, "devices": devices}]},
        "configurations": [{"name": "1x1"}, {"name": "1x2", "devices_per_host": 2}],
        "workloads": {name: workload},
        "logs": [{"path": path, "values": {"workload": name, "precision": "bf16"}}],
        "protocol": {"warmup_steps": 0, "measured_steps": 1},
        **more,
    }  # fmt: skip
    Path("map.yaml").write_text(yaml.safe_dump(document))
    return CliRunner().invoke(main, ["import", "logs", "--map", "map.yaml"])


def tables() -> Tables:
    return build_tables(
        read_campaign_results(load_campaign(Path("results/served/config/campaign.yaml")), Path("results/served"))
    )


OWN = {"parser": "vllm", "options": {"rate_per_s": 1}}


@pytest.mark.parametrize("own", [True, False])
def test_rates_and_latencies_are_those_of_a_service(own: bool) -> None:
    if not own:
        Path("workloads").mkdir()
        Path("workloads/own-service.yaml").write_text(yaml.safe_dump(SERVICE))
    outcome = imported(OWN, "llm") if own else imported({}, "own-service")
    assert outcome.exit_code == 0, outcome.output
    found = tables()
    assert set(found.runs["status"]) == {"ok"}
    assert found.cells["batch"].unique().tolist() == [1]
    assert found.context["campaign"]["metric"]["name"] == "ttft_ms_p50"
    data = build_figure_data(found)
    drawn = load_figure("latencies").draw(data).data
    assert len(drawn) == 2 * len(RATES) * 6
    for row in drawn.to_dict("records"):
        if row["quantity"] == "p99 TTFT":
            assert row["mean"] == pytest.approx(latency_ms(99, row["rate_per_s"], 1.0), rel=0.06)
    assert "does not scale" in load_figure("scaling").draw(data).empty_reason


def test_a_rate_at_which_requests_were_sent_has_no_efficiency() -> None:
    assert imported(OWN, metric={"name": "throughput_per_s"}).exit_code == 0
    assert "sent at fixed rates" in load_figure("scaling").draw(build_figure_data(tables())).empty_reason


def test_several_results_in_one_file_are_runs_where_the_map_says_so() -> None:
    for path in Path("logs").glob("*/*/rate35.json"):
        path.write_text(f"{path.read_text()}\n{result(35, 99)}\n")
    assert imported(OWN).exit_code == 0
    assert tables().runs["status"].tolist() == ["ok"] * 12
    document = yaml.safe_load(Path("map.yaml").read_text())
    document["logs"][0]["tests"] = "repetitions"
    Path("map.yaml").write_text(yaml.safe_dump(document))
    assert CliRunner().invoke(main, ["import", "logs", "--map", "map.yaml"]).exit_code == 0
    assert tables().runs["status"].tolist() == ["ok"] * 24


@pytest.mark.parametrize(
    ("workload", "name", "words"),
    [
        ({}, "bert-nano", "writes its results to other files than its log"),
        ({"command": ["serve"]}, "llm", "no other key is allowed"),
    ],
)
def test_what_is_no_log_of_a_client_is_refused(workload: dict[str, Any], name: str, words: str) -> None:
    result = imported(workload, name)
    assert result.exit_code == 1
    assert words in " ".join(result.output.split())
