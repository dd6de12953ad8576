"""The simulated truth of steps is itself right where it can be worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from campaign.documents.cell import Configuration
from tests.simulated_campaigns import Simulated
from tests.step_simulator import DDP, MIB, TRACES, Floats, How, Layer, Machine, Ring, Trace, step_s
from tests.unit.report import report_data

# Three layers of 26 MiB in four bytes; forward, backward and optimizer take 3, 6 and 1 of 10.
PLAIN = Trace("plain", (Layer(1.0, 2.0, (26 * MIB // 4,)),) * 3, 1.0)


def ring(n: int, bytes_per_s: float = 1e9, alpha_s: float = 0.0) -> Ring:
    return Ring(np.array([float(n)]), np.array([alpha_s]), np.array([bytes_per_s]))


def step(n: int = 2, how: How = DDP, trace: Trace = PLAIN, **link: float) -> float:
    found: Floats = step_s(trace, np.array([1.0]), ring(n, **link), 4, how)
    return float(found[0])


BUCKET_S = 26 * MIB / 1e9  # of two ranks, 2(n-1)/n of it at 1 GB/s


def test_only_the_last_bucket_is_seen_where_links_are_fast_and_all_but_the_first_layer_where_they_are_slow() -> None:
    assert step() == pytest.approx(1.0 + BUCKET_S)
    slow = 20 * BUCKET_S
    assert step(bytes_per_s=5e7) == pytest.approx(0.3 + 0.2 + 3 * slow + 0.1)
    assert step(bytes_per_s=5e7, how=How(overlap=False)) == pytest.approx(0.9 + 3 * slow + 0.1)
    assert step(1) == 1.0


def test_a_latency_is_paid_in_every_bucket_and_accumulation_hides_nothing_more() -> None:
    assert step(4, alpha_s=0.5) == pytest.approx(0.3 + 0.2 + 3 * (6 * 0.5 + 1.5 * BUCKET_S) + 0.1)
    slow = 20 * BUCKET_S
    split = step(bytes_per_s=5e7, how=How(accumulation=3))
    assert split == pytest.approx(0.9 * 2 / 3 + 0.1 + 0.2 / 3 + 3 * slow + 0.1)


def test_buckets_are_those_of_ddp() -> None:
    small = Trace("small", (Layer(1, 2, (MIB // 8,) * 4),) * 30, 1.0)  # 60 MiB in layers of 2 MiB
    sizes = [round(size / MIB, 2) for _, size in small.buckets(4)]
    assert sizes == [1.0, 25.0, 25.0, 9.0]
    assert [size / MIB for _, size in small.buckets(4, 20.0)] == [20.0, 20.0, 20.0]
    assert small.buckets(4)[-1][0] == 1.0


def test_strategies_send_what_they_send() -> None:
    size = 3 * 26 * MIB / 1e9
    assert step(how=How("dp")) == pytest.approx(1.0 + 2 * size)
    assert step(how=How("zero1")) == pytest.approx(step() + size / 2)
    # The first gather and the last scatter are seen; where links are slow, three times all weights.
    assert step(how=How("fsdp")) == pytest.approx(1.0 + BUCKET_S)
    assert step(how=How("fsdp"), bytes_per_s=1e6) == pytest.approx(3 * 500 * size, rel=0.01)


def test_cells_of_a_plan_take_the_slowest_link_of_their_way_and_wait_for_storage() -> None:
    links = {"local": (0.0, 30e9), "fabric": (0.0, 12e9), "network": (0.0, 1e9)}
    machine = Machine(
        {"plain": replace(PLAIN, input_bytes=1e9)}, {("plain", "A100", "fp32"): (0.0, 0.1)}, links, {"nvme": 1e9}
    )

    def of(at: Configuration, **options: str) -> float:
        return float(machine.step_s([report_data.cell(at, "plain", 10, "fp32", **options)])[0])

    assert of(report_data.configuration(hosts=2, each=1)) == pytest.approx(step())
    assert of(report_data.configuration(each=2)) == pytest.approx(step(bytes_per_s=12e9))
    assert of(report_data.configuration(each=2, storage="nvme"), input="storage") == pytest.approx(20.0)


def test_a_campaign_deviates_by_what_is_asked() -> None:
    links = dict.fromkeys(("local", "fabric", "network"), (1e-5, 1e10))
    machine = Machine(TRACES, {("bert-base", "A100", "fp32"): (0.01, 0.005)}, links)
    cells = [report_data.cell(report_data.configuration(each=n), "bert-base", b) for n in (1, 2, 4) for b in (4, 8)]
    simulated = Simulated(machine, tuple(cells), compositions=10, repetitions=20)
    runs = simulated.tables(np.random.default_rng(1), lease=0.03, run=0.01).runs
    off = np.log(runs["throughput_per_s"] / simulated.true_rate[runs["cell_id"]].to_numpy())
    by_lease = off.groupby([runs["cell_id"], runs["lease_id"]])
    assert by_lease.std().mean() == pytest.approx(0.01, rel=0.1)
    assert by_lease.mean().std() == pytest.approx(0.03, rel=0.25)
