"""What the numbers of programs for hosts and links mean, and where they mislead, on saved logs."""

from __future__ import annotations

import pytest

from campaign.workloads.log_reader import Log
from campaign.workloads.parsers import Scope, read_log
from tests.unit.workloads.parsed import flagged, read


class TestHpl:
    def test_the_best_result_that_passed_counts(self) -> None:
        found = read("hpl/nvidia-two-results", ranks=2)
        assert (found.status, found.metrics["hpl_gflops"], found.flags) == ("ok", 8206.3, ())
        assert flagged(read("hpl/netlib-passed", ranks=8), "4 processes, the run 8 devices")

    def test_what_failed_is_invalid_and_its_rate_does_not_count(self) -> None:
        found = read("hpl/failed")
        assert (found.status, found.metrics["hpl_gflops"]) == ("invalid", 3.3515)
        assert read("hpl/netlib-passed", ("0.0038237 ...... PASSED", "nan ...... PASSED")).status == "invalid"
        assert read("hpl/netlib-passed", ("0.0038237 ...... PASSED", "16.5 ...... PASSED")).status == "invalid"

    def test_what_was_not_checked_is_invalid(self) -> None:
        unchecked = read(
            "hpl/netlib-passed",
            ("||Ax-b||", "||"),
            ("1 tests completed and passed residual checks", "1 tests completed without checking"),
        )
        assert unchecked.status == "invalid"

    def test_a_rate_that_is_not_that_of_size_and_time_is_not_believed(self) -> None:
        assert read("hpl/netlib-passed", ("4.29845e+03", "4.29845e+04")).status == "invalid"
        assert (
            read("hpl/netlib-passed", ("1 tests completed and passed", "2 tests completed and passed")).status
            == "invalid"
        )

    def test_progress_is_no_result(self) -> None:
        line = " Prog= 0.1%\tColumn=000000384 Fraction= 0.1% Gflops=7.818e+03\n"
        assert read_log("hpl", Log.of(line * 3), Scope()).status == "incomplete"


class TestNcclTests:
    @pytest.mark.parametrize(
        ("name", "ranks", "peak"),
        [
            ("all-reduce-8-ranks", 8, 123.11),
            ("2021-layout", 2, 46.19),
            ("all-gather-16-ranks", 16, 268.59),
            ("file", 2, 46.187),
        ],
    )
    def test_the_peak_is_that_of_a_size_in_every_layout(self, name: str, ranks: int, peak: float) -> None:
        found = read(f"nccl_tests/{name}", ranks=ranks)
        assert (found.status, found.metrics["busbw_peak_gb_per_s"]) == ("ok", peak)
        assert found.curves["busbw"].unit == "gb_per_s"

    def test_the_curve_goes_from_the_smallest_to_the_largest_message(self) -> None:
        curve = read("nccl_tests/all-reduce-8-ranks").curves["busbw"]
        assert curve.points[0] == (1 << 20, 11.17)
        assert curve.points[-1] == (1 << 27, 122.57)
        assert curve.peak == 122.57

    @pytest.mark.parametrize(
        "change",
        [
            ("values : 0 OK", "values : 3 FAILED"),
            ("122.57      0", "122.57      7"),
            ("1916.4   70.04  122.57", "1916.4   90.04  122.57"),
            ("1916.4   70.04  122.57", "1916.4   70.04  222.57"),
        ],
    )
    def test_wrong_values_and_torn_rows_are_not_believed(self, change: tuple[str, str]) -> None:
        assert read("nccl_tests/all-reduce-8-ranks", change, ranks=8).status == "invalid"

    @pytest.mark.parametrize(("bandwidths", "status"), [("1.49    2.61", "ok"), ("2.49    4.36", "invalid")])
    def test_a_time_of_two_digits_contradicts_only_what_is_far_off(self, bandwidths: str, status: str) -> None:
        cells = f"  1.2e+07    {bandwidths}      0"
        row = f" 17179869184    4294967296     float     sum      -1{cells}{cells}\n"
        assert read("nccl_tests/all-reduce-8-ranks", ("# Out of bounds", f"{row}# Out of bounds")).status == status

    def test_two_tests_of_one_rank_are_no_test_of_two(self) -> None:
        assert "without MPI" in read("nccl_tests/two-tests-of-one-rank", ranks=2).problem
        assert read("nccl_tests/all-reduce-8-ranks", ranks=16).status == "invalid"

    def test_values_that_were_not_checked_and_sizes_that_are_missing_are_told(self) -> None:
        found = read("nccl_tests/all-reduce-8-ranks", ("      0\n", "    N/A\n"), ("      0 ", "    N/A "))
        assert found.status == "ok"
        assert flagged(found, "not checked")
        torn = read(
            "nccl_tests/all-reduce-8-ranks", ("     2097152        524288", "host:1 NCCL INFO 2097152        524288")
        )
        assert flagged(torn, "1 sizes could not be read")

    def test_further_columns_are_not_guessed(self) -> None:
        found = read("nccl_tests/all-reduce-8-ranks", ("busbw #wrong\n", "busbw #wrong     timestamp\n"))
        assert found.status == "invalid"
        assert "-J" in found.problem


class TestP2pBandwidthLatency:
    NAME = "p2p_bandwidth_latency/two-gpus-cannot-access"

    def test_matrices_with_masked_diagonals(self) -> None:
        found = read(self.NAME)
        assert found.status == "ok"
        matrix = found.matrices["bidirectional_p2p_enabled"]
        assert (matrix.unit, matrix.values) == ("gb_per_s", ((None, 43.19), (42.78, None)))
        assert found.matrices["latency_p2p_enabled"].values == (
            (None, 12.76),
            (12.87, None),
        )  # the GPU's, not the CPU's
        assert flagged(found, "2 pairs cannot access each other", "sum of both directions")

    def test_pairs_that_are_slower_with_p2p_are_told(self) -> None:
        assert flagged(read(self.NAME, ("38.20", " 9.90")), "slower with P2P enabled")

    @pytest.mark.parametrize(
        "change",
        [("     1  38.66 1536.43 \n", ""), ("     1  38.66 1536.43 ", "     1  38.66 "), ("   D\\D     0      1 ", "")],
    )
    def test_a_matrix_with_a_row_missing_is_none(self, change: tuple[str, str]) -> None:
        found = read(self.NAME, change)
        assert found.status == "incomplete"
        assert "unidirectional_p2p_enabled" not in found.matrices

    def test_bandwidth_test(self) -> None:
        found = read("p2p_bandwidth_latency/bandwidth-test")
        assert found.curves["h2d_pinned"].points == ((1000, 0.4), (67186688, 12.1))
        assert flagged(found, "withdrawn")


class TestNvBandwidth:
    def test_matrices_and_what_was_waived(self) -> None:
        found = read("nvbandwidth/seven-gpus")
        assert found.status == "ok"
        assert found.metrics["host_to_device_memcpy_ce_min_gb_per_s"] == 55.58
        assert "device_to_device_bidirectional_memcpy_read_ce" not in found.matrices
        assert flagged(found, "not run on this machine: device_to_device_bidirectional_memcpy_read_ce")

    def test_a_diagonal_is_not_zero_but_absent_and_latencies_are_in_ns(self) -> None:
        found = read("nvbandwidth/old-diagonal")
        assert found.matrices["device_to_device_memcpy_write_ce"].values == ((None, 276.07), (276.19, None))
        assert found.matrices["device_to_device_latency_sm"].unit == "ns"
        assert found.metrics["device_to_device_latency_sm_max_ns"] == 771.05

    def test_the_document_says_the_same_and_its_cells_are_strings(self) -> None:
        found = read("nvbandwidth/document")
        assert found.matrices["device_to_device_memcpy_read_ce"].values == ((None, 20.5), (20.7, None))
        assert read("nvbandwidth/document", ('"Passed"', '"Error"')).status == "invalid"

    def test_cells_that_do_not_add_up_are_not_all_there(self) -> None:
        assert read(
            "nvbandwidth/seven-gpus", ("SUM host_to_device_memcpy_ce 389.15", "SUM host_to_device_memcpy_ce 444.73")
        ).status == ("incomplete")
        bidirectional = ("host_to_device_memcpy_ce", "host_to_device_bidirectional_memcpy_ce")
        assert flagged(read("nvbandwidth/seven-gpus", bidirectional), "one direction")


class TestOsu:
    def test_megabytes_are_a_million_bytes(self) -> None:
        found = read("osu/bandwidth-validated")
        assert (found.status, found.metrics) == ("ok", {"bandwidth_peak_gb_per_s": pytest.approx(279.57325)})
        assert len(found.curves["bandwidth"].points) == 3
        assert (
            read("osu/bandwidth-validated", ("91234.12            [Pass]", "91234.12            [Fail]")).status
            == "invalid"
        )

    def test_latencies_collectives_and_barriers(self) -> None:
        assert read("osu/latency-cuda").metrics == {"latency_us": 2.48}
        assert read("osu/bcast-full").curves["broadcast_latency"].points[-1] == (8, 7.38)
        assert read("osu/barrier").metrics == {"barrier_latency_us": 3.27}
        assert flagged(read("osu/bibw"), "sum of both directions")

    def test_several_programs_at_once_are_not_believed(self) -> None:
        assert (
            read("osu/bcast-full", ("4                       6.04", "1                       6.04")).status == "invalid"
        )


class TestPerftest:
    def test_megabytes_are_binary_and_gigabits_are_not(self) -> None:
        found = read("perftest/write-bw")
        assert found.metrics["bandwidth_gb_per_s"] == pytest.approx(24056.72 * 2**20 / 1e9)
        assert flagged(found, "frequency")
        gbits = read("perftest/gbits")
        assert gbits.metrics["bandwidth_gb_per_s"] == pytest.approx(98.26 / 8)
        assert "bandwidth_peak" not in gbits.curves  # 0.00 is not measured
        assert flagged(gbits, "sum of both directions")

    def test_of_client_and_server_the_slower_counts(self) -> None:
        found = read("perftest/client-and-server")
        assert found.curves["bandwidth"].points[0] == (2, pytest.approx(5.29 * 2**20 / 1e9))
        assert flagged(found, "client and server")

    def test_bandwidth_and_message_rate_belong_together(self) -> None:
        assert read("perftest/write-bw", ("24056.72", "34056.72")).status == "invalid"

    def test_latency(self) -> None:
        assert read("perftest/write-lat").metrics == {"latency_us": 1.08}
