"""What the numbers of foreign programs mean, and where they mislead: saved logs with changes, and what is read from them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from campaign.workloads.log_reader import Log
from campaign.workloads.parsers import PARSERS, LogReading, RunContext, load_format, read_log
from tests.unit.workloads.parsed import LOGS, flagged, read, text_of

MIB = 2**20 / 1e9
Change = tuple[str, str]


@dataclass(frozen=True)
class Case:
    """A saved log with changes, as read with a scope: status, rate, metrics, words of flags, the words of its problem."""

    name: str
    changes: tuple[Change, ...]
    status: str
    scope: dict[str, Any] = field(default_factory=dict)
    rate: float | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    flags: tuple[str, ...] | None = None
    problem: str = ""


CASES: list[Case] = []


def case(
    name: str,
    *changes: Change,
    status: str = "ok",
    on: dict[str, Any] | None = None,
    rate: float | None = None,
    flags: tuple[str, ...] | None = None,
    problem: str = "",
    **metrics: float,
) -> None:
    """Add a case. on: the scope; flags: () for a reading without any."""
    CASES.append(Case(name, changes, status, on or {}, rate, metrics, flags, problem))


# HPL: the best result that passed counts; a rate that failed, was not checked or is not that of size and time does not.
case(
    "hpl/nvidia-two-results", on={"ranks": 2}, flags=("the best of the 2 results of HPL.dat counts",), hpl_gflops=8206.3
)
case("hpl/netlib-passed", on={"ranks": 8}, flags=("HPL used 4 processes, but the run has 8 devices",))
case("hpl/failed", status="invalid", hpl_gflops=3.3515)
case("hpl/mxp-8-gpus", flags=(), hpl_mxp_gflops=434680.0)
case("hpl/mxp-8-gpus", ("PASSED", "FAILED"), status="invalid", hpl_mxp_gflops=434680.0)
case("hpl/mxp-8-gpus", ("...... PASSED", "......"), status="incomplete")
case("hpl/netlib-passed", ("0.0038237 ...... PASSED", "nan ...... PASSED"), status="invalid")
case("hpl/netlib-passed", ("0.0038237 ...... PASSED", "16.5 ...... PASSED"), status="invalid")
case("hpl/netlib-passed", ("||Ax-b||", "||"), ("and passed residual checks", "without checking"), status="invalid")
case("hpl/netlib-passed", ("4.29845e+03", "4.29845e+04"), status="invalid")
case("hpl/netlib-passed", ("1 tests completed and passed", "2 tests completed and passed"), status="invalid")

# nccl-tests: the peak is that of a size, in every layout; wrong values and torn rows are not believed.
NCCL = "nccl_tests/all-reduce-8-ranks"
case(NCCL, on={"ranks": 8}, busbw_peak_gb_per_s=123.11)
case("nccl_tests/2021-layout", on={"ranks": 2}, busbw_peak_gb_per_s=46.19)
case("nccl_tests/all-gather-16-ranks", on={"ranks": 16}, busbw_peak_gb_per_s=268.59)
case("nccl_tests/file", on={"ranks": 2}, busbw_peak_gb_per_s=46.187)
case("nccl_tests/rccl-alltoall-8-ranks", on={"ranks": 8}, flags=(), busbw_peak_gb_per_s=361.41)
case("nccl_tests/hypercube-4-ranks", on={"ranks": 4}, flags=(), busbw_peak_gb_per_s=13.22)
case("nccl_tests/sendrecv-2-ranks", on={"ranks": 2}, flags=(), busbw_peak_gb_per_s=22.94)
case("nccl_tests/reduce-scatter-3-ranks", on={"ranks": 3}, flags=(), busbw_peak_gb_per_s=9.32)
case("nccl_tests/rccl-broadcast", flags=(), busbw_peak_gb_per_s=7.18)
case("nccl_tests/hypercube-4-ranks", ("120.0   13.11   13.11", "120.0   17.48   17.48"), status="invalid")
case(NCCL, ("values : 0 OK", "values : 3 FAILED"), on={"ranks": 8}, status="invalid")
case(NCCL, ("122.57      0", "122.57      7"), on={"ranks": 8}, status="invalid")
case(NCCL, ("1916.4   70.04  122.57", "1916.4   90.04  122.57"), on={"ranks": 8}, status="invalid")
case(NCCL, ("1916.4   70.04  122.57", "1916.4   70.04  222.57"), on={"ranks": 8}, status="invalid")
for bandwidths, status in (("1.49    2.61", "ok"), ("2.49    4.36", "invalid")):
    # A time of two digits contradicts only what is far off.
    cells = f"  1.2e+07    {bandwidths}      0"
    row = f" 17179869184    4294967296     float     sum      -1{cells}{cells}\n"
    case(NCCL, ("# Out of bounds", f"{row}# Out of bounds"), status=status)
case("nccl_tests/two-tests-of-one-rank", on={"ranks": 2}, status="invalid", problem="without MPI")
case(NCCL, on={"ranks": 16}, status="invalid")
LIMITED = ("# Using devices\n", "# Using devices\n#\n# Reducing maxBytes to 134217728 due to memory limitation\n")
case(NCCL, ("maxBytes 134217728", "maxBytes 8589934592"), LIMITED, flags=())
case(NCCL, ("      0\n", "    N/A\n"), ("      0 ", "    N/A "), flags=("not checked",))
TORN = ("     2097152        524288", "host:1 NCCL INFO 2097152        524288")
case(NCCL, TORN, flags=("1 of the planned sizes are missing",))
case(NCCL, ("busbw #wrong\n", "busbw #wrong     timestamp\n"), status="invalid", problem="-J")
IN_PLACE = (("361.20    N/A", "999.99    N/A"), ("412.80", "999.99"))
case("nccl_tests/rccl-alltoall-8-ranks", *IN_PLACE, status="invalid", busbw_peak_gb_per_s=361.41)

# Data types, operations and repetitions are tests of their own; the file of -J lists one device per process.
case("nccl_tests/types-and-operations", status="invalid", problem="the log has 3 tests")
case("nccl_tests/types-and-operations", on={"test": 1, "ranks": 2}, busbw_peak_gb_per_s=363.5)
case("nccl_tests/types-and-operations", on={"test": 2, "ranks": 2}, busbw_peak_gb_per_s=488.19)
case("nccl_tests/types-and-operations", on={"test": 3, "ranks": 2}, busbw_peak_gb_per_s=363.85)
case(
    "nccl_tests/types-and-operations", ("0 OK", "2 FAILED"), on={"test": 1}, status="invalid", problem="wrong values: 2"
)
case("nccl_tests/two-cycles", status="invalid", problem="the log has 2 tests")
case("nccl_tests/two-cycles", on={"test": 1, "ranks": 2}, busbw_peak_gb_per_s=488.19)
case("nccl_tests/two-cycles", on={"test": "last", "ranks": 2}, busbw_peak_gb_per_s=363.85)
SPREAD = "nccl_tests/file-4-gpus-a-process"
case(SPREAD, status="invalid", problem="all_reduce_perf float sum busbw_peak_gb_per_s 636.74")
case(SPREAD, on={"test": 1, "ranks": 8}, busbw_peak_gb_per_s=636.7375)
case(SPREAD, on={"test": 2, "ranks": 8}, busbw_peak_gb_per_s=854.3325)
case(SPREAD, on={"test": 2, "ranks": 2}, status="invalid", problem="number of ranks is 8 in the log, but 2 in the run")

# p2pBandwidthLatencyTest and nvbandwidth: rows that are missing leave no matrix.
P2P = "p2p_bandwidth_latency/two-gpus-cannot-access"
case(P2P, flags=("2 pairs cannot access each other", "sum of both directions"))
case(P2P, ("38.20", " 9.90"), flags=("slower with P2P enabled",))
case("p2p_bandwidth_latency/bandwidth-test", flags=("withdrew",))
WAIVED = ("nvbandwidth did not run these tests on this machine: device_to_device_bidirectional_memcpy_read_ce",)
case("nvbandwidth/seven-gpus", flags=WAIVED, host_to_device_memcpy_ce_min_gb_per_s=55.58)
case("nvbandwidth/old-diagonal", device_to_device_latency_sm_max_ns=771.05)
case("nvbandwidth/document", ('"Passed"', '"Error"'), status="invalid")
case("nvbandwidth/seven-gpus", ("memcpy_ce 389.15", "memcpy_ce 444.73"), status="incomplete")
BOTH_WAYS = ("host_to_device_memcpy_ce", "host_to_device_bidirectional_memcpy_ce")
case("nvbandwidth/seven-gpus", BOTH_WAYS, flags=("one direction",))

# OSU: megabytes are a million bytes. perftest: they are binary, and gigabits are not; the slower of client and server counts.
case("osu/bandwidth-validated", bandwidth_peak_gb_per_s=279.57325)
case("osu/bandwidth-validated", ("91234.12            [Pass]", "91234.12            [Fail]"), status="invalid")
case("osu/latency-cuda", latency_us=2.48)
case("osu/barrier", barrier_latency_us=3.27)
case("fio/two-clients", flags=(), read_bandwidth_gb_per_s=5.0)
case("osu/iallreduce", non_blocking_allreduce_latency_us=5.18)
case("osu/ibarrier-full", non_blocking_barrier_latency_us=5.47)
case("osu/bibw", flags=("sum of both directions",))
case("osu/bcast-full", ("4                       6.04", "1                       6.04"), status="invalid")
case("perftest/write-bw", flags=("frequency",), bandwidth_gb_per_s=24056.72 * MIB)
case("perftest/gbits", flags=("sum of both directions",), bandwidth_gb_per_s=98.26 / 8)
case("perftest/client-and-server", flags=("client and server",))
case("perftest/write-bw", ("24056.72", "34056.72"), status="invalid")
case("perftest/write-lat", latency_us=1.08)

# Programs that sites run.
NO_END = ("no end mark",)
case("gromacs/md-log-24-ranks", flags=(), simulated_ns_per_day=1.008)
case("gromacs/stderr", flags=("the counters were not reset",), simulated_ns_per_day=446.59)
case("gromacs/four-columns", flags=(), simulated_ns_per_day=392.97)
case("gromacs/md-log-24-ranks", ("23.801", "2.801"), status="invalid")
case("gromacs/md-log-24-ranks", ("Finished mdrun", "Aborted mdrun"), status="incomplete")
case("gromacs/stderr", ("446.590        0.054", "nan        nan"), status="nan")
case("lammps/lj-kokkos", on={"ranks": 1}, flags=(), simulated_tau_per_day=618695.793)
case("lammps/lj-kokkos", on={"ranks": 2}, flags=("1 processes, but the run has 2 devices",), atom_steps_per_s=716083.08)
case("lammps/dpd-72-ranks", flags=(), atom_steps_per_s=51.82e6)
LAST = ("test 2 of the 2 tests in the log counts",)
case("lammps/two-runs-real-units", on={"test": "last"}, flags=LAST, simulated_ns_per_day=0.092)
case("lammps/lj-kokkos", ("1432.166", "9432.166"), status="invalid")
case("lammps/lj-kokkos", ("Total wall time: 0:00:01\n", ""), status="incomplete")
case("lammps/lj-kokkos", ("0.698243", "nan"), status="nan")
OFFICIAL = ("official results need at least 1800 s",)
case("hpcg/one-process", on={"ranks": 2}, flags=OFFICIAL, hpcg_gflops=1.04463)
case("hpcg/release-3.0", on={"ranks": 8}, flags=("the run took 50.3291 s",), memory_bandwidth_gb_per_s=25.1834)
case("hpcg/release-3.0", flags=OFFICIAL, hpcg_raw_gflops=3.30425)
case("hpcg/invalid", status="invalid")
SYMMETRY = "Symmetry |x'Ay-y'Ax|/(2*||x||*||A||*||y||)/epsilon::Result=PASSED"
case("hpcg/one-process", (SYMMETRY, "x::Result=FAILED"), status="invalid")
case("hpcg/one-process", ("rating of=1.04463", "rating of=11.04463"), status="invalid")
case("hpcg/release-3.0", ("epsilon: \n  Result: PASSED", "epsilon: \n  Result: FAILED"), status="invalid")
case("hpcg/release-3.0", ("rating of: 3.28908", "rating of: 3.38908"), status="invalid")
case("hpcg/release-3.0", ("Results are valid but", "Results"), status="incomplete")
case("graph500/bfs-72-processes", on={"ranks": 4}, flags=("not validated",), bfs_gteps=1.47046)
case("graph500/bfs-and-sssp", flags=(), sssp_gteps=0.166109)
case("graph500/bfs-and-sssp", ("5.09939e+08", "5.09939e+09"), status="invalid")
UNVALIDATED = ("sssp stddev_validate:           0.0123", "No results printed for invalid run.")
case("graph500/bfs-and-sssp", UNVALIDATED, status="invalid")
case("stream/ten-million", flags=(), triad_gb_per_s=8.7054)
case("stream/eighty-million-8-threads", flags=(), array_mib=80e6 * 8 / 2**20)
case("stream/ten-million", ("Solution Validates", "Failed Validation on array a[]"), status="invalid")
case("stream/ten-million", ("8705.4", "87054."), status="invalid")
case("stream/ten-million", ("Triad: ", "WARN Triad: "), status="incomplete")
case("mlc/all-tests", flags=NO_END, peak_bandwidth_all_reads_gb_per_s=222.5571, loaded_latency_ns=252.82)
case("mlc/idle-latency", flags=NO_END, idle_latency_ns=80.5)
case("mlc/all-tests", ("       1\t 133.7\t  79.2\t", "       1\t 133.7"), status="incomplete")
case("gpu_copy/two-gpus", flags=NO_END, host_to_device_dma_min_gb_per_s=26.1878)
case("gpu_copy/older-both-directions", flags=NO_END, device_to_device_read_sm_bidirectional_max_gb_per_s=447.098)
case("gpu_copy/two-gpus", ("26.1736", "0"), status="nan")
case("ior/posix-8-tasks", on={"ranks": 4}, flags=("the page cache",), write_bandwidth_gb_per_s=0.95672)
case("ior/document", flags=(), read_bandwidth_gb_per_s=510 * MIB)
case("ior/release-3.0", on={"ranks": 16}, flags=(), write_bandwidth_gb_per_s=158.39 * MIB)
SCRIPT = "ior/two-tests-of-a-script"
case(SCRIPT, on={"test": 1}, flags=("test 1 of the",), write_bandwidth_gb_per_s=4100 * MIB)
case(SCRIPT, on={"test": 2}, flags=("test 2 of the",), write_bandwidth_gb_per_s=510 * MIB)
case("ior/posix-8-tasks", ("Finished  ", "Killed  "), flags=("no end mark", "the page cache"))
case("ior/posix-8-tasks", ("912.40     912.40     912.40", "912.40     912.40     812.40"), status="invalid")
case(SCRIPT, ("500.00     510.00", "500.00     515.00"), status="invalid")
case("ior/release-3.0", ("Finished:", "Killed:"), flags=("no end mark",), write_bandwidth_gb_per_s=158.39 * MIB)
case(SCRIPT, ("Finished  ", "Killed  "), on={"test": "last"}, status="incomplete")
case(
    "ior/posix-8-tasks", ("Max Read:", "WARNING: incorrect data on read (3 errors found).\nMax Read:"), status="invalid"
)
FIO_2 = {"read_latency_us": 1335.1, "read_latency_p99_us": 4384.0}
case("fio/release-2", flags=(), read_bandwidth_gb_per_s=2976 * 1024 / 1e9, **FIO_2)
case("fio/read-2-jobs", flags=("page cache",), read_bandwidth_gb_per_s=4.194304)
case("fio/two-groups", on={"test": 2}, flags=("test 2 of the",), read_operations_per_s=242000.0)
case("fio/no-space", status="invalid")
UNET = "dlio/unet3d-8-accelerators"
case(UNET, on={"ranks": 8, "hosts": 2}, flags=("emulated",), rate=149.9, train_io_gb_per_s=20957.6 * MIB)
case("dlio/checkpoint-1024-accelerators", flags=(), checkpoint_duration_s=7.897)
case(UNET, ("149.9,", "1499,"), status="invalid")
case(UNET, on={"ranks": 4}, status="invalid")

# Megatron: the first line and the warm-up do not count.
THREE = "megatron/gpt-3-iterations"
case("megatron/deepseek-log-every-5", on={"batch_global": 1024}, flags=(), tflops_per_device=68.2)
case("megatron/deepseek-log-every-5", on={"batch_global": 512}, status="invalid")
case("megatron/primus-averages", flags=(), tokens_per_device_per_s=9810.6)
case(THREE, flags=(), rate=2 / 0.75, tokens_per_s=1024 * 2 / 0.75)
case(THREE, on={"warmup_steps": 2}, rate=2 / 0.5)
case(THREE, on={"warmup_steps": 9}, flags=("all lines count",))
case(THREE, ("nan iterations:   0", "nan iterations:   1"), status="nan")
case(THREE, ("       3 |", "       9 |"), status="incomplete")

# tf_cnn_benchmarks: every rank prints the total of all, and the slowest clock counts.
TF = "tf_cnn_benchmarks/horovod-4-ranks"
case(TF, on={"ranks": 4, "batch": 64, "batch_global": 256}, rate=1198.42, flags=())
case(TF, ("total images/sec: 1198.42total", "total images/sec: 1198.4total"), status="incomplete")
case(TF, ("total images/sec: 1198.42total", "total images/sec: 1198.421 images/sec total"), status="incomplete")
OTHER = "the global batch is 64 in the log, but 256 in the run"
case(TF, ("256 global", "64 global"), on={"ranks": 4, "batch_global": 256}, status="invalid", problem=OTHER)
case(TF, ("1199.31", "1399.31"), on={"ranks": 8}, flags=("1.17 times the smallest", "4 ranks instead of 8"))
case("tf_cnn_benchmarks/loss-nan", status="nan", rate=46.61)
case("tf_cnn_benchmarks/loss-nan", ("\tnan", "\t0.000"), flags=("forward-only",))
case("tf_cnn_benchmarks/eval-during-training", status="incomplete", problem="Done with training")
ONE_GPU = {"ranks": 1, "batch": 128, "batch_global": 128}
case("tf_cnn_benchmarks/one-gpu", ("\t", "   "), on=ONE_GPU, rate=238.68, loss_last=8.042)

# Horovod's synthetic benchmark: the total is no measured sum; numbers that contradict each other are not believed.
HOROVOD, FOUR = "horovod_synthetic/pytorch-4-gpus", {"ranks": 4, "batch": 32}
case(HOROVOD, on=FOUR, rate=432.8, flags=("not a measured sum",), throughput_per_device_per_s=108.2)
case("horovod_synthetic/cpu", flags=("its uncertainty is 1.6 %",))
case(HOROVOD, ("GPU(s): 432.8", "GPU(s): 532.8"), on=FOUR, status="invalid", problem="is not 4 times 108.2")
case(HOROVOD, ("Iter #3: 108.7", "Iter #3: 148.7"), on=FOUR, status="invalid", problem="the mean of the iterations")
GPUS, BATCH = (
    "the number of ranks is 1 in the log, but 4 in the run",
    "the batch per device is 64 in the log, but 32 in the run",
)
case(HOROVOD, ("Number of GPUs: 4", "Number of GPUs: 1"), on=FOUR, status="invalid", problem=GPUS)
case(HOROVOD, ("Batch size: 32", "Batch size: 64"), on=FOUR, status="invalid", problem=BATCH)
case(HOROVOD, ("432.8", "nan"), status="nan")

# NVIDIA's BERT: steps that ran out do not count. A public log of 16 GPUs: 5000 steps were asked for, 2 epochs of 693 were done;
# the printed rate is 3.6 times too high. Without progress bars the features say how many batches an epoch has.
BERT, DONE = "nvidia_bert/full-epochs-max-steps-too-large", 88641 * 2 / 585.0896
SIXTEEN, EIGHT = {"ranks": 16, "batch": 8}, {"ranks": 8, "batch": 4, "batch_global": 32}
STEPS = "nvidia_bert/dllogger-max-steps"
case(BERT, on=SIXTEEN | {"batch_global": 128}, rate=DONE, flags=("3.61 times",), printed_throughput_per_s=1093.849)
case(BERT, ("Iteration: 100%", "Iteration:  99%"), on=SIXTEEN, rate=DONE)
EPOCHS = (("max_steps=5000.0", "max_steps=-1.0"), ("num_train_epochs=2.0", "num_train_epochs=2.5"))
case(BERT, *EPOCHS, on=SIXTEEN, rate=DONE)  # a fraction of an epoch is not run
case(BERT, ("final_loss : 6.2163", "final_loss : nan"), status="nan")
# One step more than asked for is done.
case(STEPS, on=EIGHT, rate=32 * 101 / 40.4, flags=("0.99 times",), exact_match_pct=80.65, f1_pct=88.12)
case("nvidia_bert/units", on=EIGHT, status="invalid", rate=517.4157)
LATER, PRINTED = ('"step": [0, 101]', '"step": [0, 301]'), "the last printed iteration is 301"
case(STEPS, LATER, on={"ranks": 8, "batch_global": 32}, status="invalid", problem=PRINTED)

# YOLOv5: the batch is that of all devices; the first epoch warms up; a rate that is not the epoch's mean gives way to the clock.
YOLO, FAST = "yolov5/train-2-gpus", "yolov5/iterations-per-second"
case(YOLO, on={"ranks": 2, "batch": 32, "batch_global": 64}, parameters=46563709, epochs=3)
case(FAST, rate=16 * 12.5)
ALL_DEVICES = "the total batch of all devices is 64 in the log, but 128 in the run"
case(YOLO, on={"ranks": 2, "batch": 64, "batch_global": 128}, status="invalid", problem=ALL_DEVICES)
case(FAST, (" 1/1 ", " 0/1 "), flags=("there is only one epoch",))
case(FAST, ("12.50it/s", "19.50it/s"), rate=16 * 100 / 8.5, flags=("from elapsed times",))
case(YOLO, ("0.470 hours", "0.170 hours"), status="invalid")
case(FAST, ("0.0661", "nan"), status="nan")
case(YOLO, ("epochs completed", "epochs"), status="incomplete")

# MLPerf training: the time of all ranks and the tracked rate; a run that was aborted has no time to train.
MLPERF, ABORTED = "mlperf/bert-2-ranks", ('"status": "success"', '"status": "aborted"')
case(MLPERF, on={"ranks": 2, "batch_global": 448}, rate=14214.6596, time_to_train_s=92.116)
case(MLPERF, ABORTED, flags=("aborted",))
case(MLPERF, ABORTED, ("tracked_stats", "other_stats"), status="incomplete")
case(MLPERF, ('"time_ms"', '"no_time"'), status="incomplete", problem="without time_ms")
case(MLPERF, ("1272000", "9272000"), status="invalid")
case(MLPERF, on={"batch_global": 512}, status="invalid")
case("mlperf/evaluated-after-the-run", on={"batch_global": 1024}, samples=5_120_000, run_time_s=1229.99)
case(MLPERF, ("\n1: :::MLLOG", "1: :::MLLOG"), time_to_train_s=92.116)

# Clients of inference servers.
FAILED = ("1 of 200 requests failed and are not included in the client's latencies",)
POISSON = {"ttft_ms_p99": 143.33, "ttft_ms_p50": 95.70, "tpot_ms_mean": 27.91, "prompt_tokens_per_s": 196.551}
case("vllm/poisson", rate=200 / 203.51, flags=(), **POISSON)
case("vllm/file", flags=FAILED, requests=200, errors=1, errors_pct=0.5)
case("vllm/2024-layout", rate=2000 / 102.57, flags=("does not report failed requests",))
case("vllm/detailed", flags=("at most 2 requests at a time",), ttft_ms_p99_9=199.9, e2e_ms_p50=260.0)
SGLANG = {"e2e_ms_p90": 12654.31, "itl_ms_max": 665.84, "output_tokens_per_s": 6453 / 33.06}  # not the retokenized ones
case("sglang/concurrency-64", rate=200 / 33.06, flags=("does not report failed requests",), **SGLANG)
OF_TWO = ("2 tests in the log", "the wait in the client")
case("sglang/file", on={"test": "last"}, rate=4.0, flags=OF_TWO, ttft_ms_p99=300.0, e2e_ms_p50=1390.0)
AIPERF = {"ttft_ms_p99": 230.125, "tpot_ms_p50": 5.5, "itl_ms_p99": 7.5, "e2e_ms_mean": 812.5, "goodput_per_s": 96 / 49}
case(
    "aiperf/poisson",
    rate=100 / 49,
    flags=("1 requests failed",),
    errors=1,
    requests=101,
    errors_pct=100 / 101,
    **AIPERF,
)
case("aiperf/poisson", ('"avg": 49.0', '"avg": 9.0'), status="invalid", problem="does not match")
case("aiperf/poisson", ('"was_cancelled": false', '"was_cancelled": true'), status="incomplete", problem="cancelled")
case("aiperf/genai-perf", rate=3.25, flags=("does not report failed",), e2e_ms_p50=411.75, tpot_ms_p99=11.25)
case("aiperf/genai-perf", ('"unit": "ms", "avg": 9.75', '"unit": "ns", "avg": 9750000'), itl_ms_mean=9.75)
case("aiperf/genai-perf", ('"unit": "ms", "avg": 31.5', '"unit": "frames", "avg": 31.5'), status="invalid")
TRT = {"ttft_ms_p95": 226.9148, "e2e_ms_mean": 1093.2284, "output_tokens_per_s": 11076.77}
case("trtllm_bench/streaming", rate=86.5373, flags=("without a server",), **TRT)
case("trtllm_bench/report", rate=1.4439, e2e_ms_p99=5514.4701, requests=10)
case("trtllm_bench/release-0.16", rate=0.7743)
case("trtllm_bench/release-0.12", rate=182.8588)
case("trtllm_bench/report", ("1.4439", "14.4"), status="invalid")
case("trtllm_bench/report", ('"performance"', '"other"'), status="incomplete")
case("trtllm_bench/streaming", ("162.6706\n[TTFT]", "nan\n[TTFT]"), status="nan")
SERVER = "mlperf_inference/server-tokens"
TOKENS = {"offered_per_s": 104.15, "ttft_ms_p99": 1760.966679, "tpot_ms_p99_9": 227.870358}
case(SERVER, rate=99.86, e2e_ms_mean=37756.80707, output_tokens_per_s=29522.56, **TOKENS)
case("mlperf_inference/release-0.7-single-stream", rate=7.72, e2e_ms_p90=141.426994)  # its mode is called Performance
case("mlperf_inference/offline", rate=17.0963)
DETAIL = {"tpot_ms_p99": 1.5, "tpot_ms_mean": 1.1, "ttft_ms_p99": 12.0, "e2e_ms_p50": 18.753138}
case("mlperf_inference/detail-invalid", status="invalid", rate=0.98, **DETAIL)
case(SERVER, ("Result is : VALID", "Result is : INVALID"), status="invalid")
case(SERVER, ("PerformanceOnly", "AccuracyOnly"), status="incomplete")
case(SERVER, ("No errors encountered", "3 ERRORS encountered"), flags=("reported errors",))


@pytest.mark.parametrize("one", CASES, ids=lambda one: one.name)
def test_numbers_mean_what_the_program_measures(one: Case) -> None:
    found = read(one.name, *one.changes, **one.scope)
    assert found.status == one.status, found.problem
    assert one.problem in found.problem
    assert (found.problem == "") == (one.status == "ok")
    if one.rate is not None or one.status == "incomplete":
        assert found.throughput_per_s == (one.rate and pytest.approx(one.rate, rel=1e-6))
    assert {name: found.metrics[name] for name in one.metrics} == pytest.approx(one.metrics, rel=1e-5)
    assert flagged(found, *(one.flags or ())) if one.flags != () else not found.flags


@pytest.mark.parametrize("name", PARSERS)
def test_every_parser_has_a_module_and_logs(name: str) -> None:
    assert load_format(name).reader().build_reading(RunContext()).status == "incomplete"
    assert list((LOGS / name).glob("*.log"))


@pytest.mark.parametrize(
    ("name", "curve", "at", "point"),
    [
        (NCCL, "busbw", 0, (1 << 20, 11.17)),
        (NCCL, "busbw", -1, (1 << 27, 122.57)),
        ("p2p_bandwidth_latency/bandwidth-test", "h2d_pinned", 0, (1000, 0.4)),
        ("p2p_bandwidth_latency/bandwidth-test", "h2d_pinned", 1, (67186688, 12.1)),
        ("osu/bcast-full", "broadcast_latency", -1, (8, 7.38)),
        ("perftest/client-and-server", "bandwidth", 0, (2, pytest.approx(5.29 * MIB))),
    ],
)
def test_curves_go_from_the_smallest_to_the_largest_message(
    name: str, curve: str, at: int, point: tuple[int, Any]
) -> None:
    assert read(name).curves[curve].points[at] == point


@pytest.mark.parametrize(
    ("name", "matrix", "unit", "values"),
    [
        (P2P, "bidirectional_p2p_enabled", "gb_per_s", ((None, 43.19), (42.78, None))),
        (P2P, "latency_p2p_enabled", "us", ((None, 12.76), (12.87, None))),  # the GPU's, not the CPU's
        ("nvbandwidth/old-diagonal", "device_to_device_memcpy_write_ce", "gb_per_s", ((None, 276.07), (276.19, None))),
        ("nvbandwidth/document", "device_to_device_memcpy_read_ce", "gb_per_s", ((None, 20.5), (20.7, None))),
        ("mlc/cxl-memory-node", "idle_latency", "ns", ((84.5, 564.5),)),  # memory behind CXL is a column without a row
        ("gpu_copy/two-gpus", "host_to_device_dma", "gb_per_s", ((26.1878, 26.207),)),  # the nearer NUMA node
    ],
)
def test_matrices_have_what_was_measured(name: str, matrix: str, unit: str, values: Any) -> None:
    found = read(name).matrices[matrix]
    assert (found.unit, found.values) == (unit, values)


def test_names_of_rows_and_columns_and_what_is_absent() -> None:
    latencies = read("mlc/cxl-memory-node").matrices["idle_latency"]
    assert (latencies.rows, latencies.columns) == (("0",), ("0", "1"))
    assert read("gpu_copy/two-gpus").matrices["host_to_device_dma"].columns == ("gpu0", "gpu1")
    assert read("mlc/all-tests").matrices["node_bandwidth"].values[0] == pytest.approx((111.388, 51.0857))
    assert read("nvbandwidth/old-diagonal").matrices["device_to_device_latency_sm"].unit == "ns"
    assert "device_to_device_bidirectional_memcpy_read_ce" not in read("nvbandwidth/seven-gpus").matrices
    assert read(NCCL).curves["busbw"].peak == 122.57
    assert read(NCCL).curves["busbw"].unit == "gb_per_s"
    assert len(read("osu/bandwidth-validated").curves["bandwidth"].points) == 3
    assert "bandwidth_peak" not in read("perftest/gbits").curves  # 0.00 is not measured
    assert "busbw_in_place" not in read("nccl_tests/rccl-alltoall-8-ranks", *IN_PLACE).curves


@pytest.mark.parametrize(
    ("name", "metrics"),
    [
        ("osu/latency-cuda", {"latency_us"}),
        ("osu/barrier", {"barrier_latency_us"}),
        ("osu/bandwidth-validated", {"bandwidth_peak_gb_per_s"}),
        ("perftest/write-lat", {"latency_us"}),
        ("mlperf_inference/offline", {"requests_per_s"}),  # latencies of this scenario are nobody's
    ],
)
def test_there_are_no_other_metrics(name: str, metrics: set[str]) -> None:
    assert read(name).metrics.keys() == metrics


@pytest.mark.parametrize(
    "change",
    [("     1  38.66 1536.43 \n", ""), ("     1  38.66 1536.43 ", "     1  38.66 "), ("   D\\D     0      1 ", "")],
)
def test_a_matrix_with_a_row_missing_is_none(change: Change) -> None:
    found = read(P2P, change)
    assert found.status == "incomplete"
    assert "unidirectional_p2p_enabled" not in found.matrices


def test_a_run_that_was_aborted_has_no_time_to_train_and_later_evaluations_no_accuracy() -> None:
    assert "time_to_train_s" not in read(MLPERF, ABORTED).metrics
    assert "eval_accuracy" not in read("mlperf/evaluated-after-the-run", batch_global=1024).metrics
    spread = read(HOROVOD, ranks=4, batch=32).metrics["iteration_rate_std_per_s"]
    assert spread == pytest.approx(0.51, abs=0.01)


def test_the_clock_of_epochs_and_the_table_of_results_of_yolov5() -> None:
    found = read(YOLO, ranks=2, batch=32, batch_global=64)
    assert found.throughput_per_s == pytest.approx(64 * 298 / 511, rel=3e-3)
    assert found.metrics["epoch_time_s"] == pytest.approx(511, rel=3e-3)
    table = read("yolov5/results")
    assert (table.status, table.throughput_per_s) == ("ok", None)
    assert table.metrics == {"epochs": 2, "map50_pct": pytest.approx(59), "map50_95_pct": pytest.approx(37)}


def test_labelled_ranks_that_take_turns() -> None:
    rank = text_of("tf_cnn_benchmarks/one-gpu").splitlines()
    slower = [line.replace("238.68", "230.00") for line in rank]
    lines = [f"{number}: {line}" for pair in zip(rank, slower, strict=True) for number, line in enumerate(pair)]
    found = read_log("tf_cnn_benchmarks", Log.from_text("\n".join(lines) + "\n"), RunContext(ranks=2))
    assert (found.status, found.throughput_per_s) == ("ok", 230.00)


def test_progress_of_hpl_is_no_result() -> None:
    line = " Prog= 0.1%\tColumn=000000384 Fraction= 0.1% Gflops=7.818e+03\n"
    assert read_log("hpl", Log.from_text(line * 3), RunContext()).status == "incomplete"


def test_small_messages_whose_bandwidths_round_to_zero_are_no_single_rank() -> None:
    rows = "".join(
        f"  {size}  {size // 4}  float  sum  -1  12.31  0.00  0.00  0  12.04  0.00  0.00  0\n" for size in (8, 16, 32)
    )
    ranks = "".join(f"#  Rank  {n} Pid  7 on  node1 device  {n} [0x06] A100\n" for n in (0, 1))
    text = f"# nThread 1 nGpus 2 minBytes 8 maxBytes 32 step: 2(factor)\n{ranks}{rows}# Out of bounds values : 0 OK\n"
    found = read_log("nccl_tests", Log.from_text(text), RunContext(ranks=2))
    assert (found.status, found.problem, found.metrics["latency_us"]) == ("ok", "", 12.31)
    alone = read_log("nccl_tests", Log.from_text(text.replace(ranks, ranks.partition("\n")[0] + "\n")), RunContext())
    assert "as with a single rank" in alone.problem


def test_a_header_that_was_cut_off_before_its_rows_is_not_only_a_build_without_mpi() -> None:
    text = text_of(NCCL)
    found = read_log("nccl_tests", Log.from_text(text.partition("#       size")[0] + text), RunContext())
    assert found.status == "invalid"
    assert "an earlier log was cut off" in found.problem


@pytest.mark.parametrize(
    ("name", "at_once"),
    [
        ("gromacs/stderr", True),
        ("lammps/lj-kokkos", True),
        ("stream/ten-million", True),
        ("ior/posix-8-tasks", True),
        ("gromacs/stderr", False),
        ("lammps/lj-kokkos", False),
    ],
)
def test_programs_that_each_run_alone_are_not_taken_for_one_of_several_ranks(name: str, at_once: bool) -> None:
    """What mpirun makes of a build without MPI: the same program twice, their lines between each other."""
    lines = text_of(name).splitlines(keepends=True)
    text = "".join(line + line for line in lines) if at_once else "".join([*lines, *lines])
    found = read_log(name.partition("/")[0], Log.from_text(text), RunContext(ranks=2))
    assert (found.status == "invalid") == at_once
    assert ("ran at once" in found.problem) == at_once


def changed(name: str, *without: str, **changes: Any) -> LogReading:
    """A saved result file with other values."""
    document = {key: value for key, value in json.loads(text_of(name).splitlines()[-1]).items() if key not in without}
    return read_log(name.partition("/")[0], Log.from_text(json.dumps(document | changes)), RunContext())


def test_failed_requests_and_goodput_of_detailed_files_are_read() -> None:
    assert changed("vllm/detailed", "failed").metrics["errors"] == 1
    assert changed("vllm/detailed", "request_goodput", **{"request_goodput:": 0.75}).metrics["goodput_per_s"] == 0.75
    assert "goodput_per_s" not in read("vllm/detailed").metrics


def test_a_rate_is_that_of_counts_where_the_printed_one_is_rounded() -> None:
    few = (("200       ", "2         "), ("203.51", "78.74"), ("0.98", "0.03"), ("25600", "256"), ("125.79", "3.25"))
    found = read("vllm/poisson", *few)
    assert found.status == "ok", found.problem
    assert found.throughput_per_s == pytest.approx(0.0254, rel=1e-3)


def test_a_result_of_vllm_that_contradicts_itself_is_not_believed() -> None:
    assert changed("vllm/file", request_throughput=9.7).status == "invalid"
    assert changed("vllm/file", output_throughput=12.4).status == "invalid"
    assert changed("vllm/file", p99_ttft_ms=float("nan")).status == "nan"
    none = changed("vllm/file", completed=0, failed=200, request_throughput=0.0, output_throughput=0.0)
    assert (none.status, none.problem, none.throughput_per_s) == ("invalid", "no request succeeded", None)
    assert changed("vllm/file", "duration").status == "incomplete"


def test_printed_and_written_results_of_vllm_are_alike_and_together_one() -> None:
    assert set(read("vllm/poisson").metrics) == set(read("vllm/file").metrics)
    file = text_of("vllm/file")
    document = json.loads(file)
    lines = {
        "Successful requests": document["completed"],
        "Failed requests": document["failed"],
        "Benchmark duration (s)": f"{document['duration']:.2f}",
        "Total input tokens": document["total_input_tokens"],
        "Total generated tokens": document["total_output_tokens"],
        "Request throughput (req/s)": f"{document['request_throughput']:.2f}",
        "Output token throughput (tok/s)": f"{document['output_throughput']:.2f}",
        "P99 TTFT (ms)": f"{document['p99_ttft_ms']:.2f}",
    }
    table = "".join(f"{name}: {value}\n" for name, value in lines.items())
    printed = f"============ Serving Benchmark Result ============\n{table}{'=' * 50}\n"
    alone = read_log("vllm", Log.from_text(file), RunContext())
    assert alone.status == "ok"
    for both in (printed + file, file.rstrip() + "\n" + printed):
        assert read_log("vllm", Log.from_text(both), RunContext()) == alone
    other = json.dumps(document | {"duration": 1.3 * document["duration"]})
    assert "2 tests" in read_log("vllm", Log.from_text(printed + other), RunContext()).problem


def test_the_last_of_several_results_counts_where_the_workload_says_so() -> None:
    whole = text_of("vllm/poisson") + text_of("vllm/2024-layout")
    found = read_log("vllm", Log.from_text(whole), RunContext(test="last"))
    assert found.throughput_per_s == pytest.approx(19.5, rel=1e-3)
    assert flagged(found, "test 2 of the 2 tests in the log counts")
    cut = read_log("vllm", Log.from_text(whole[:-60]), RunContext(test="last"))
    assert (cut.status, cut.throughput_per_s) == ("incomplete", None)


def test_files_that_are_indented_or_longer_than_a_line_of_text_are_read() -> None:
    document = json.loads(text_of("vllm/detailed"))
    assert read_log("vllm", Log.from_text(json.dumps(document, indent=2)), RunContext()) == read("vllm/detailed")
    found = changed("vllm/detailed", generated_texts=["x" * (17 << 20)])
    assert found == read("vllm/detailed")


def test_what_results_of_sglang_do_not_say() -> None:
    found = read("sglang/concurrency-64")
    assert "offered_per_s" not in found.metrics  # all at once
    assert not flagged(found, "at a time")  # a closed loop waits for nothing


def test_a_report_of_trtllm_bench_that_was_cut_off_is_none() -> None:
    end = text_of("trtllm_bench/streaming").partition("= DATASET DETAILS")[0].rstrip().rstrip("=")
    assert read_log("trtllm_bench", Log.from_text(end), RunContext()).status == "incomplete"
