"""What the generator measures is what queueing theory, and the server itself, say of every request."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from statistics import fmean, median

import pytest

from campaign.emulators.queueing_server import QueueingServer
from campaign.workloads.load import Load, flags, summary, window
from campaign.workloads.load.generator import apply
from tests.queueing_theory import erlang_c, md1_mean, mmc, quantile
from tests.queues_under_truth import QUEUES, covering, errors_of_mean, measured, shares
from tests.simulated_clock import Clock, run_simulated

STEADY = Load(prompt_tokens=4, output_tokens=2, arrivals="fixed", timeout_s=100)


@pytest.mark.parametrize("name", QUEUES)
def test_every_latency_is_that_of_the_server_from_the_intended_start(name: str) -> None:
    done, server = measured(QUEUES[name], 250, seed=3)
    begin = server.served[0].arrival
    for row, served in zip(done, server.served[-len(done) :], strict=True):
        assert row.error is None
        assert row.e2e_ms == pytest.approx((served.end - begin - row.intended_s) * 1e3, abs=1e-6)
        first = served.start + (served.end - served.start) / 5
        assert row.ttft_ms == pytest.approx((first - begin - row.intended_s) * 1e3, abs=1e-6)
        assert row.tpot_ms == pytest.approx((served.end - first) / 4 * 1e3, abs=1e-6)


@pytest.mark.parametrize("name", ["M/M/1, load 0.5", "M/M/3, load 0.5", "M/D/1, load 0.5"])
def test_percentiles_are_those_of_theory(name: str) -> None:
    found = shares(QUEUES[name], runs=6, requests=200)
    for percent in (50, 90):
        assert abs(errors_of_mean(found[percent], percent)) < 2.4  # in full size: python -m tests.benchmarks.queues
        assert covering(found[percent], percent) >= 5


def test_theory_is_that_of_textbooks() -> None:
    assert erlang_c(1, 0.7) == pytest.approx(0.7)
    assert erlang_c(2, 1.0) == pytest.approx(1 / 3)
    assert quantile(mmc(10, 0.05, 1), 0.99, 2) == pytest.approx(0.4605170)  # ln(100) / (mu - lambda)
    done, _ = measured(QUEUES["M/D/1, load 0.5"], 1500, seed=1)
    assert fmean(row.e2e_ms for row in done) == pytest.approx(1e3 * md1_mean(10, 0.05), rel=0.08)


def stalled(options: dict[str, float]) -> dict[str, float]:
    """A server that answers in 2 ms stands still for 1 s of 10."""
    server = QueueingServer("constant", 0.002, stall=(5.0, 1.0))
    load = STEADY.for_run(options)
    done = run_simulated(lambda: apply(load, "http://queue:80"), server.handle)
    return summary(done, window(load, done))


def test_a_stall_is_met_by_every_request_that_was_to_start_in_it() -> None:
    found = stalled({"rate_per_s": 100, "duration_s": 10})
    # A tenth of the requests starts in the stall and waits for its end, and a little longer for those before it.
    assert found["requests"] == 1000
    assert found["e2e_ms_p50"] == pytest.approx(2, abs=0.1)
    assert 600 < found["e2e_ms_p95"] < 700
    assert 900 < found["e2e_ms_p99"] <= 1002


def test_a_closed_loop_omits_what_a_stall_does_to_users_that_do_not_wait_for_each_other() -> None:
    found = stalled({"concurrency": 1, "duration_s": 6.5})
    assert found["e2e_ms_p99"] == pytest.approx(2, abs=0.1)
    assert found["e2e_ms_max"] == pytest.approx(1002, abs=3)


def test_a_generator_that_stands_still_counts_from_the_intended_start_and_is_flagged() -> None:
    server = QueueingServer("constant", 0.002)
    load = STEADY.for_run({"rate_per_s": 100, "duration_s": 10})

    async def paused() -> list[object]:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, Clock)
        loop.call_later(5.0, loop.pause, 1.0)
        return list(await apply(load, "http://queue:80"))

    done = run_simulated(paused, server.handle)
    within = window(load, done)  # type: ignore[arg-type]
    assert summary(done, within)["e2e_ms_p95"] > 600  # type: ignore[arg-type]
    assert any("load generator was late" in flag for flag in flags(done, within))  # type: ignore[arg-type]
    # Counted from when they were sent, the requests that met the pause look better than they were.
    sent = [replace(row, intended_s=row.sent_s) for row in done]  # type: ignore[call-overload]
    assert summary(sent, within)["e2e_ms_p95"] < 300


@pytest.mark.alone  # a busy machine delays each answer by as much as it likes
def test_over_sockets_a_latency_is_that_of_the_server_and_what_the_way_takes() -> None:
    load = Load(prompt_tokens=4, output_tokens=5).for_run({"rate_per_s": 100, "requests": 100})
    queue = QueueingServer("exponential", 0.005)

    async def over_sockets() -> list[float]:
        server = await asyncio.start_server(queue.handle, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        begin = asyncio.get_running_loop().time()
        done = await apply(load, f"http://127.0.0.1:{port}/v1")
        server.close()
        assert not [row.error for row in done if row.error]
        by_end = sorted(row.last_s or 0 for row in done)
        ends = sorted(served.end for served in queue.served)
        return [one - (other - begin) for one, other in zip(by_end, ends, strict=True)]

    # The load began a little after `begin`, when the server had said its model; no answer came before the server ended it.
    differences = asyncio.run(over_sockets())
    assert median(differences) < 0.1
    assert max(differences) - min(differences) < 0.5
