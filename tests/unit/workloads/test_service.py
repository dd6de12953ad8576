"""Services: runs of a real server with a real client, their faults, and the file."""

from __future__ import annotations

import os
import re
import shlex
import socket
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from campaign.common.errors import ConfigError, LaunchError
from campaign.common.processes.marked import list_pids, read_process_words
from campaign.plan.campaign.load import validate
from campaign.plan.matrix import expand_matrix
from campaign.spec.metric import THROUGHPUT, Metric
from campaign.spec.yaml_file import YamlFile
from campaign.workloads.log_reader import Log
from campaign.workloads.protocol import Outcome, Step, StepEnd, Workload
from campaign.workloads.service import ServiceWorkload
from campaign.workloads.service_run import __main__ as program
from campaign.workloads.service_run.server import compute_server_metrics
from campaign.workloads.service_run.specification import ServerMetrics
from tests.campaign_files import ids, load, one_cell, one_run

SERVER = Path(__file__).with_name("serving_program.py")
CLIENT = [sys.executable, "-S", str(Path(__file__).with_name("serving_client.py")), "{url}", "100", "8", "{result}"]
RATE = {"metric": "throughput_per_s", "regex": r"rate (\S+)"}


def service(fault: str = "none", *, server: dict[str, Any] | None = None, **changes: Any) -> ServiceWorkload:
    measuring = {"command": CLIENT, "parser": "vllm"}
    document: dict[str, Any] = {"name": "s", "kind": "service", "precisions": ["fp32"], "client": measuring, **changes}
    command = [sys.executable, "-S", str(SERVER), "{port}", fault]
    return ServiceWorkload.model_validate({**document, "server": {"command": command, **(server or {})}})


Measure = Callable[..., Outcome]


@pytest.fixture
def measure(tmp_path: Path) -> Measure:
    """A run of the program in a fork of this process, which has imported it already; nothing of it is left."""

    def run(workload: ServiceWorkload, hosts: int = 1, devices: int = 1) -> Outcome:
        one = one_run(tmp_path / "run", one_cell(hosts=hosts, devices=devices, workload="s"))
        step, log = workload.step(one), tmp_path / "log"
        before, started = set(list_pids()), time.time()
        group = {"WORLD_SIZE": str(step.process_count), "MASTER_ADDR": "first", "MASTER_PORT": "1234"}
        pids = [
            _forked(step, log, {**group, "RANK": str(rank)} if step.per_rank else {})
            for rank in range(step.process_count)
        ]
        codes = tuple(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids)
        new = set(list_pids()) - before
        assert not [
            each for each in new if any(SERVER.name.encode() in word for word in read_process_words(each, "cmdline"))
        ]
        return workload.judge_run(one, StepEnd(codes, started, time.time()), Log(log))

    return run


def _forked(step: Step, log: Path, environment: Mapping[str, str]) -> int:
    if pid := os.fork():
        return pid
    try:
        os.dup2(os.open(log, os.O_CREAT | os.O_WRONLY | os.O_APPEND), 1)
        os.environ.update(environment)
        sys.argv = ["service_run", step.argv[-1]]
        os._exit(program.main())
    except BaseException:
        traceback.print_exc()
        os._exit(70)


def test_a_run_has_the_numbers_of_client_and_server(measure: Measure) -> None:
    read = {"answers": "answers_total", "busy": "busy", "absent": "no_such_total"}
    found = measure(service(server={"metrics": {"read": read}}))
    assert (found.status, found.failure) == ("ok", None)
    assert (found.metrics["requests"], found.metrics["errors"], found.metrics["offered_per_s"]) == (8, 0, 100)
    assert found.throughput_per_s == found.metrics["requests_per_s"] > 0
    assert (found.metrics["server_answers"], found.metrics["server_busy"]) == (8, 0.5)
    for latency in ("ttft_ms", "tpot_ms", "e2e_ms"):
        assert 0 <= found.metrics[f"{latency}_p50"] <= found.metrics[f"{latency}_p99"]
    assert {"server_ready", "client", "server_stop"} == found.phases_s.keys()
    assert any("no_such_total" in flag for flag in found.flags)
    assert found.steady is not None
    assert found.window_s == pytest.approx([found.steady[1] - found.steady[0]])


def client(*command: str, **keys: Any) -> dict[str, Any]:
    """A service with another client."""
    return {"client": {"command": command, "parsers": [RATE], **keys}}


COUNTED = [RATE, {"metric": "requests", "regex": r"of (\d+)"}, {"metric": "errors", "regex": r"(\d+) errors"}]
OUT_OF_MEMORY = "echo 'torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB'; exit 1"
LATE = {"server": {"ready_within_s": 2.5}}
SHARE = r"(\d+) of \d+ requests failed \((25|10) %, errors_at_most_pct is 1\)"


@pytest.mark.parametrize(
    ("fault", "changes", "status", "reason", "evidence"),
    [
        ("dies at start", {}, "crashed", "ended with exit code 3 before it was ready", "no weights"),
        ("dies under load", {}, "crashed", "ended with exit code 7 while the client ran", "no more memory"),
        ("never ready", LATE, "time_limit", "not ready within 2.5 s", "loading"),
        (
            "dies under load",
            client("sh", "-c", f"{shlex.join(CLIENT[:3])} {{url}} 100 1; sleep 600"),
            "crashed",
            "ended with exit code 7 while the client ran",
            "no more memory",
        ),
        ("answers garbage", {}, "invalid", "no request succeeded", '"completed": 0'),
        ("fails sometimes", {}, "invalid", SHARE, ""),
        (
            "none",
            client("sh", "-c", "echo no route; exit 4"),
            "crashed",
            "the client ended with exit code 4",
            "no route",
        ),
        ("none", client("echo", "none"), "incomplete", "throughput_per_s", ""),
        ("none", client("echo", "rate 3 with 5 errors of 50", parsers=COUNTED), "invalid", SHARE, ""),
        (
            "none",
            {"server": {"command": ["sh", "-c", OUT_OF_MEMORY]}},
            "oom_device",
            "before it was ready",
            "OutOfMemory",
        ),
    ],
)
def test_a_fault_is_an_outcome_with_its_evidence(
    fault: str, changes: dict[str, Any], status: str, reason: str, evidence: str, measure: Measure
) -> None:
    found = measure(service(fault, **changes))
    assert found.failure is not None
    assert found.status == status
    assert re.search(reason, found.failure.reason)
    assert evidence in found.failure.evidence


def test_few_errors_are_allowed_where_the_file_says_so(measure: Measure) -> None:
    found = measure(service("fails sometimes", errors_at_most_pct=30))
    assert (found.status, found.metrics["errors"]) == ("ok", 2)


@pytest.mark.parametrize(
    ("fault", "server", "killed"),
    [
        ("ignores SIGTERM", {"stop_within_s": 0.3}, True),
        # What left its parent, session and environment is ended, too.
        ("becomes a daemon", {}, False),
        ("leaves a worker", {}, False),
        ("port taken once", {}, False),  # meanwhile: another one is taken
        ("none", {"ready": {"tcp": True}}, False),
        ("none", {"ready": {"log": r"^ready, pid \d+"}}, False),
        ("none", {"ready": {"http": "/health"}}, False),
    ],
)
def test_a_server_is_awaited_and_ended_and_one_that_had_to_be_killed_is_flagged(
    fault: str, server: dict[str, Any], killed: bool, measure: Measure
) -> None:
    found = measure(service(fault, server=server))
    assert found.status == "ok"
    assert any("did not end within 0.3 s" in flag and "killed" in flag for flag in found.flags) == killed
    assert any("SIGTERM" in flag for flag in found.flags) == killed


def test_a_fixed_port_that_is_taken_is_the_machines_failure(measure: Measure) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        with pytest.raises(LaunchError, match=rf"port {port} \(server.port\) is in use by another process"):
            measure(service(server={"port": port}))


def test_a_missing_program_is_the_machines_failure(measure: Measure) -> None:
    with pytest.raises(LaunchError, match="no-such-server could not be started"):
        measure(service(server={"command": ["/no-such-server"]}))


@pytest.mark.parametrize("code", [0, 1, 137])
@pytest.mark.parametrize("start", [1, 2])
def test_a_wrapper_that_starts_no_program_is_the_machines_failure(
    start: int, code: int, measure: Measure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wrapper of the server (1) or of the client (2) ends without having started its program."""
    conda = tmp_path / "bin" / "conda"
    conda.parent.mkdir()
    count = f'echo x >>{tmp_path}/starts; test "$(wc -l <{tmp_path}/starts)" = {start} && exit {code}'
    conda.write_text(f'#!/bin/sh\n{count}\nshift 4\nexec "$@"\n')
    conda.chmod(0o755)
    monkeypatch.setenv("PATH", str(conda.parent), prepend=os.pathsep)
    with pytest.raises(LaunchError, match=r"conda did not start the program and "):
        measure(service(software={"conda": "ml"}))


def test_a_failure_behind_a_wrapper_stays_the_services(
    measure: Measure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conda = tmp_path / "bin" / "conda"
    conda.parent.mkdir()
    conda.write_text('#!/bin/sh\nshift 4\nexec "$@"\n')
    conda.chmod(0o755)
    monkeypatch.setenv("PATH", str(conda.parent), prepend=os.pathsep)
    outcome = measure(service(software={"conda": "ml"}))
    assert outcome.status == "ok"
    outcome = measure(service(software={"conda": "ml"}, **client("sh", "-c", "exit 3")))
    assert outcome.status == "crashed"


def test_a_client_writes_or_prints_its_numbers(measure: Measure) -> None:
    printing = client("echo", "rate 12.5 at {url} with {size}")
    assert measure(service(**printing, options={"size": 3})).throughput_per_s == 12.5
    assert measure(service(**client("sh", "-c", "echo rate 7; echo rate 8 >{result}"))).throughput_per_s == 8
    written = "echo rate 7; for n in 1 2; do mkdir -p out/$n; echo rate $n >out/$n/profile.json; done"
    found = measure(service(**client("sh", "-c", written, result="out/*/profile.json")))
    assert found.throughput_per_s == 2


def test_the_file_of_a_client_is_kept_in_the_log(tmp_path: Path) -> None:
    workload = service(**client("x", result="out/*.json"))
    one = one_run(tmp_path / "run", one_cell(devices=1, workload="s"))
    assert workload.result_file(one) is None
    (one.directory / "out").mkdir()
    (one.directory / "out/a.json").touch()
    assert workload.result_file(one) == "out/*.json"


WAITING = "echo process $RANK {rank} of $WORLD_SIZE at {first_host}:{first_port}; "


@pytest.mark.parametrize(
    ("launch", "hosts", "devices", "first"), [("per_host", 2, 1, r"127.0.0.1:\d+"), ("per_rank", 1, 2, "first:1234")]
)
def test_a_server_of_several_processes(
    launch: str, hosts: int, devices: int, first: str, measure: Measure, tmp_path: Path
) -> None:
    python = f"{sys.executable} -S {SERVER} {{port}} none"
    first_waits = "until [ -e joined ]; do sleep 0.02; done"
    others = "touch joined; exec sleep 600"
    command = ["sh", "-c", f"{WAITING} if [ {{rank}} = 0 ]; then {first_waits}; exec {python}; else {others}; fi"]
    found = measure(service(server={"command": command, "launch": launch}), hosts, devices)
    assert (found.status, found.failure) == ("ok", None)
    text = (tmp_path / "log").read_text()
    for rank in (0, 1):
        assert re.search(rf"^process {rank} {rank} of 2 at {first}$", text, re.MULTILINE)


def test_a_process_of_the_server_that_ends_on_another_host_ends_the_run(measure: Measure) -> None:
    command = ["sh", "-c", "if [ {rank} = 1 ]; then echo lost link; exit 5; else sleep 600; fi"]
    found = measure(service(server={"command": command, "launch": "per_host"}), 2)
    assert found.status == "crashed"
    assert found.failure is not None
    assert found.failure.reason == "the server ended with exit code 5 before it was ready"
    assert "lost link" in found.failure.evidence


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"client": None}, "client"),
        ({"load": {"rate_per_s": 1}}, "load"),
        ({"objective": {"ttft_ms": {"p99": 500}}}, "objective"),
        (
            {"client": {"command": ["x"], "parsers": [RATE], "result": "/tmp/x"}},
            "is not inside the run's directory",
        ),
        ({"client": {"command": ["x"]}}, "give either 'parser' or 'parsers'"),
        ({"server": {"ready": {"tcp": True, "log": "x"}}}, "give exactly one of 'http', 'tcp: true' and 'log'"),
        ({"server": {"ready": {"log": "("}}}, "is not a valid regular expression"),
        ({"server": {"ready": {"http": "health"}}}, "is not a path"),
        ({"options": {"port": 1}}, "the option 'port' has a reserved name"),
    ],
)
def test_a_file_that_contradicts_itself_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=re.escape(words)):
        service(**changes)


def campaign() -> dict[str, Any]:
    """Changes that add a service to the small campaign."""
    document = {
        "name": "s",
        "kind": "service",
        "precisions": ["fp32", "bf16"],
        "options": {"size": 8, "rate_per_s": 4},
        "server": {"command": ["python3", "{port}"]},
        "client": {"command": ["python3", "{url}", "--rate", "{rate_per_s}"], "parser": "vllm"},
    }
    return {"workloads.s": document, "campaign.axes.workload": ["steps", "s"]}


def test_a_cell_of_a_service_has_no_batch_and_rates_are_an_axis(tmp_path: Path) -> None:
    changes = {**campaign(), "campaign.axes.batch": [4, 8], "campaign.axes.workload": "s"}
    cells = expand_matrix(load(tmp_path, {**changes, "campaign.axes.options": {"rate_per_s": [1, 2, 4]}})).cells
    found = sorted((cell.configuration.name, cell.precision, cell.options["rate_per_s"]) for cell in cells)
    assert len(found) == len(set(found)) == 3 * len({each[:2] for each in found})
    assert {cell.batch for cell in cells} == {1}


def test_what_changes_no_measurement_changes_no_cell(tmp_path: Path) -> None:
    before = ids(tmp_path, campaign())
    patience = {"workloads.s.server.ready_within_s": 5, "workloads.s.server.stop_within_s": 5}
    assert ids(tmp_path, {**campaign(), **patience}) == before
    assert ids(tmp_path, {**campaign(), "workloads.s.client.command": ["python3", "{url}"]}) != before


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"workloads.s.server.command": ["x", "{prot}"]},
            "workloads/s.yaml:.*'{prot}' is not known; did you mean 'port'",
        ),
        ({"workloads.s.server.command": ["bin/x"]}, "'bin/x' is a relative path"),
        ({"workloads.s.client.command": ["bin/x", "{url}"]}, "client.command.*'bin/x' is a relative path"),
        ({"workloads.s.client.command": ["x", "{ulr}"]}, "'{ulr}' is not known; did you mean 'url'"),
    ],
)
def test_the_campaign_names_what_does_not_fit(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=words):
        load(tmp_path, {**campaign(), **changes})


def test_a_given_rate_leads_with_a_latency_and_anything_else_with_throughput(tmp_path: Path) -> None:
    alone = {**campaign(), "campaign.axes.workload": "s"}
    assert load(tmp_path, alone).metric == Metric("ttft_ms_p50", "ms", "lower")
    assert load(tmp_path, {**alone, "campaign.metric": {"name": "tpot_ms_p99"}}).metric.unit == "ms"
    closed = {"workloads.s.options": {"concurrency": 4}, "workloads.s.client.command": ["python3", "{concurrency}"]}
    assert load(tmp_path, {**alone, **closed}).metric == Metric("throughput_per_s", "requests/s", "higher")
    assert load(tmp_path, campaign()).metric == THROUGHPUT


STORED_SERVER = {"command": ["serve", "{port}"], "ready": {"tcp": True}, "ready_within_s": 600.0, "launch": "once"}
NO_LIMITS: dict[str, Any] = {"e2e_ms": {}, "tpot_ms": {}, "ttft_ms": {}}
LIMITS = {**NO_LIMITS, "ttft_ms": {"p50": 500.0}}
COUNTED_SERVER = {"command": ["serve", "{port}"], "ready": {"tcp": True}}
NO_CLIENT = {"client": None, "model": None, "objective": LIMITS}
LOAD = {
    **{
        "arrivals": "poisson",
        "body": {},
        "concurrency": 0,
        "duration_s": 0.0,
        "endpoint": "completions",
        "output_tokens": 4,
    },
    **{
        "prompt_tokens": 8,
        "prompts": None,
        "rate_per_s": 0.0,
        "requests": 20,
        "seed": 1,
        "timeout_s": 60.0,
        "warmup_s": 0.0,
    },
}
WITH_CLIENT = {"client": {"command": ["bench"], "parser": "vllm"}, "load": None, "model": None, "objective": NO_LIMITS}


@pytest.mark.parametrize(
    ("stored", "counted"),
    [
        ({**NO_CLIENT, "load": LOAD}, {"load": {"output_tokens": 4, "prompt_tokens": 8, "requests": 20}}),
        (WITH_CLIENT, {"client": {"command": ["bench"], "parser": "vllm"}}),
    ],
)
def test_services_of_earlier_results_are_read_and_their_cells_keep_their_identity(
    stored: dict[str, Any], counted: dict[str, Any]
) -> None:
    common = {"name": "s", "kind": "service", "precisions": ["fp32"], "options": {"rate_per_s": 20}}
    document = {**common, "server": STORED_SERVER, **stored}
    found = validate(YamlFile(Path("s"), document, {}), Workload)  # type: ignore[type-abstract]
    assert found.identity_document() == {"name": "s", "kind": "service", "server": COUNTED_SERVER, **counted}
    again = validate(YamlFile(Path("s"), found.model_dump(mode="json"), {}), Workload)  # type: ignore[type-abstract]
    assert again == found
    assert (found.reported_metrics or [""])[0] == "ttft_ms_p50"


PAGE = """\
# HELP vllm:num_preemptions_total Preemptions.
# TYPE vllm:num_preemptions_total counter
vllm:num_preemptions_total{engine="0"} %d
vllm:num_preemptions_total{engine="1"} 2
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0"} 0.25
vllm:kv_cache_usage_perc{engine="1"} 0.75
# TYPE vllm:queue_seconds histogram
vllm:queue_seconds_bucket{le="+Inf"} %d
vllm:queue_seconds_count %d
vllm:queue_seconds_sum 1.5
"""


def test_counters_are_differences_and_gauges_are_the_last_value() -> None:
    read = {
        "preempted": "vllm:num_preemptions_total",
        "cache": "vllm:kv_cache_usage_perc",
        "queued": "vllm:queue_seconds_count",
    }
    found, missing = compute_server_metrics(ServerMetrics(read=read), PAGE % (3, 4, 4), PAGE % (10, 9, 9))
    assert found == {"server_preempted": 7, "server_cache": 0.75, "server_queued": 5}
    assert missing == []
    assert compute_server_metrics(ServerMetrics(read={"a": "absent"}), "", PAGE % (1, 1, 1)) == (
        {},
        ["the metrics page /metrics of the server has no series absent"],
    )
    with pytest.raises(ValueError, match="html"):
        compute_server_metrics(ServerMetrics(read=read), "", "<html>\n")
