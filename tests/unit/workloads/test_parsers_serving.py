"""What the numbers of clients of inference servers mean, and where they mislead, on saved results."""

from __future__ import annotations

import json
from typing import Any

import pytest

from campaign.workloads.load import Request
from campaign.workloads.log_reader import Log
from campaign.workloads.parsers import Reading, Scope, read_log
from tests.unit.workloads.parsed import flagged, read, text_of


def changed(name: str, *without: str, **changes: Any) -> Reading:
    """A saved result file with other values."""
    document = {key: value for key, value in json.loads(text_of(name).splitlines()[-1]).items() if key not in without}
    return read_log(name.partition("/")[0], Log.of(json.dumps(document | changes)), Scope())


class TestVllm:
    def test_printed_and_written_results_have_the_same_names(self) -> None:
        printed, written = read("vllm/poisson"), read("vllm/file")
        assert (printed.status, printed.throughput_per_s) == ("ok", 0.98)
        assert printed.metrics["ttft_ms_p99"] == 143.33
        assert printed.metrics["ttft_ms_p50"] == 95.70
        assert printed.metrics["tpot_ms_mean"] == 27.91
        assert printed.metrics["prompt_tokens_per_s"] == pytest.approx(196.55, rel=1e-3)
        assert set(printed.metrics) == set(written.metrics)
        assert (written.metrics["requests"], written.metrics["errors"], written.metrics["errors_pct"]) == (200, 1, 0.5)
        assert printed.flags == written.flags == ()

    def test_without_a_count_of_failures_this_is_flagged(self) -> None:
        assert flagged(read("vllm/2024-layout"), "does not report failed requests")

    def test_requests_one_by_one_count_from_before_the_wait_in_the_client(self) -> None:
        found = read("vllm/detailed")
        assert found.requests[0] == Request(0.0, 0.0, 0.1, 0.22, 100, 3, None, 100, 3, False)
        assert found.requests[1].error == "aiohttp.client_exceptions.ServerDisconnectedError: Server disconnected"
        assert found.requests[1].e2e_ms == float("inf")
        late = found.requests[2]
        assert (late.intended_s, late.sent_s, late.first_s, late.last_s) == pytest.approx((1.25, 1.5, 1.7, 1.8))
        assert found.metrics["ttft_ms_p99_9"] == 199.9
        assert found.metrics["e2e_ms_p50"] == 260.0
        assert flagged(found, "at most 2 requests at a time")
        older = changed("vllm/detailed", "latencies", "queue_times")
        assert (older.requests[2].sent_s, older.requests[2].last_s) == pytest.approx((1.5, 1.8))

    @pytest.mark.parametrize(
        "changes",
        [
            {"ttfts": [0.1]},
            {"ttfts": None},
            {"start_times": ["x", "y", "z"]},
            {"start_times": [0.0] * 3},
            {"itls": [[float("nan")], [0.1], []], "latencies": None},
            {"errors": [""]},
            {"input_lens": [-1, 2, 3]},
        ],
    )
    def test_lists_that_do_not_belong_together_are_not_taken(self, changes: dict[str, Any]) -> None:
        found = changed("vllm/detailed", **changes)
        assert (found.status, found.requests) == ("ok", ())
        assert flagged(found, "do not belong together")

    def test_a_result_that_contradicts_itself_is_not_believed(self) -> None:
        assert changed("vllm/file", request_throughput=9.7).status == "invalid"
        assert changed("vllm/file", output_throughput=12.4).status == "invalid"
        assert changed("vllm/file", p99_ttft_ms=float("nan")).status == "nan"
        none = changed("vllm/file", completed=0, failed=200, request_throughput=0.0, output_throughput=0.0)
        assert (none.status, none.problem, none.throughput_per_s) == ("invalid", "no request succeeded", None)
        assert changed("vllm/file", "duration").status == "incomplete"

    def test_the_last_of_several_results_counts(self) -> None:
        whole = text_of("vllm/poisson") + text_of("vllm/2024-layout")
        found = read_log("vllm", Log.of(whole), Scope())
        assert found.throughput_per_s == 19.5
        assert flagged(found, "several results")
        cut = read_log("vllm", Log.of(whole[:-60]), Scope())
        assert (cut.status, cut.throughput_per_s) == ("incomplete", None)

    def test_a_file_longer_than_a_line_of_text_is_read(self) -> None:
        found = changed("vllm/detailed", generated_texts=["x" * (17 << 20)])
        assert (found.status, len(found.requests)) == ("ok", 3)


class TestSglang:
    def test_the_table_and_its_traps(self) -> None:
        found = read("sglang/concurrency-64")
        assert (found.status, found.throughput_per_s) == ("ok", 6.05)
        assert found.metrics["e2e_ms_p90"] == 12654.31
        assert found.metrics["itl_ms_max"] == 665.84
        assert found.metrics["output_tokens_per_s"] == 195.18  # not the retokenized ones
        assert "offered_per_s" not in found.metrics  # all at once
        assert flagged(found, "does not report failed requests")
        assert not flagged(found, "at a time")  # a closed loop waits for nothing

    def test_the_last_line_of_the_file_is_the_last_run(self) -> None:
        found = read("sglang/file")
        assert (found.throughput_per_s, found.metrics["ttft_ms_p99"], found.metrics["e2e_ms_p50"]) == (
            4.0,
            300.0,
            1390.0,
        )
        assert flagged(found, "several results")
        assert flagged(found, "leave out the wait")

    def test_details_without_times_are_flagged(self) -> None:
        found = changed("sglang/file", ttfts=[0.1], itls=[[0.1]], input_lens=[1], output_lens=[2], errors=[""])
        assert found.requests == ()
        assert flagged(found, "does not say when requests started")


class TestTrtllmBench:
    def test_what_it_prints_and_its_report(self) -> None:
        printed, report = read("trtllm_bench/streaming"), read("trtllm_bench/report")
        assert (printed.status, printed.throughput_per_s) == ("ok", 86.5373)
        assert printed.metrics["ttft_ms_p95"] == 226.9148
        assert printed.metrics["e2e_ms_mean"] == 1093.2284
        assert printed.metrics["output_tokens_per_s"] == 11076.77
        assert (report.status, report.throughput_per_s, report.metrics["e2e_ms_p99"]) == ("ok", 1.4439, 5514.4701)
        assert report.metrics["requests"] == 10
        assert flagged(printed, "without a server")

    def test_what_does_not_belong_together_is_not_believed(self) -> None:
        assert read("trtllm_bench/report", ("1.4439", "14.4")).status == "invalid"
        assert read("trtllm_bench/report", ('"performance"', '"other"')).status == "incomplete"
        assert read("trtllm_bench/streaming", ("162.6706\n[TTFT]", "nan\n[TTFT]")).status == "nan"
        assert read("trtllm_bench/streaming", ("= DATASET DETAILS", "")).status == "incomplete"


class TestMlperfInference:
    def test_the_rate_is_that_of_completed_samples(self) -> None:
        found = read("mlperf_inference/server-tokens")
        assert (found.status, found.throughput_per_s) == ("ok", 99.86)
        assert found.metrics["offered_per_s"] == 104.15
        assert found.metrics["ttft_ms_p99"] == pytest.approx(1760.966679)
        assert found.metrics["tpot_ms_p99_9"] == pytest.approx(227.870358)
        assert found.metrics["e2e_ms_mean"] == pytest.approx(37756.80707)
        assert found.metrics["output_tokens_per_s"] == 29522.56

    def test_latencies_of_the_offline_scenario_are_nobodys(self) -> None:
        found = read("mlperf_inference/offline")
        assert (found.status, found.throughput_per_s) == ("ok", 17.0963)
        assert set(found.metrics) == {"requests_per_s"}

    def test_an_invalid_result_is_not_believed(self) -> None:
        found = read("mlperf_inference/detail-invalid")
        assert (found.status, found.throughput_per_s) == ("invalid", 0.98)
        assert found.metrics["tpot_ms_p99"] == pytest.approx(1.5)
        assert found.metrics["tpot_ms_mean"] == pytest.approx(1.1)
        assert found.metrics["ttft_ms_p99"] == pytest.approx(12.0)
        assert found.metrics["e2e_ms_p50"] == pytest.approx(18.753138)
        broken = ("Result is : VALID", "Result is : INVALID")
        assert read("mlperf_inference/server-tokens", broken).status == "invalid"

    def test_a_run_for_accuracy_measures_no_performance(self) -> None:
        found = read("mlperf_inference/server-tokens", ("PerformanceOnly", "AccuracyOnly"))
        assert (found.status, found.throughput_per_s) == ("incomplete", None)
        errors = read("mlperf_inference/server-tokens", ("No errors encountered", "3 ERRORS encountered"))
        assert flagged(errors, "encountered errors")


def test_another_programs_output_is_no_result() -> None:
    for name, other in (
        ("vllm", "mlperf_inference/offline"),
        ("trtllm_bench", "vllm/file"),
        ("mlperf_inference", "sglang/file"),
    ):
        assert read_log(name, Log.of(text_of(other)), Scope()).status == "incomplete"
