"""Values that are no numbers are named, and rows of several cycles, sides or tests do not overwrite each other."""

from __future__ import annotations

import json
from typing import Any

import pytest

from campaign.workloads.log_reader import Log
from campaign.workloads.parsers import LogReading, RunContext, read_log, read_tests
from tests.unit.workloads.parsed import flagged, read, text_of

RULE = "-" * 87
HEAD = " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]"
BANDWIDTH = f"""\
                    RDMA_Write BW Test
{RULE}
{HEAD}
 65536      40000            0.00               8000.00              0.128000
 65536      60000            0.00               12000.00             0.192000
 65536      50000            0.00               10000.00             0.160000
"""
LATENCY = f"""\
                    Send Latency Test
{RULE}
 #bytes        #iterations       t_avg[usec]    tps average
 2             1577611            1.90           262864.28
{RULE}
"""
IO500 = """\
IOR-4.1.0+dev: MPI Coordinated Test of Parallel I/O
Command line        : ./ior -w -t 2m -b 9920000m -F -e -D 300
Options:
ordering inter file : no tasks offsets
tasks               : 160
clients per node    : 16
repetitions         : 1
Results:
access    bw(MiB/s)  IOPS       Latency(s)  block(KiB) xfer(KiB)  open(s)    wr/rd(s)   close(s)   total(s)   iter
------    ---------  ----       ----------  ---------- ---------  --------   --------   --------   --------   ----
write     40960      20480      0.007801    10158080000 2048.00   0.045183   301.20     0.012001   301.25     0
Max Write: 40960.12 MiB/sec (42949.80 MB/sec)
"""


def take(name: str, text: str, **scope: Any) -> LogReading:
    return read_log(name, Log.from_text(text), RunContext(**scope))


def test_reports_of_a_perftest_that_runs_without_end_are_averaged() -> None:
    found = take("perftest", BANDWIDTH)
    assert found.metrics["bandwidth_gb_per_s"] == pytest.approx(10_000 * 2**20 / 1e9)
    assert flagged(found, "the mean of 3 reports per size counts, as with --run_infinitely")
    assert not flagged(found, "client and server")


def test_two_sides_of_a_perftest_are_still_two_sides() -> None:
    found = read("perftest/client-and-server")
    assert flagged(found, "client and server both printed results; the slower result counts")
    assert not flagged(found, "run_infinitely")
    assert dict(found.curves["bandwidth"].points)[2] == pytest.approx(5.29 * 2**20 / 1e9)
    assert dict(found.curves["bandwidth_peak"].points)[2] == pytest.approx(5.31 * 2**20 / 1e9)


def test_a_latency_test_of_a_duration_gives_its_mean() -> None:
    found = take("perftest", LATENCY)
    assert (found.status, found.metrics) == ("ok", {"latency_mean_us": 1.9})
    assert take("perftest", LATENCY.replace("262864.28", "162864.28")).status == "invalid"
    older = LATENCY.replace("    tps average", "").replace("           262864.28", "")
    assert take("perftest", older).metrics == {"latency_mean_us": 1.9}


def test_ior_inside_io500_is_read_from_its_rows() -> None:
    found = take("ior", IO500)
    assert found.status == "ok"
    assert found.metrics["write_bandwidth_gb_per_s"] == pytest.approx(40960 * 2**20 / 1e9)
    assert flagged(found, "no end mark")
    assert not take("ior", f"{IO500}Finished            : now\n").flags
    assert take("ior", IO500.replace("40960.12", "50960.12")).status == "invalid"
    # As many rows of each operation as repetitions are all of them.
    rows = IO500.rpartition("Max")[0]
    assert take("ior", rows).metrics == found.metrics
    for less in (("repetitions         : 1", "repetitions         : 2"), (" -w ", " -w -r "), (" -w ", " -f script ")):
        assert take("ior", rows.replace(*less)).status == "incomplete"


def test_a_summary_row_of_ior_without_numbers_is_named() -> None:
    summary = "Operation   Max(MiB)   Min(MiB)  Mean(MiB)     StdDev   Max(OPs)   Min(OPs)  Mean(OPs)     StdDev    Mean(s) Test#"
    rows = "read  20.00 20.00 20.00 0.00 5.00 5.00 5.00 0.00 1.00 0\nwrite  - - - - - - - - - 0\nFinished : now\n"
    assert flagged(take("ior", f"{summary}\n{rows}"), "the summary of write")


def test_an_operation_twice_in_a_document_of_ior_is_two_tests() -> None:
    one = {"operation": "write", "TestID": 0, "bwMaxMIB": 10.0, "bwMeanMIB": 10.0, "OPsMean": 5.0}
    document = json.dumps({"summary": [one, {**one, "bwMaxMIB": 20.0, "bwMeanMIB": 20.0}]})
    assert len(read_tests("ior", Log.from_text(document), RunContext())) == 2


def test_a_round_of_nvbandwidth_does_not_overwrite_the_one_before() -> None:
    def case(value: str) -> dict[str, Any]:
        return {"name": "host_to_device_memcpy_ce", "status": "Passed", "bandwidth_matrix": [[value]], "sum": value}

    document = json.dumps({"nvbandwidth": {"testcases": [case("50.0"), case("40.0")]}})
    assert len(read_tests("nvbandwidth", Log.from_text(document), RunContext())) == 2


def test_totals_of_two_benchmarks_are_two_tests() -> None:
    totals = "Img/sec per GPU: {0:.1f} +-1.0\nTotal img/sec on 1 GPU(s): {0:.1f} +-1.0\n"
    text = totals.format(100) + totals.format(200)
    assert len(read_tests("horovod_synthetic", Log.from_text(text), RunContext())) == 2


def test_rows_of_two_streams_of_which_one_ended_are_not_mixed() -> None:
    text = text_of("stream/ten-million")
    rows = [line for line in text.splitlines() if line.startswith(("Copy", "Scale", "Add", "Triad"))]
    both = text.replace(rows[0], "\n".join([*rows, rows[0]]), 1)
    assert "several processes" in take("stream", both).problem


def test_two_barriers_below_one_heading_are_two_processes() -> None:
    text = "# OSU MPI Barrier Latency Test v7.1\n# Avg Latency(us)\n1.50\n"
    assert take("osu", text).metrics == {"barrier_latency_us": 1.5}
    assert take("osu", f"{text}9.50\n").status == "invalid"


def test_an_epoch_with_other_losses_is_of_another_training() -> None:
    bar = (
        "      0/0      2.0G     {0}    0.02    0.03    12    640: 100%|##########| 100/100 [00:10<00:00, 10.00it/s]\n"
    )
    done = "1 epochs completed in 0.005 hours.\n"
    once = bar.format("0.011")
    assert len(read_tests("yolov5", Log.from_text(once + once + done), RunContext())) == 1
    assert len(read_tests("yolov5", Log.from_text(once + bar.format("0.012") + done), RunContext())) == 2


def test_the_times_of_a_table_of_yolo11_give_the_time_of_an_epoch() -> None:
    text = "epoch,time,train/box_loss,metrics/mAP50(B)\n1,15.5,2.1,0.1\n2,25.7,1.9,0.25\n3,35.5,1.9,0.25\n"
    found = take("yolov5", text)
    assert found.metrics["epoch_and_validation_time_s"] == pytest.approx(10.0)
    assert flagged(found, "includes the validation", "no number of images")
    resumed = take("yolov5", text.replace("35.5", "5.5"))
    assert "epoch_and_validation_time_s" not in resumed.metrics
    assert flagged(resumed, "do not increase")


DLIO = '{"num_accelerators": 1, "metric": {"train_throughput_mean_samples_per_second": 8.0, "train_io_mean_MB_per_second": "n/a", '
VLLM = {"completed": 10, "duration": 5.0, "request_throughput": 2.0, "mean_ttft_ms": 3.0, "p99_ttft_ms": "1,010"}
AIPERF = {
    "request_throughput": {"unit": "requests/sec", "avg": 2.0},
    "request_latency": {"unit": "ms", "avg": 5.0, "p99": "N/A"},
}
EVENT = ':::MLLOG {{"key": "tracked_stats", "time_ms": {}, "value": {{"throughput": {}}}}}\n'
REPORT = {
    "performance": {"request_throughput_req_s": 2.0, "system_output_throughput_tok_s": "-"},
    "request_info": {"num_requests": 10},
}


@pytest.mark.parametrize(
    ("name", "text", "named"),
    [
        ("osu", "# OSU MPI Latency Test v7\n# Size   Latency (us)\n1   1.50\n2   1,010.61\n4   1.70\n", "1,010.61"),
        ("osu", "# OSU MPI Latency Test v7\n# Size   Latency (us)\n1   1.50\n2   N/A\n4   1.70\n", "N/A"),
        ("yolov5", "epoch,time,train/box_loss,m\n1,1.5,2.1,0.1\n2,2.5,,0.25\n3,3.5,2.0,0.2\n", "2,2.5,,0.25"),
        ("dlio", f'{DLIO}"train_throughput_samples_per_second": [8.0, null]}}}}', "train_io_mean_MB_per_second: 'n/a'"),
        ("dlio", f'{DLIO}"train_throughput_samples_per_second": [8.0, null]}}}}', "the rate of an epoch"),
        ("vllm", json.dumps(VLLM), "p99_ttft_ms: '1,010'"),
        ("sglang", json.dumps(VLLM), "p99_ttft_ms: '1,010'"),
        ("aiperf", json.dumps(AIPERF), "request_latency.p99: 'N/A'"),
        ("trtllm_bench", json.dumps(REPORT), "output_tokens_per_s: '-'"),
        ("mlperf", EVENT.format(1, 5.0) + EVENT.format(2, '"1,010"'), "throughput: '1,010'"),
        (
            "mlperf_inference",
            "MLPerf Results Summary\nScenario : Offline\nSamples per second: 5\nTokens per second: 1,010\n",
            "tokens per second: '1,010'",
        ),
        (
            "hpcg",
            text_of("hpcg/one-process").replace("GB/s Summary::Raw Total B/W=", "GB/s Summary::Raw Total B/W=1,0"),
            "Raw Total B/W",
        ),
        ("gpu_copy", "cpu_to_gpu0_by_sm_under_numa0_uni 24.1\ncpu_to_gpu1_by_sm_under_numa0_uni N/A\n", "gpu1_by_sm"),
        ("fio", '{"fio version": "fio-3.1", "jobs": [{"jobname": "a", "error": 0}, "b"]}', "an entry of jobs: 'b'"),
        ("stream", text_of("stream/ten-million").replace("Triad:  ", "Triad:  1,"), "Triad"),
        (
            "lammps",
            "LAMMPS (2 Aug 2023)\nLoop time of 10.0 on 4 procs for 100 steps with 4000 atoms\n"
            "Performance: 1,010.5 ns/day, 2.3 hours/ns, 10.0 timesteps/s\nTotal wall time: 0:00:10\n",
            "Performance:: '1,010.5 ns/day",
        ),
        (
            "graph500",
            "SCALE: 20\nconstruction_time: 1,5\nbfs  harmonic_mean_TEPS: !  1e9\n",
            "construction_time: '1,5'",
        ),
        ("gromacs", "(ns/day) (hour/ns)\nPerformance:  12.0  2.0\nPerformance:  1,012.0  2.0\n", "1,012.0"),
        (
            "horovod_synthetic",
            "Iter #0: 100.0 img/sec per GPU\nIter #1: 1,010.0 img/sec per GPU\n",
            "Iter #1: '1,010.0",
        ),
        (
            "megatron",
            "".join(
                f" iteration {number}/ 3 | elapsed time per iteration (ms): {time_ms} | \n"
                for number, time_ms in ((1, "5.0"), (2, "1,010.0"), (3, "6.0"))
            ),
            "the time of iteration 2",
        ),
    ],
)
def test_a_value_that_is_no_number_is_named(name: str, text: str, named: str) -> None:
    assert flagged(take(name, text), named), take(name, text)


def test_a_row_of_a_matrix_of_mlc_that_cannot_be_read_tears_it() -> None:
    text = (
        "Intel(R) Memory Latency Checker - v3.11\nMeasuring idle latencies for random access (in ns)...\n\t\tNuma node\n"
        "Numa node\t     0\t     1\t\n       0\t  81.0\t 138.9\t\n       1\t 1,38.9\t  81.7\t\n"
    )
    assert take("mlc", text.replace("1,38", "138")).status == "ok"
    assert take("mlc", text).status == "incomplete"
