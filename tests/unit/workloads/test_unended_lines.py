"""A last line without a line feed may be cut off: it counts where something proves that it is whole, and is named otherwise."""

from __future__ import annotations

from typing import Any

import pytest

from campaign.workloads.log_reader import Log
from campaign.workloads.parsers import LogReading, RunContext, read_log
from campaign.workloads.parsers.expressions import Parser, collect_hints, read_expressions
from tests.unit.workloads.parsed import flagged, text_of

GPU_COPY = "cpu_to_gpu0_by_sm_under_numa0_uni 24.1\ngpu0_to_cpu_by_sm_under_numa0_uni 26.2"
HOROVOD = "Batch size: 32\nNumber of GPUs: 2\nImg/sec per GPU: 100.0 +-1.0\nTotal img/sec on 2 GPU(s): 200.0 +-2.0"
OSU = "# OSU MPI Latency Test v7.1\n# Size          Latency (us)\n1                       1.50\n2                       1.61"
PERFTEST = """\
                    RDMA_Write BW Test
 #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]
 65536      5000             103.71             90.04              0.001441
 8388608    20000            24056.74            24056.72           0.003007"""
RESULTS = "epoch,time,train/box_loss,metrics/mAP50(B)\n1,10.5,2.1,0.1\n2,20.7,1.9,0.25"
SUMMARY = '{"num_accelerators": 2, "metric": {"train_throughput_mean_samples_per_second": 8.5}}'


def own(text: str, *, ended: bool = False, **parser: Any) -> LogReading:
    return read_expressions(
        [Parser(metric="rate_per_s", **parser)], Log.from_text(text), RunContext(ended_normally=ended)
    )


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("stream", text_of("stream/ten-million").rstrip("\n")),  # an end mark, of which no number is read
        ("nccl_tests", text_of("nccl_tests/all-reduce-8-ranks").split(" OK")[0] + " OK"),
        ("dlio", SUMMARY),  # a document that is closed
        ("horovod_synthetic", HOROVOD),  # as many decimals as the program prints
        ("osu", OSU),
    ],
)
def test_a_last_line_that_is_proven_whole_counts(name: str, text: str) -> None:
    whole, unended = (read_log(name, Log.from_text(each), RunContext()) for each in (f"{text}\n", text))
    assert unended == whole
    assert whole.status == "ok"


@pytest.mark.parametrize(
    ("name", "text"), [("gpu_copy", GPU_COPY), ("yolov5", RESULTS), ("osu", OSU[:-1]), ("perftest", PERFTEST)]
)
def test_a_last_line_that_may_be_cut_off_is_left_out_and_named(name: str, text: str) -> None:
    rows = text.rpartition("\n")[0]
    found = read_log(name, Log.from_text(text), RunContext())
    assert flagged(found, "the last line has no line feed") or "the last line has no line feed" in found.problem
    assert found.metrics == read_log(name, Log.from_text(f"{rows}\n"), RunContext()).metrics
    # The exit code of its program says that the log is whole.
    ended = read_log(name, Log.from_text(text), RunContext(ended_normally=True))
    assert ended == read_log(name, Log.from_text(f"{text}\n"), RunContext())
    assert (ended.metrics, ended.curves) != (found.metrics, found.curves)


def test_a_document_that_is_cut_off_is_no_result_with_the_one_before() -> None:
    found = read_log("dlio", Log.from_text(SUMMARY[:-20]), RunContext())
    assert found.status == "incomplete"
    assert "no line feed" in found.problem


def test_own_parsers_leave_out_a_number_that_may_be_cut_off() -> None:
    text = "rate: 990\nrate: 102"  # of 1020
    found = own(text, regex=r"rate: (\d+)")
    assert found.metrics == {"rate_per_s": 990.0}
    assert flagged(found, "the last line has no line feed and is left out because it may be cut off: 'rate: 102'")
    assert own(text, regex=r"rate: (\d+)", ended=True).metrics == {"rate_per_s": 102.0}
    alone = own("rate: 102", regex=r"rate: (\d+)")
    assert alone.status == "incomplete"
    assert "add a line feed if the log is complete" in alone.problem


@pytest.mark.parametrize(
    ("text", "parser"),
    [
        ("rate: 990 images/s\nrate: 1020 images/s", {"regex": r"rate: (\d+)"}),  # text behind the number
        ('{"rate": 990}\n{"rate": 1020}', {"json_key": "rate"}),
        ('{\n"rate": 1020\n}', {"json_key": "rate"}),
    ],
)
def test_own_parsers_take_a_last_number_that_is_whole(text: str, parser: dict[str, str]) -> None:
    found = own(text, **parser)
    assert found.metrics == {"rate_per_s": 1020.0}
    assert not flagged(found, "line feed")


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le"])
def test_a_log_in_utf_16_says_what_to_do(encoding: str) -> None:
    log = Log(text_of("stream/ten-million").encode(encoding))
    for found in (
        read_log("stream", log, RunContext()),
        read_expressions([Parser(metric="x_s", regex=r"(\d+)")], log, RunContext()),
    ):
        assert (found.status, "iconv -f UTF-16" in found.problem) == ("incomplete", True)
    assert collect_hints(log, "stream", ()) == [found.problem]


def test_times_of_kubectl_before_lines_are_read_over_or_named() -> None:
    stamped = "".join(f"2026-05-01T12:00:00.123456789Z {line}\n" for line in OSU.splitlines())
    assert read_log("osu", Log.from_text(stamped), RunContext()) == read_log(
        "osu", Log.from_text(f"{OSU}\n"), RunContext()
    )
    document = "".join(f"2026-05-01T12:00:00.1Z {line}\n" for line in SUMMARY.replace(", ", ",\n").splitlines())
    assert read_log("dlio", Log.from_text(document), RunContext()).throughput_per_s == 8.5
    anchored = [Parser(metric="latency_us", regex=r"^2 +(\S+)")]
    assert any("kubectl logs --timestamps" in hint for hint in collect_hints(Log.from_text(stamped), None, anchored))
