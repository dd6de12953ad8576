"""What leases will take and cost: medians of what was measured, or unknown."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from campaign.cli.cost_table import build_cost_table
from campaign.common.errors import ConfigError
from campaign.fabrics.operations import OperationCounts, OperationSteps
from campaign.plan.campaign.open_fabric import PlannedPlacement
from campaign.plan.concurrency import estimate_wall_s, resource_limits, resource_needs
from campaign.plan.cost import (
    DEFAULT_FACTOR,
    MIN_FORECAST_RATIOS,
    PARTS,
    ChargeCalculator,
    CostModel,
    LeaseForecastParts,
    LeaseWork,
    compute_interval_factors,
    derive_release,
)
from campaign.plan.dag import read_plan
from campaign.plan.lease_plans import build_lease_plans
from campaign.plan.past_costs import CampaignCosts, CellCost, LeaseCost
from campaign.plan.request import PlanRequest
from campaign.plan.write import build_plan_document
from campaign.spec.cell import Cell, Configuration, Settings
from campaign.spec.operation_times import read_published_times
from tests.campaign_files import load, write_files
from tests.forecasts_held import hold_demo, hold_planted, hold_recordings, summarize

LOCAL = Configuration("1x2-local", 1, 2, 2, 2, "gpu", "local", "local", system="s")
FABRIC = Configuration("1x2-fabric", 1, 2, 0, 2, "gpu", "fabric", "local", system="s")
WIDE = replace(LOCAL, name="1x4-local", devices_per_host=4, local_devices_per_host=4, devices_used=4)
SECONDS = st.floats(0.01, 1e5)


def cell(name: str, configuration: Configuration = LOCAL, workload: str = "w", limit_s: int = 3600) -> Cell:
    return Cell(name, configuration, workload, 1, "fp32", {}, Settings(time_limit_s=limit_s))


def ran(name: str, *seconds: float, configuration: Configuration = LOCAL, believed: bool = True) -> CellCost:
    return CellCost(name, configuration.shape(), "w", len(seconds), believed, seconds)


def lease(name: str, configuration: Configuration, *seconds: float | None, off: float | None = None) -> LeaseCost:
    """One with its times of composing, in the queue, to start, between two runs, and of the release."""
    compose_s, queue_s, start_s, between_s, end_s = seconds
    return LeaseCost(name, configuration.shape(), 3, compose_s, start_s, between_s, end_s, queue_s, off)


def model(*cells: CellCost, leases: tuple[LeaseCost, ...] = (), **others: Any) -> CostModel:
    return CostModel({"s": "h3"}, [CampaignCosts("a", "x", cells, leases, fabric="h3")], **others)


def test_a_run_takes_the_median_of_what_is_most_like_it() -> None:
    known = model(
        ran("a", 1.0, 2.0, 9.0), ran("b", 4.0), ran("c", 8.0, 8.0, configuration=WIDE), priors={"w": 50.0, "v": 60.0}
    )
    assert known.estimate_run_s(cell("a")) == (2.0, "earlier runs of these cells")
    assert known.estimate_run_s(cell("new")) == (3.0, "earlier runs of the workload on the same number of devices")
    one = replace(LOCAL, name="1x1", devices_per_host=1, local_devices_per_host=1, devices_used=1)
    assert known.estimate_run_s(cell("new", one)) == (6.0, "earlier runs of the workload")
    assert known.estimate_run_s(cell("new", replace(LOCAL, device="other"))) == (50.0, "the workload file")
    assert known.estimate_run_s(cell("new", workload="v")) == (60.0, "the workload file")
    assert known.estimate_run_s(cell("new", workload="u")) == (None, "no run of u yet")
    assert known.estimate_run_s(cell("a", limit_s=1)) == (1.0, "earlier runs of these cells"), (
        "no run outlasts its limit"
    )


def test_a_cell_that_failed_tells_of_nothing_but_itself() -> None:
    known = model(ran("a", 0.1, believed=False))
    assert known.estimate_run_s(cell("a"))[0] == 0.1
    assert known.estimate_run_s(cell("b"))[0] is None


def test_a_lease_takes_the_median_of_leases_with_as_many_devices_of_the_fabric() -> None:
    four = replace(FABRIC, name="1x4-fabric", devices_per_host=4, devices_used=4)
    leases = (
        lease("1", FABRIC, 10.0, 1.0, 2.0, 0.5, 3.0), lease("2", FABRIC, 20.0, 1.0, 4.0, 0.5, 5.0),
        lease("3", FABRIC, 60.0, None, 6.0, None, 7.0), lease("4", four, 100.0, None, 9.0, None, 50.0),
        lease("5", LOCAL, 0.5, None, 0.1, None, 0.2),
    )  # fmt: skip
    known = model(ran("a", 7.0), leases=leases)
    assert known.forecast(LeaseWork(FABRIC, [(cell("a"), 3)])).parts == {
        "composing": 20.0, "queue": 1.0, "start": 4.0, "runs": 3 * 7.0 + 2 * 0.5, "release": 5.0,
    }  # fmt: skip
    local = known.forecast(LeaseWork(LOCAL, [(cell("a"), 1)]))
    assert (local.parts["composing"], local.parts["start"], local.parts["runs"]) == (0.5, 0.1, 7.0)
    assert local.expected_s == pytest.approx(0.5 + 1.0 + 0.1 + 7.0 + 0.2)
    three = replace(FABRIC, devices_per_host=3, devices_used=3)
    assert known.forecast(LeaseWork(three, [(cell("a"), 1)])).parts["composing"] is None, (
        "two and four tell nothing of three"
    )
    assert known.forecast(LeaseWork(LOCAL, [])).expected_s == 0.0


def test_where_nothing_was_composed_recorded_times_of_the_fabric_tell() -> None:
    times = read_published_times("h3")
    counts = {("detach", "gpu", "b"): 2, ("attach", "gpu", "b"): 2, ("inventory", "", ""): 1, ("rest", "", ""): 1}
    known = model(ran("a", 1.0), operation_times=lambda _: times)
    expected = known.forecast(LeaseWork(FABRIC, [(cell("a"), 1)], OperationCounts(counts)))  # type: ignore[arg-type]
    seconds = {name: median(times.select_seconds(name)) for name in ("detach", "attach", "inventory", "read_back")}  # type: ignore[arg-type]
    assert expected.parts["composing"] == pytest.approx(
        2 * seconds["detach"] + 2 * seconds["attach"] + seconds["inventory"]
    )
    assert expected.parts["release"] == pytest.approx(2 * (seconds["detach"] + seconds["read_back"]))
    assert list(known.time_sources) == [times.source]
    steps = OperationSteps(detach=("detach", "request", "request"))
    assert derive_release(OperationCounts(counts), steps).counts == {
        ("detach", "gpu", "b"): 2,
        ("request", "gpu", "b"): 4,
    }  # type: ignore[arg-type]
    never = OperationCounts({("request", "", ""): 1})
    assert known.forecast(LeaseWork(FABRIC, [(cell("a"), 1)], never)).parts["composing"] is None
    assert known.forecast(LeaseWork(FABRIC, [(cell("a"), 1)])).expected_s is None
    own = model(ran("a", 1.0), leases=(lease("1", FABRIC, 3.0, 0.0, 0.0, 0.0, 1.0),), operation_times=lambda _: times)
    assert own.forecast(LeaseWork(FABRIC, [(cell("a"), 1)], OperationCounts(counts))).parts["composing"] == 3.0  # type: ignore[arg-type]


@given(
    known=st.lists(st.tuples(st.sampled_from("abc"), SECONDS)),
    planned=st.lists(st.tuples(st.sampled_from("abcde"), st.integers(1, 5)), min_size=1),
    is_composed=st.booleans(),
)
def test_what_is_unknown_is_never_a_number(
    known: list[tuple[str, float]], planned: list[tuple[str, int]], is_composed: bool
) -> None:
    """A workload a cell, so that only runs of the cell tell its time."""
    cells = [replace(ran(name, seconds), workload=name) for name, seconds in known]
    costs = model(*cells)
    configuration = FABRIC if is_composed else LOCAL
    work = LeaseWork(configuration, [(cell(name, configuration, name), count) for name, count in planned])
    expected, unknown = costs.forecast(work), costs.count_unknown([work])
    names = {name for name, _ in known}
    assert unknown.run_count == sum(count for name, count in planned if name not in names)
    assert unknown.leases == is_composed
    assert (expected.expected_s is None) == bool(unknown) == (expected.low_s is None) == (expected.high_s is None)
    if expected.expected_s is not None:
        assert math.isfinite(expected.expected_s)
        assert expected.low_s <= expected.expected_s <= expected.high_s  # type: ignore[operator]
        assert expected.expected_s == pytest.approx(sum(expected.parts[part] or 0.0 for part in PARTS))


@given(st.lists(st.floats(0.01, 100)))
def test_the_interval_holds_the_median_and_what_forecasts_were_off(offs: list[float]) -> None:
    low, high = compute_interval_factors(offs)
    assert low <= 1 <= high
    if len(offs) < MIN_FORECAST_RATIOS:
        assert (low, high) == (1 / DEFAULT_FACTOR, DEFAULT_FACTOR)
    else:
        assert sum(low <= off <= high for off in offs) >= 0.95 * len(offs) - 2


def test_the_interval_follows_from_the_leases_that_ended() -> None:
    offs = (0.8, 0.9, 1.0, 1.2, 1.5)
    leases = tuple(lease(str(n), LOCAL, 0.0, 0.0, 0.0, 0.0, 0.0, off=off) for n, off in enumerate(offs))
    expected = model(ran("a", 10.0), leases=leases).forecast(LeaseWork(LOCAL, [(cell("a"), 1)]))
    assert (expected.low_s, expected.expected_s, expected.high_s) == pytest.approx((8.0, 10.0, 15.0))
    few = model(ran("a", 10.0), leases=leases[:4]).forecast(LeaseWork(LOCAL, [(cell("a"), 1)]))
    assert (few.low_s, few.high_s) == (5.0, 20.0)
    elsewhere = CostModel({"s": "static"}, [CampaignCosts("a", "x", (), leases, fabric="h3")])
    assert elsewhere.factors == (0.5, 2.0), "leases of another kind of fabric tell nothing"


def test_forecasts_of_recorded_and_planted_campaigns_hold() -> None:
    """`python -m tests.benchmarks.forecasts` prints the table, with more campaigns."""
    assert 80 <= summarize([each for outcomes in hold_demo() for each in outcomes]).held_pct <= 97
    assert 80 <= summarize(hold_recordings()).held_pct <= 97
    for share in (0.0, 0.5, 1.0):
        assert 80 <= summarize([each for seed in range(20) for each in hold_planted(seed, share)]).held_pct <= 97


@given(
    st.lists(
        st.tuples(st.sampled_from(["1x1-local", "1x2-local", "1x1-fabric", "1x2-fabric"]), st.floats(0, 1e4)),
        max_size=8,
    )
)
def test_a_schedule_is_no_shorter_than_its_work_and_its_longest_lease(
    campaign: Any, planned: list[tuple[str, float]]
) -> None:
    configurations = {each.name: each for each in campaign.configurations}
    leases = [(configurations[name], seconds) for name, seconds in planned]
    whole_s = estimate_wall_s(campaign, leases, cores=64)
    total_s, longest_s = sum(seconds for _, seconds in planned), max((seconds for _, seconds in planned), default=0.0)
    assert longest_s - 1e-6 <= whole_s <= total_s + 1e-6
    for resource, amount in resource_limits(campaign).items():
        work_s = sum(seconds * resource_needs(campaign, configuration)[resource] for configuration, seconds in leases)
        assert whole_s >= work_s / amount - 1e-6


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return load(tmp_path_factory.mktemp("campaign"), {"campaign.protocol.isolation": "host"})


HYBRID = Configuration("1x3-hybrid1", 1, 3, 1, 2, "cpu-rank", "hybrid", "local")
SLURM: dict[str, Any] = {
    "system.launcher": "slurm",
    "system.slurm": {"partition": "gpu", "gres": "gpu:a100", "exclusive": True},
    "system.hosts": [{"name": "host[1-2]", "cores": 4, "devices": [{"model": "cpu-rank", "count": 8}]}],
}
TOOK = LeaseForecastParts(1750.0, parts=dict(zip(PARTS, (60.0, 600.0, 40.0, 1020.0, 30.0), strict=True)))
JOB_S, WHOLE_S = 1060.0, 1750.0


def charge(directory: Path, changes: dict[str, Any], configuration: Configuration, *hosts: str) -> Any:
    charges = ChargeCalculator(load(directory, changes), {configuration.name: PlannedPlacement(hosts=hosts)})
    return charges(LeaseWork(configuration, [(cell("c", configuration, "steps", 600), 4)]), TOOK)


@pytest.mark.parametrize(
    ("slurm", "devices", "device_s", "host_s", "idle"),
    [
        # 8 of the host's own and 2 from the pool; Slurm's job begins after composing. Two are used.
        ({}, 10, 2 * WHOLE_S + 8 * JOB_S, JOB_S, 8),
        ({"strategy": "reservation"}, 10, 10 * WHOLE_S, WHOLE_S, 8),
        ({"strategy": "resume"}, 10, 10 * WHOLE_S, WHOLE_S, 8),
        ({"exclusive": False}, 3, 2 * WHOLE_S + JOB_S, JOB_S, 1),
    ],
)
def test_whole_hosts_are_held_with_what_is_idle_on_them(
    tmp_path: Path, slurm: dict[str, Any], devices: int, device_s: float, host_s: float, idle: int
) -> None:
    found = charge(tmp_path, {**SLURM, "system.slurm": {**SLURM["system.slurm"], **slurm}}, HYBRID, "host1")
    assert (found.devices, found.devices_idle) == (devices, idle)
    assert found.device_hours == pytest.approx(device_s / 3600, abs=1e-6)
    assert found.host_hours == pytest.approx(host_s / 3600, abs=1e-6)
    assert (found.partition, found.time_limit_min) == ("gpu", 44)


def test_hosts_that_lend_devices_are_held_with_what_is_left_on_them(tmp_path: Path) -> None:
    """As on a system where whoever gathers four GPUs on one host reserves the four hosts that they belong to."""
    pool = [{"model": "cpu-rank", "count": 8, "home": "host[1-4]"}]
    hosts = [{"name": "host[1-4]", "cores": 4, "devices": [{"model": "cpu-rank", "count": 1}]}]
    changes = {**SLURM, "system.pool": pool, "system.hosts": hosts}
    five = Configuration("1x5-fabric", 1, 5, 0, 5, "cpu-rank", "fabric", "local")
    found = charge(tmp_path, changes, five, "host2")
    # Two that belong to it, two of the first host and one of the third; one of the third and those that are built in are idle.
    assert (found.donors, found.devices, found.devices_idle) == (2, 9, 4)
    assert found.host_hours == pytest.approx((2 * WHOLE_S + JOB_S) / 3600, abs=1e-6)
    assert charge(tmp_path, changes, replace(five, devices_per_host=2, devices_used=2), "host2").donors == 0
    with pytest.raises(ConfigError, match="has the home 'host9', which is not a host"):
        load(tmp_path, {"system.pool": [{"model": "cpu-rank", "count": 1, "home": "host9"}]})


def test_without_slurm_a_lease_holds_what_it_names(tmp_path: Path) -> None:
    found = charge(tmp_path, {}, HYBRID, "host1")
    assert (found.devices, found.devices_idle, found.time_limit_min, found.gres) == (3, 1, None, "")
    assert (found.device_hours, found.host_hours) == pytest.approx((3 * WHOLE_S / 3600, WHOLE_S / 3600), abs=1e-6)


def test_what_is_unknown_has_no_cost_and_the_longest_time_limit(tmp_path: Path) -> None:
    charges = ChargeCalculator(load(tmp_path, SLURM), {})
    found = charges(LeaseWork(HYBRID, [(cell("c", HYBRID, "steps", 600), 4)]), LeaseForecastParts(None))
    assert (found.device_hours, found.host_hours, found.price, found.time_limit_min) == (None, None, None, 50)


@pytest.mark.parametrize(
    ("priced", "words"), [({"price_per_h": 2.0}, "8.00"), ({"price_per_h": 0.0018}, "0.01"), ({}, "unknown")]
)
def test_the_plan_the_table_and_the_lease_plans_say_the_same(
    tmp_path: Path, priced: dict[str, float], words: str
) -> None:
    changes: dict[str, Any] = {
        "system.devices": {"cpu-rank": {"runs_on": "cpu", **priced}},
        "system.currency": "EUR",
        "workloads.steps.run_s": 600.0,
        "campaign.configurations": [{"devices_per_host": [1, 2]}],
        "campaign.protocol.compositions": 2,
    }
    plan = read_plan(PlanRequest(write_files(tmp_path, changes), tmp_path / "results"))
    document, table = build_plan_document(plan), build_cost_table(plan)
    charges = [each["charge"] for each in document["leases"]]
    assert charges == [each.charge and each.charge.model_dump() for each in build_lease_plans(plan)]
    totals = document["totals"]
    # 8 runs of 10 minutes on one device, and 8 on two, which are the host's own.
    assert (totals["device_hours"], totals["host_hours"]) == pytest.approx((4.0, 2.6667))
    assert (totals["device_hours_low"], totals["device_hours_high"]) == (2.0, 8.0)
    assert (totals["price"], totals["currency"]) == (float(words) if priced else None, "EUR")
    assert sorted(row[:3] for row in table.rows[:-1]) == [["1x1-local", 2, 8], ["1x2-local", 2, 8]]
    assert table.rows[-1][:3] == ["total", 4, 16]
    assert table.rows[-1][-3:] == ["4", "2.667", words]
    assert table.columns[-1] == "price\nEUR"


def test_a_plan_forecasts_composing_from_recordings(tmp_path: Path) -> None:
    changes = {"system.fabric": {"kind": "simulated", "times": "h3", "times_factor": 0.1}, "workloads.steps.run_s": 1.0}
    plan = read_plan(PlanRequest(write_files(tmp_path, changes), tmp_path / "results"))
    document = build_plan_document(plan)
    assert document["totals"]["composing_from"].endswith("times 0.1")
    assert document["totals"]["attached"] == sum(each["attached"] for each in document["leases"]) == 3
    composing = {each["lease"]: each["composing_s"] for each in document["leases"]}
    assert composing["1x1-local.c1"] == 0
    assert 0.1 * 2 * 9 < composing["1x2-fabric.c1"] < 0.1 * 2 * 25


def test_a_system_file_names_a_file_of_times(tmp_path: Path) -> None:
    (tmp_path / "systems").mkdir(parents=True)
    (tmp_path / "systems" / "own.json").write_text(json.dumps(read_published_times("h3").scale_times(3).document()))
    changes = {"system.times": "own.json", "system.times_factor": 2.0, "workloads.steps.run_s": 1.0}
    plan = read_plan(PlanRequest(write_files(tmp_path, changes), tmp_path / "results"))
    assert plan.composing_from.endswith("times 3, times 2")
