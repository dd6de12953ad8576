"""Results of clients of inference servers, imported: their requests, rates and objectives are those of measured services."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from click.testing import CliRunner
from tests.planted_services import response_times

from campaign.cli.main import main
from campaign.config.resolve import load_campaign
from campaign.report.figure import data_of, load_figure
from campaign.tables.collect import gather, tables_of
from campaign.tables.io import Tables

LOG = Path(__file__).parents[2] / "data/logs/vllm/detailed.log"
RATES = (20, 35, 45)
SERVICE = {
    "name": "own-service",
    "kind": "service",
    "precisions": ["bf16"],
    "options": {"rate_per_s": 1},
    "server": {"command": ["serve"]},
    "client": {"command": ["vllm", "bench"], "parser": "vllm"},
    "objective": {"ttft_ms": {"p50": 60}},
}


def detailed(rate: float, seed: int, count: int = 400) -> str:
    """What `vllm bench serve --save-detailed` writes of a queue that serves 50 requests a second; one request fails."""
    draw = np.random.default_rng(seed)
    starts, first_s = np.cumsum(draw.exponential(1 / rate, count)), response_times(rate, [50.0], count, draw)[0]
    alike = {"ttfts": first_s, "start_times": starts + 1000.0, "latencies": first_s + 0.1}
    columns = {name: values.tolist() for name, values in alike.items()}
    errors = ["" if number else "refused" for number in range(count)]
    columns |= {"itls": [[0.1]] * count, "queue_times": [0.0] * count, "errors": errors}
    columns |= {"input_lens": [16] * count, "output_lens": [2] * count}
    took = float(starts[-1])
    columns |= {"total_output_tokens": 2 * (count - 1), "output_throughput": 2 * (count - 1) / took}
    counts = {"completed": count - 1, "failed": 1, "duration": took, "request_throughput": (count - 1) / took}
    return json.dumps(json.loads(LOG.read_text()) | columns | counts | {"request_rate": rate, "max_concurrency": None})


@pytest.fixture(autouse=True)
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    cells = itertools.product(("1x1", "1x2"), (1, 2, 3), RATES)
    for number, (configuration, lease, rate) in enumerate(cells):
        path = Path(f"logs/{configuration}/lease{lease}/rate{rate}.json")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(detailed(rate, number))


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
    return tables_of(gather(load_campaign(Path("results/served/config/campaign.yaml")), Path("results/served")))


OWN = {"parser": "vllm", "options": {"rate_per_s": 1}, "objective": {"ttft_ms": {"p50": 60}}}


@pytest.mark.parametrize("own", [True, False])
def test_requests_rates_and_objectives_are_those_of_a_service(own: bool) -> None:
    if not own:
        Path("workloads").mkdir()
        Path("workloads/own-service.yaml").write_text(yaml.safe_dump(SERVICE))
    result = imported(OWN, "llm") if own else imported({}, "own-service")
    assert result.exit_code == 0, result.output
    found = tables()
    assert len(found.requests) == 18 * 400
    assert set(found.runs["status"]) == {"ok"}
    assert found.cells["batch"].unique().tolist() == [1]
    assert found.context["campaign"]["metric"]["name"] == "ttft_ms_p50"
    assert [*found.context["objectives"].values()] == [{"ttft_ms": {"p50": 60}}]
    data = data_of(found)
    (row, *_) = load_figure("highest_rate").draw(data).data.to_dict("records")
    assert row["found"] == "crossed"
    assert row["rate_low"] < 50 - np.log(2) / 0.06 < row["rate_high"]
    assert "does not scale" in load_figure("scaling").draw(data).empty_reason


def test_a_rate_at_which_requests_were_sent_has_no_efficiency() -> None:
    assert imported(OWN, metric={"name": "throughput_per_s"}).exit_code == 0
    assert "sent at given rates" in load_figure("scaling").draw(data_of(tables())).empty_reason


def test_several_results_in_one_file_are_runs_where_the_map_says_so() -> None:
    for path in Path("logs").glob("*/*/rate35.json"):
        path.write_text(f"{path.read_text()}\n{detailed(35, 99)}\n")
    assert imported(OWN).exit_code == 0
    assert len(tables().requests) == 12 * 400
    document = yaml.safe_load(Path("map.yaml").read_text())
    document["logs"][0]["tests"] = "repetitions"
    Path("map.yaml").write_text(yaml.safe_dump(document))
    assert CliRunner().invoke(main, ["import", "logs", "--map", "map.yaml"]).exit_code == 0
    assert tables().runs["status"].tolist() == ["ok"] * 24


@pytest.mark.parametrize(
    ("workload", "name", "words"),
    [
        ({}, "vllm-serve", "gives its numbers in files of its own"),
        ({"objective": {"ttft_ms": {"p99": 5}}}, "llm", "no other key is allowed"),
    ],
)
def test_what_is_no_log_of_a_client_is_refused(workload: dict[str, Any], name: str, words: str) -> None:
    result = imported(workload, name)
    assert result.exit_code == 1
    assert words in " ".join(result.output.split())


def test_a_command_that_prints_requests_keeps_them() -> None:
    Path("workloads").mkdir()
    command = {"kind": "command", "command": ["vllm"], "parser": "vllm", "options": {"rate_per_s": 1}}
    Path("workloads/bench.yaml").write_text(yaml.safe_dump({"name": "bench", "precisions": ["bf16"], **command}))
    text = Path("map.yaml")
    imported({}, "bench")
    document = yaml.safe_load(text.read_text())
    document["logs"][0]["values"]["batch"] = 1
    text.write_text(yaml.safe_dump(document))
    result = CliRunner().invoke(main, ["import", "logs", "--map", "map.yaml"])
    assert result.exit_code == 0, result.output
    assert len(tables().requests) == 18 * 400
