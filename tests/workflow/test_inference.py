"""A campaign of a small server and a benchmark client, with the rate of requests as an axis: from the file to the figure."""

from __future__ import annotations

import csv
import io
import sys
from pathlib import Path
from typing import Any

from campaign.common.processes.marked import list_pids, read_process_words
from tests.workflow.checkout_twin import ROOT, Project, until

PROGRAMS = ROOT / "tests" / "unit" / "workloads"
SERVER, CLIENT = (str(PROGRAMS / name) for name in ("serving_program.py", "serving_client.py"))
TOKENS, TOKEN_S = 4, 0.01
RATES = [5, 20]


def write_service(project: Project, requests: int, **axes: Any) -> None:
    python = [sys.executable, "-S"]
    service = {
        "name": "llm",
        "kind": "service",
        "precisions": ["fp32"],
        "options": {"rate_per_s": RATES[0], "requests": requests},
        "server": {
            "command": [*python, SERVER, "{port}", "none", str(TOKEN_S)],
            "ready": {"http": "/health"},
            "metrics": {"read": {"answers": "answers_total"}},
        },
        "client": {"command": [*python, CLIENT, "{url}", "{rate_per_s}", "{requests}", "{result}"], "parser": "vllm"},
    }
    project.write("workloads/llm.yaml", service)
    project.write(
        "c.yaml",
        {
            "name": "c",
            "system": "bench",
            "configurations": [{"devices_per_host": 1}],
            "axes": {"workload": "llm", **axes},
            "protocol": {"repetitions": 2, "compositions": 2, "telemetry_s": None},
        },
    )


def servers() -> list[int]:
    return [pid for pid in list_pids() if SERVER.encode() in read_process_words(pid, "cmdline")]


def test_latencies_of_a_service_are_drawn_against_the_rate_of_its_client(project: Project) -> None:
    write_service(project, 12, options={"rate_per_s": RATES})
    project.write_tables()
    records = project.records()
    assert sorted(record.cell.options["rate_per_s"] for record in records) == [5, 5, 20, 20]
    for record in records:
        assert record.status == "ok", record.failure
        assert record.throughput_per_s == record.metrics["requests_per_s"]
        assert record.metrics["requests"] == record.metrics["server_answers"] == 12
        assert record.metrics["offered_per_s"] == record.cell.options["rate_per_s"]
        # The server takes its time for each token, one request after the other.
        assert record.metrics["ttft_ms_p50"] > 0.9e3 * TOKEN_S
        assert record.metrics["e2e_ms_p50"] > 0.9e3 * TOKENS * TOKEN_S
        log = Path(project.results().directory, record.log).read_text()
        assert '"median_ttft_ms"' in log
        assert "service: the server ended after" in log
    page = project.page("latencies")
    table = (project.results().figures / "latencies.csv").read_text(encoding="utf-8")
    rows = list(csv.DictReader(io.StringIO(table)))
    assert {(float(row["rate_per_s"]), row["quantity"]) for row in rows} == {
        (rate, f"{percentile} {latency}")
        for rate in RATES
        for percentile in ("p50", "p99")
        for latency in ("TTFT", "TPOT", "E2E")
    }
    assert 'id="latencies"' in page
    assert "At 20.0 requests/s, p99 TTFT is " in page
    assert servers() == []


def test_a_server_is_gone_after_its_driver_was_killed(project: Project) -> None:
    write_service(project, 10_000)
    project.start("--until", "measure")
    until(servers, 60.0, project.said)
    assert project.kill("driver")
    until(lambda: not servers(), 20.0, lambda: f"still alive: {servers()}")
    project.kill()
    project.await_quiet()
    assert servers() == []
    assert project.records() == []
