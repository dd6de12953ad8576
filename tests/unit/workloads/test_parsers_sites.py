"""What the numbers of programs that sites run mean, and where they mislead, on saved logs."""

from __future__ import annotations

from typing import Any

import pytest

from campaign.workloads.log_reader import Log
from campaign.workloads.parsers import Scope, read_log
from tests.unit.workloads.parsed import flagged, read, text_of


@pytest.mark.parametrize(
    ("name", "scope", "metric", "number", "words"),
    [
        ("gromacs/md-log-24-ranks", {}, "simulated_ns_per_day", 1.008, ""),
        ("gromacs/stderr", {}, "simulated_ns_per_day", 446.59, "no counters were reset"),
        ("lammps/lj-kokkos", {"ranks": 1}, "simulated_tau_per_day", 618695.793, ""),
        ("lammps/lj-kokkos", {"ranks": 2}, "atom_steps_per_s", 716083.08, "1 processes, the run 2 devices"),
        ("lammps/dpd-72-ranks", {}, "atom_steps_per_s", 51.82e6, ""),
        ("lammps/two-runs-real-units", {}, "simulated_ns_per_day", 0.092, "2 runs in the output"),
        ("hpcg/one-process", {"ranks": 2}, "hpcg_gflops", 1.04463, "official results take 1800 s"),
        ("graph500/bfs-72-processes", {"ranks": 4}, "bfs_gteps", 1.47046, "not validated"),
        ("graph500/bfs-and-sssp", {}, "sssp_gteps", 0.166109, ""),
        ("stream/ten-million", {}, "triad_gb_per_s", 8.7054, ""),
        ("stream/eighty-million-8-threads", {}, "array_mib", 80e6 * 8 / 2**20, ""),
        ("mlc/all-tests", {}, "peak_bandwidth_all_reads_gb_per_s", 222.5571, ""),
        ("mlc/all-tests", {}, "loaded_latency_ns", 252.82, ""),
        ("mlc/idle-latency", {}, "idle_latency_ns", 80.5, ""),
        ("gpu_copy/two-gpus", {}, "host_to_device_dma_min_gb_per_s", 26.1878, ""),
        ("gpu_copy/older-both-directions", {}, "device_to_device_read_sm_bidirectional_max_gb_per_s", 447.098, ""),
        ("ior/posix-8-tasks", {"ranks": 4}, "write_bandwidth_gb_per_s", 0.95672, "the page cache"),
        ("ior/document", {}, "read_bandwidth_gb_per_s", 510 * 2**20 / 1e9, ""),
        ("fio/read-2-jobs", {}, "read_bandwidth_gb_per_s", 4.194304, "page cache"),
        ("fio/two-groups", {}, "read_operations_per_s", 242000.0, "the last counts"),
        (
            "dlio/unet3d-8-accelerators",
            {"ranks": 8, "hosts": 2},
            "train_io_gb_per_s",
            20957.6 * 2**20 / 1e9,
            "emulated",
        ),
        ("dlio/checkpoint-1024-accelerators", {}, "checkpoint_duration_s", 7.897, ""),
        ("megatron/deepseek-log-every-5", {"batch_global": 1024}, "tflops_per_device", 68.2, ""),
        ("megatron/primus-averages", {}, "tokens_per_device_per_s", 9810.6, ""),
        ("megatron/gpt-3-iterations", {}, "tokens_per_s", 1024 * 2 / 0.75, ""),
        ("nccl_tests/rccl-alltoall-8-ranks", {"ranks": 8}, "busbw_peak_gb_per_s", 361.41, ""),
        ("nccl_tests/hypercube-4-ranks", {"ranks": 4}, "busbw_peak_gb_per_s", 13.22, ""),
        ("nccl_tests/sendrecv-2-ranks", {"ranks": 2}, "busbw_peak_gb_per_s", 22.94, ""),
        ("nccl_tests/reduce-scatter-3-ranks", {"ranks": 3}, "busbw_peak_gb_per_s", 9.32, ""),
        ("nccl_tests/rccl-broadcast", {}, "busbw_peak_gb_per_s", 7.18, ""),
    ],
)
def test_numbers_mean_what_the_program_measures(
    name: str, scope: dict[str, Any], metric: str, number: float, words: str
) -> None:
    found = read(name, **scope)
    assert (found.status, found.problem) == ("ok", "")
    assert found.metrics[metric] == pytest.approx(number, rel=1e-5)
    assert flagged(found, words) if words else not found.flags


@pytest.mark.parametrize(
    ("name", "change", "status"),
    [
        ("gromacs/md-log-24-ranks", ("23.801", "2.801"), "invalid"),
        ("gromacs/md-log-24-ranks", ("Finished mdrun", "Aborted mdrun"), "incomplete"),
        ("gromacs/stderr", ("446.590        0.054", "nan        nan"), "nan"),
        ("lammps/lj-kokkos", ("1432.166", "9432.166"), "invalid"),
        ("lammps/lj-kokkos", ("Total wall time: 0:00:01\n", ""), "incomplete"),
        ("lammps/lj-kokkos", ("0.698243", "nan"), "nan"),
        ("hpcg/invalid", ("HPCG", "HPCG"), "invalid"),
        (
            "hpcg/one-process",
            ("Symmetry |x'Ay-y'Ax|/(2*||x||*||A||*||y||)/epsilon::Result=PASSED", "x::Result=FAILED"),
            "invalid",
        ),
        ("hpcg/one-process", ("rating of=1.04463", "rating of=11.04463"), "invalid"),
        ("graph500/bfs-and-sssp", ("5.09939e+08", "5.09939e+09"), "invalid"),
        (
            "graph500/bfs-and-sssp",
            ("sssp stddev_validate:           0.0123", "No results printed for invalid run."),
            "invalid",
        ),
        ("stream/ten-million", ("Solution Validates", "Failed Validation on array a[]"), "invalid"),
        ("stream/ten-million", ("8705.4", "87054."), "invalid"),
        ("stream/ten-million", ("Triad: ", "WARN Triad: "), "incomplete"),
        ("mlc/all-tests", ("       1\t 133.7\t  79.2\t", "       1\t 133.7"), "incomplete"),
        ("gpu_copy/two-gpus", ("26.1736", "0"), "nan"),
        ("ior/posix-8-tasks", ("Finished  ", "Killed  "), "incomplete"),
        ("ior/posix-8-tasks", ("912.40     912.40     912.40", "912.40     912.40     812.40"), "invalid"),
        ("ior/posix-8-tasks", ("Max Read:", "WARNING: incorrect data on read (3 errors found).\nMax Read:"), "invalid"),
        ("fio/no-space", ("fio", "fio"), "invalid"),
        ("dlio/unet3d-8-accelerators", ("149.9,", "1499,"), "invalid"),
        ("megatron/gpt-3-iterations", ("nan iterations:   0", "nan iterations:   1"), "nan"),
        ("megatron/gpt-3-iterations", ("       3 |", "       9 |"), "incomplete"),
        ("nccl_tests/hypercube-4-ranks", ("120.0   13.11   13.11", "120.0   17.48   17.48"), "invalid"),
    ],
)
def test_what_failed_or_is_torn_does_not_count(name: str, change: tuple[str, str], status: str) -> None:
    assert read(name, change).status == status


def test_what_the_run_was_given_has_to_be_what_the_program_says() -> None:
    assert read("dlio/unet3d-8-accelerators", ranks=4).status == "invalid"
    assert read("megatron/deepseek-log-every-5", batch_global=512).status == "invalid"


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
    found = read_log(name.partition("/")[0], Log.of(text), Scope(ranks=2))
    assert (found.status == "invalid") == at_once
    assert ("at once" in found.problem) == at_once


def test_training_without_its_first_line_and_its_warm_up() -> None:
    assert read("megatron/gpt-3-iterations").throughput_per_s == pytest.approx(2 / 0.75)
    assert read("megatron/gpt-3-iterations", warmup_steps=2).throughput_per_s == pytest.approx(2 / 0.5)
    assert flagged(read("megatron/gpt-3-iterations", warmup_steps=9), "all lines count")
    assert read("dlio/unet3d-8-accelerators").throughput_per_s == pytest.approx(149.9)


def test_matrices_between_nodes_and_devices() -> None:
    latencies = read("mlc/cxl-memory-node").matrices["idle_latency"]
    assert (latencies.unit, latencies.rows, latencies.columns, latencies.values) == (
        "ns",
        ("0",),
        ("0", "1"),
        ((84.5, 564.5),),  # memory behind CXL is a column without a row
    )
    assert read("mlc/all-tests").matrices["node_bandwidth"].values[0] == pytest.approx((111.388, 51.0857))
    copies = read("gpu_copy/two-gpus").matrices["host_to_device_dma"]
    assert (copies.columns, copies.values) == (("gpu0", "gpu1"), ((26.1878, 26.207),))  # the nearer NUMA node


def test_in_place_columns_that_cannot_be_checked_do_not_count() -> None:
    found = read("nccl_tests/rccl-alltoall-8-ranks", ("361.20    N/A", "999.99    N/A"), ("412.80", "999.99"))
    assert found.metrics["busbw_peak_gb_per_s"] == 361.41
    assert "busbw_in_place" not in found.curves
