"""What a lease holds, and what its allocation asks for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from campaign.cli.cost_table import cost_table
from campaign.documents.cell import Cell, Configuration, Settings
from campaign.errors import ConfigError
from campaign.plan.cost.assumption import parse_assumption
from campaign.plan.cost.charge import Charges, held
from campaign.plan.cost.estimates import PARTS, Estimate, Expected, Work
from campaign.plan.dag import read_plan
from campaign.plan.lease_plans import lease_plans
from campaign.plan.request import PlanRequest
from campaign.plan.write import plan_document
from tests.campaign_files import load, write_files

HYBRID = Configuration("1x3-hybrid1", 1, 3, 1, 2, "cpu-rank", "hybrid", "local")
ASSUMED = parse_assumption("10 min a run, 30 s to compose")
SLURM: dict[str, Any] = {
    "system.launcher": "slurm",
    "system.slurm": {"partition": "gpu", "gres": "gpu:a100", "exclusive": True},
    "system.hosts": [{"name": "host[1-2]", "cores": 4, "devices": [{"model": "cpu-rank", "count": 8}]}],
}


@pytest.mark.parametrize(
    ("slurm", "devices", "hosts", "idle"),
    [
        # 8 of the host's own and 2 from the pool; Slurm's job begins after composing. Two are used.
        ({}, [2, 2, 10, 10, 10, 2], [0, 0, 1, 1, 1, 0], 8),
        ({"strategy": "reservation"}, [10] * 6, [1] * 6, 8),
        ({"strategy": "resume"}, [10] * 6, [1] * 6, 8),
        ({"exclusive": False}, [2, 2, 3, 3, 3, 2], [0, 0, 1, 1, 1, 0], 1),
    ],
)
def test_whole_hosts_are_held_with_what_is_idle_on_them(
    tmp_path: Path, slurm: dict[str, Any], devices: list[int], hosts: list[int], idle: int
) -> None:
    changes = {**SLURM, "system.slurm": {**SLURM["system.slurm"], **slurm}}
    found = held(load(tmp_path, changes).system, HYBRID, ["host1"])
    assert [found.devices[part] for part in PARTS] == devices
    assert [found.hosts[part] for part in PARTS] == hosts
    assert found.idle == idle


def test_hosts_that_lend_devices_are_held_with_what_is_left_on_them(tmp_path: Path) -> None:
    """As on a system where whoever gathers four GPUs on one host reserves the four hosts that they belong to."""
    pool = [{"model": "cpu-rank", "count": 8, "home": "host[1-4]"}]
    hosts = [{"name": "host[1-4]", "cores": 4, "devices": [{"model": "cpu-rank", "count": 1}]}]
    system = load(tmp_path, {**SLURM, "system.pool": pool, "system.hosts": hosts}).system
    five = Configuration("1x5-fabric", 1, 5, 0, 5, "cpu-rank", "fabric", "local")
    found = held(system, five, ["host2"])
    # Two that belong to it, two of the first host and one of the third; one of the third and those that are built in are idle.
    assert (found.donors, found.idle) == (2, 4)
    assert [found.devices[part] for part in PARTS] == [8, 8, 9, 9, 9, 8]
    assert [found.hosts[part] for part in PARTS] == [2, 2, 3, 3, 3, 2]
    assert held(system, replace(five, devices_per_host=2, devices_used=2), ["host2"]).donors == 0
    with pytest.raises(ConfigError, match="has a home host9 that is no host"):
        load(tmp_path, {"system.pool": [{"model": "cpu-rank", "count": 1, "home": "host9"}]})


def test_without_slurm_a_lease_holds_what_it_names(tmp_path: Path) -> None:
    found = held(load(tmp_path).system, HYBRID, ["host1"])
    assert set(found.devices.values()) == {3}
    assert (set(found.hosts.values()), found.idle) == ({1}, 1)


def test_a_charge_counts_each_part_with_what_is_held_in_it(tmp_path: Path) -> None:
    campaign = load(tmp_path, SLURM)
    cell = Cell("c", HYBRID, "steps", 1, "fp32", {}, Settings(time_limit_s=600))
    work = Work("l", HYBRID, [(cell, 4)], True, held(campaign.system, HYBRID, ["host1"]))
    seconds = dict(zip(PARTS, (60.0, 600.0, 40.0, 1000.0, 20.0, 30.0), strict=True))
    expected = Expected(1750.0, parts={part: Estimate(s) for part, s in seconds.items()})
    found = Charges(campaign)(work, expected, ["host1"])
    assert found.device_hours == pytest.approx((2 * 660 + 10 * 1060 + 2 * 30) / 3600, abs=1e-6)
    assert found.host_hours == pytest.approx(1060 / 3600, abs=1e-6)
    assert (found.partition, found.gres, found.time_limit_min) == ("gpu", "gpu:a100:10", 44)
    unknown = replace(expected, expected_s=None, parts={**expected.parts, "runs": Estimate(None)})
    nothing = Charges(campaign)(work, unknown, ["host1"])
    assert (nothing.device_hours, nothing.host_hours, nothing.time_limit_min) == (None, None, 50)


def test_the_plan_the_table_and_the_lease_plans_say_the_same(tmp_path: Path) -> None:
    changes = {**SLURM, "campaign.configurations": [{"devices_per_host": 3, "attach": ["hybrid", "fabric"]}]}
    plan = read_plan(PlanRequest(write_files(tmp_path, changes), tmp_path / "results", assumed=ASSUMED))
    document = plan_document(plan)
    charges = [lease["charge"] for lease in document["leases"]]
    assert charges == [each.charge and each.charge.model_dump() for each in lease_plans(plan)]
    assert sum(each["device_hours"] for each in charges) == pytest.approx(document["totals"]["device_hours"], abs=1e-4)
    assert sum(each["host_hours"] for each in charges) == pytest.approx(document["totals"]["host_hours"], abs=1e-4)
    composing = [lease["composing_s"] for lease in document["leases"]]
    written = [each.forecast and each.forecast.parts[0].expected_s for each in lease_plans(plan)]
    assert (composing, sum(composing)) == (written, document["totals"]["parts"][0]["expected_s"])
    table = cost_table(plan)
    *rows, total = table.rows
    assert [row[0] for row in rows] == [lease.name for lease in plan.leases]
    assert {str(row[list(table.columns).index("gres")]) for row in rows} == {"gpu:a100:10", "gpu:a100:11"}
    assert total[-2:] == [f"{document['totals']['device_hours']:.4g}", f"{document['totals']['host_hours']:.4g}"]
    # Whole hosts for 8 runs of 10 minutes each, and what is composed on them already half a minute before.
    assert total[-2] == "28.04"


# Prices of leases that are less than a cent count in the sum.
@pytest.mark.parametrize(
    ("priced", "words"), [({"price_per_h": 2.0}, "8.00"), ({"price_per_h": 0.0018}, "0.01"), ({}, "unknown")]
)
def test_prices_of_the_system_file_are_in_the_table_and_in_the_plan(
    tmp_path: Path, priced: dict[str, float], words: str
) -> None:
    devices = {"cpu-rank": {"runs_on": "cpu", **priced}}
    changes = {
        "system.devices": devices,
        "system.currency": "EUR",
        "campaign.configurations": [{"devices_per_host": [1, 2]}],
    }
    plan = read_plan(PlanRequest(write_files(tmp_path, changes), tmp_path / "results", assumed=ASSUMED))
    table, totals = cost_table(plan), plan_document(plan)["totals"]
    assert table.columns[-1] == "price\nEUR"
    # 8 runs of 10 minutes on one device, and 8 on two, which are the host's own: 4 device-hours.
    assert [row[-1] for row in table.rows][-1] == words
    assert (totals["price"], totals["currency"]) == (float(words) if priced else None, "EUR")
    plain = cost_table(read_plan(PlanRequest(write_files(tmp_path / "b"), tmp_path / "results", assumed=ASSUMED)))
    assert plain.columns[-1] == "host\nhours"


def test_the_plan_says_what_times_of_composing_rest_on(tmp_path: Path) -> None:
    path = write_files(tmp_path, {"system.fabric.times": "h3"})
    document = plan_document(read_plan(PlanRequest(path, tmp_path / "results", assumed=ASSUMED)))
    assert "H3 Falcon" in document["totals"]["composing_from"]
    composed = [lease for lease in document["leases"] if lease["composing_s"] > 0]
    assert len(composed) == 2
    assert all(each["composing_low_s"] <= each["composing_s"] <= each["composing_high_s"] for each in composed)


def test_hundreds_of_leases_are_one_row_a_configuration(tmp_path: Path) -> None:
    changes = {"campaign.protocol.compositions": 40, "campaign.protocol.repetitions": 40}
    plan = read_plan(PlanRequest(write_files(tmp_path, changes), tmp_path / "results", assumed=ASSUMED))
    table = cost_table(plan)
    assert len(plan.leases) == 160
    assert [row[0] for row in table.rows][-1] == "total"
    assert sorted(str(row[0]) for row in table.rows[:-1]) == [
        f"1x{n}-{a} x 40" for n in (1, 2) for a in ("fabric", "local")
    ]
    assert sum(int(str(row[1])) for row in table.rows[:-1]) == plan.missing
