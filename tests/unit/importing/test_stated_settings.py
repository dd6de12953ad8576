"""What a log states of how its program was started is held against the labels of the import map."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from campaign.cli.main import main
from campaign.importing.stated_settings import SETTINGS
from campaign.spec.record import RecordStore
from campaign.workloads.log_reader import Log
from campaign.workloads.parsers import PARSERS, RunContext, read_tests
from tests.unit.importing.logs_of_old import LOGS, put, write_map


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def import_logs(workload: dict[str, Any], values: dict[str, Any], path: str = "*.log") -> str:
    """Import all logs, and return what was said of those that were not read; empty if all were."""
    shapes = [
        {"name": "1x1"},
        {"name": "1x4", "devices_per_host": 4},
        {"name": "2x2", "hosts": 2, "devices_per_host": 2},
    ]
    values = {"configuration": "1x1", "workload": "x", "batch": 1, "precision": "fp32", **values}
    write_map(
        Path("map.yaml"), configurations=shapes, workloads={"x": workload}, logs=[{"path": path, "values": values}]
    )
    result = CliRunner().invoke(main, ["import", "logs", "--map", "map.yaml", "--format", "json"])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    if result.exit_code:
        return " ".join(result.output.split())
    return json.dumps(json.loads(result.output)["unread"]) if json.loads(result.output)["logs"]["unread"] else ""


def serving(rate: float, **more: Any) -> str:
    counts = {"completed": 100, "failed": 0, "duration": 100 / rate, "request_throughput": rate, "request_rate": rate}
    return json.dumps(json.loads((LOGS / "vllm/file.log").read_text()) | counts | {"output_throughput": None} | more)


@pytest.mark.parametrize("parser", ["vllm", "sglang"])
def test_an_offered_rate_that_the_label_contradicts_is_not_imported(parser: str) -> None:
    put(Path("logs"), "rate30.log", serving(10))
    put(Path("logs"), "rate20.log", serving(20))
    found = import_logs({"parser": parser, "options": {"rate_per_s": 1}}, {}, "rate{rate_per_s}.log")
    assert "rate_per_s is 30 according to its label, but the log states a request rate of 10" in found
    assert "rate20.log" not in found
    assert [record.cell.options["rate_per_s"] for record in RecordStore(Path("results/old"))] == [20]


def test_a_default_is_held_against_the_log_too() -> None:
    put(Path("logs"), "a.log", serving(10))
    found = import_logs({"parser": "vllm", "options": {"request_rate": 30}}, {})
    assert (
        "request_rate is 30 according to the default of its workload's options, but the log states a request rate of 10"
        in found
    )


def test_runs_of_one_cell_with_several_offered_rates_are_refused_with_their_files() -> None:
    for rate in (10, 20, 30):
        for number in (1, 2, 3):
            put(Path("logs"), f"{rate}-{number}.log", serving(rate, date=f"{number}"))
    found = import_logs({"parser": "vllm"}, {})
    assert (
        "logs of one cell state different values of the request rate (10: 10-1.log, 10-2.log, 10-3.log; "
        "20: 20-1.log, 20-2.log, 20-3.log; 30: 30-1.log, 30-2.log, 30-3.log)"
    ) in found
    assert "such as 'rate_per_s'" in found
    assert not list(Path("results").glob("**/records/**/*.json"))


def test_a_cell_beside_one_with_several_rates_is_imported() -> None:
    for name, rate in (("a-1", 10), ("a-2", 20), ("b-1", 30), ("b-2", 30)):
        put(Path("logs"), f"{name}.log", serving(rate, date=name))
    found = import_logs({"parser": "vllm", "options": {"kind": "a"}}, {}, "{kind}-*.log")
    assert "10: a-1.log; 20: a-2.log" in found
    assert {record.cell.options["kind"] for record in RecordStore(Path("results/old"))} == {"b"}


def test_all_requests_at_once_may_be_labelled_as_no_rate_or_an_infinite_one() -> None:
    put(Path("logs"), "a.log", serving(10, request_rate="inf"))
    assert import_logs({"parser": "vllm", "options": {"rate_per_s": 0}}, {}) == ""
    shutil.rmtree("results")
    assert import_logs({"parser": "vllm", "options": {"rate_per_s": "inf"}}, {}) == ""
    shutil.rmtree("results")
    assert "a request rate of inf" in import_logs({"parser": "vllm", "options": {"rate_per_s": 10}}, {})


FIO = {
    "bs": "1m", "iodepth": "32", "numjobs": "2", "rw": "randread", "ioengine": "libaio", "direct": "1",
}  # fmt: skip


def fio_document(**options: str) -> str:
    document = json.loads((LOGS / "fio/release-2.log").read_text().partition("{")[2].join(("{", "")))
    for job in document["jobs"]:
        job["job options"] = FIO | options
    return json.dumps(document)


MEGATRON = """\
  micro_batch_size ................................ 2
  params_dtype .................................... torch.bfloat16
  num_attention_heads ............................. 16
  seq_length ...................................... 4096
  tensor_model_parallel_size ...................... 4
  world_size ...................................... 4
 iteration 1/ 2 | elapsed time per iteration (ms): 100.0 | global batch size: 8 | lm loss: 2.0E+00 |
 iteration 2/ 2 | elapsed time per iteration (ms): 100.0 | global batch size: 8 | lm loss: 2.0E+00 |
"""


def corpus(name: str) -> str:
    return (LOGS / f"{name}.log").read_text()


BERT = corpus("nvidia_bert/full-epochs-max-steps-too-large").replace("do_train=True", "do_train=True, fp16=True")
HOROVOD = corpus("horovod_synthetic/pytorch-4-gpus")


@pytest.mark.parametrize(
    ("parser", "text", "label", "wrong", "right", "values"),
    [
        ("aiperf", corpus("aiperf/poisson"), "rate_per_s", 4, 2, {}),
        ("aiperf", corpus("aiperf/genai-perf"), "rate_per_s", 4, 3, {}),
        ("vllm", serving(1 / 3), "rate_per_s", 0.34, 0.33, {}),
        ("vllm", serving(10, max_concurrency=16), "concurrency", 32, 16, {}),
        ("vllm", serving(10, model_id="org/Llama-8B"), "model", "llama-70b", "llama-8b", {}),
        ("sglang", corpus("sglang/concurrency-64"), "max_concurrency", 32, 64, {}),
        ("vllm", "Traffic request rate: 5.0\n" + corpus("vllm/2024-layout"), "rate_per_s", 4, 5, {}),
        ("mlperf_inference", corpus("mlperf_inference/server-tokens"), "qps", 100, 104, {}),
        ("mlperf_inference", corpus("mlperf_inference/offline"), "scenario", "server", "offline", {}),
        ("trtllm_bench", corpus("trtllm_bench/release-0.16"), "tp_size", 8, 4, {"configuration": "1x4", "precision": "bf16"}),
        ("trtllm_bench", corpus("trtllm_bench/release-0.16"), "precision", "fp16", "bf16", {"configuration": "1x4"}),
        ("nccl_tests", corpus("nccl_tests/hypercube-4-ranks"), "precision", "bf16", "fp32", {"configuration": "1x4"}),
        ("perftest", corpus("perftest/write-bw"), "num_qps", 4, 1, {}),
        ("fio", fio_document(), "bs", "4k", "1m", {}),
        ("fio", fio_document(), "block_kib", 4, 1024, {}),
        ("fio", fio_document(), "iodepth", 1, 32, {}),
        ("fio", fio_document(), "rw", "read", "randread", {}),
        ("ior", corpus("ior/posix-8-tasks"), "transfer_size", "1m", "256k", {}),
        ("ior", corpus("ior/posix-8-tasks"), "configuration", "2x2", "1x4", {}),
        ("hpl", corpus("hpl/netlib-passed"), "nb", 64, 384, {}),
        ("graph500", corpus("graph500/bfs-and-sssp"), "scale", 24, 20, {}),
        ("stream", corpus("stream/eighty-million-8-threads"), "threads", 3, 8, {}),
        ("lammps", corpus("lammps/lj-kokkos"), "atoms", 7, 500, {}),
        ("megatron", MEGATRON, "precision", "fp16", "bf16", {"configuration": "1x4", "batch": 2}),
        ("megatron", MEGATRON, "seq_len", 2048, 4096, {"configuration": "1x4", "batch": 2, "precision": "bf16"}),
        ("megatron", MEGATRON, "configuration", "1x1", "1x4", {"batch": 2, "precision": "bf16"}),
        ("megatron", MEGATRON, "heads", 32, 16, {"configuration": "1x4", "batch": 2, "precision": "bf16"}),
        ("nvidia_bert", BERT, "precision", "fp32", "fp16", {"configuration": "1x4", "batch": 8}),
        ("nvidia_bert", BERT, "seq_len", 128, 384, {"configuration": "1x4", "batch": 8, "precision": "fp16"}),
        ("gromacs", "Using 8 OpenMP threads \n" + corpus("gromacs/md-log-24-ranks"), "threads", 1, 8, {}),
        ("yolov5", corpus("yolov5/iterations-per-second"), "imgsz", 320, 640, {"batch": 16}),
        ("tf_cnn_benchmarks", corpus("tf_cnn_benchmarks/one-gpu"), "model", "vgg16", "resnet50", {"batch": 128}),
        ("horovod_synthetic", HOROVOD, "model", "vgg16", "resnet50", {"batch": 32, "configuration": "1x4"}),
    ],
)  # fmt: skip
def test_a_label_that_the_log_contradicts_is_not_imported(
    parser: str, text: str, label: str, wrong: Any, right: Any, values: dict[str, Any]
) -> None:
    axes = ("configuration", "precision")
    put(Path("logs"), "a.log", text)
    options = {} if label in axes else {"options": {label: right}}
    found = import_logs({"parser": parser, **options}, {**values, label: wrong})
    assert f"{label} is {wrong} according to its label, but the log states a" in found or label == "configuration"
    assert "but the log states a" in found
    assert import_logs({"parser": parser, **options}, {**values, label: right}) == ""


def test_tests_of_several_number_formats_are_told_apart_by_an_option() -> None:
    put(Path("logs"), "a.log", corpus("nccl_tests/types-and-operations"))
    workload = {"parser": "nccl_tests", "options": {"kind": ""}}
    values = {"configuration": "1x4", "workload": "x", "batch": 1, "precision": "fp32"}
    for tests, refused in (("kind", False), ("repetitions", True)):
        write_map(
            Path("map.yaml"), workloads={"x": workload}, logs=[{"path": "*.log", "values": values, "tests": tests}]
        )
        result = CliRunner().invoke(main, ["import", "logs", "--map", "map.yaml"])
        assert (
            "different values of the number format (int8: a.log (test 1), a.log (test 2)"
            in " ".join(result.output.split())
        ) == refused, result.output
        shutil.rmtree("results", ignore_errors=True)


def test_a_batch_that_the_settings_of_bert_contradict_is_invalid() -> None:
    log = Log(LOGS / "nvidia_bert/full-epochs-max-steps-too-large.log")
    (reading,) = read_tests("nvidia_bert", log, RunContext(batch=4, ranks=8))
    assert (reading.status, reading.problem) == ("invalid", "the batch per device is 8 in the log, but 4 in the run")


def test_every_setting_that_readers_state_is_known() -> None:
    stated = {
        name
        for parser in PARSERS
        for path in (LOGS / parser).glob("*.log")
        for test in read_tests(parser, Log(path), RunContext())
        for name in test.settings
    }
    assert stated <= SETTINGS.keys()
    assert all(name in setting.labels for name, setting in SETTINGS.items())
    assert len(stated) > 20
