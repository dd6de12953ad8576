"""Claims of a campaign held against another measurement: what is inside, outside, and not comparable with the reason."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from campaign.insight.compare.claims import INSIDE, NOT_COMPARABLE, OUTSIDE, claims, held_against, summary
from campaign.statistics import comparable_cells, intervals
from campaign.tables.io import Tables
from tests import planted_campaigns as planted
from tests.planted_campaigns import Truth
from tests.unit.report import report_data

TRUTH = Truth(configurations=4, compositions=4, runs=8, lease=0.005, run=0.005)
RATES = ("value", "throughput_per_s", "throughput_per_device_per_s")


def campaign(truth: Truth = TRUTH, seed: int = 1, **changes: Any) -> Tables:
    return planted.tables(replace(truth, **changes), np.random.default_rng(seed))


@pytest.fixture(scope="module")
def archive() -> Tables:
    return campaign()


def test_a_claim_stands_once_with_wider_bounds_for_a_repetition(archive: Tables) -> None:
    stated = claims(archive)
    assert not stated.duplicated(["cell_id", "against_cell"]).any()
    assert (stated["method"] != intervals.ITSELF).all()
    half, wide = (
        np.log(stated[high] / stated[low]) for high, low in (("high", "low"), ("expected_high", "expected_low"))
    )
    assert (wide / half).to_numpy() == pytest.approx(np.sqrt(2)), "as many compositions and runs"
    assert np.sqrt(stated["low"] * stated["high"]).to_numpy() == pytest.approx(stated["ratio"].to_numpy())


def test_what_did_not_change_is_inside_and_what_did_is_outside(archive: Tables) -> None:
    again = held_against(archive, campaign(seed=2))
    assert (again["verdict"] == INSIDE).mean() > 0.8
    assert (again["here"] / again["ratio"]).to_numpy() == pytest.approx(1, abs=0.05)
    slower = held_against(archive, campaign(seed=2, effect=(1, 1.3, 1.3, 1.3)))
    of_first = slower["claim"].str.contains("1x1") | (slower["verdict"] == OUTSIDE)
    assert of_first.any()
    assert (slower["verdict"] == OUTSIDE).any()
    assert f"{(slower['verdict'] == OUTSIDE).sum()} outside" in summary(slower)


def test_fewer_compositions_or_runs_are_allowed_to_deviate_more(archive: Tables) -> None:
    def width(**changes: Any) -> Any:
        held = held_against(archive, campaign(seed=3, **changes))
        return np.log(held["expected_high"] / held["expected_low"]).to_numpy()

    same = width()
    assert (width(compositions=1, runs=2) / same) == pytest.approx(np.sqrt(5 / 2))
    assert (width(runs=4) / same) == pytest.approx(np.sqrt(3 / 2))
    assert (width(compositions=8, runs=16) / same) == pytest.approx(np.sqrt(1.5 / 2))


def test_what_cannot_be_compared_says_why(archive: Tables) -> None:
    other = campaign(seed=2)
    lost = other.cells["cell_id"].iloc[0]
    failed = replace(
        other,
        runs=other.runs[other.runs["cell_id"] != lost].reset_index(drop=True),
        cells=other.cells.assign(state=other.cells["state"].mask(other.cells["cell_id"] == lost, "failed")),
    )
    held = held_against(archive, failed)
    assert "a cell of it is failed here" in set(held["why"])
    absent = replace(failed, cells=failed.cells[failed.cells["cell_id"] != lost].reset_index(drop=True))
    assert "a cell of it is not planned here" in set(held_against(archive, absent)["why"])
    once = held_against(campaign(compositions=1, runs=2), other)
    assert set(once["verdict"]) == {NOT_COMPARABLE}
    assert once["why"].str.startswith("not tested in the archive: ").all()
    assert once["expected_low"].isna().all()
    assert "0 of 0 comparable claims" in summary(once)


def test_cells_of_one_composition_predict_nothing_of_another() -> None:
    one = campaign(compositions=1, runs=6, cells=2)
    cells = one.cells.assign(
        precision=np.where(one.cells["batch"] == one.cells["batch"].min(), "fp32", "bf16"), batch=1
    )
    one = replace(one, cells=cells)
    held = held_against(one, one)
    within = held["method"].isin([intervals.PAIRED, intervals.RUNS_OF_ONE])
    assert within.any()
    assert held.loc[within, "why"].str.startswith("measured within one composition").all()


def test_nothing_here_leaves_nothing_to_compare(archive: Tables) -> None:
    other = campaign(seed=2)
    empty = replace(other, runs=other.runs.iloc[:0], cells=other.cells.assign(state="missing", n_ok=0, mean=np.nan))
    held = held_against(archive, empty)
    assert set(held["why"]) == {"a cell of it is missing here"}
    assert summary(held_against(empty, other)) == "The archive states no comparison."


def _slowed(tables: Tables, cells: Any, factor: float) -> Tables:
    """The same campaign with other rates of some cells."""
    own = tables.runs["cell_id"].isin(tables.cells.loc[cells, "cell_id"])
    rates = {name: tables.runs[name].mask(own, factor * tables.runs[name]) for name in RATES}
    return replace(tables, runs=tables.runs.assign(**rates))


def test_the_effect_of_the_batch_on_a_speed_up_is_a_claim() -> None:
    def scaled(seed: int) -> Tables:
        shapes = [report_data.configuration(each=devices) for devices in (1, 2, 4)]
        return planted.tables(replace(TRUTH, configurations=3, cells=2), np.random.default_rng(seed), shapes)

    before, after = scaled(1), scaled(2)
    stated = claims(before)
    effects = stated[stated["figure"] == "Speed-up by batch"]
    assert len(effects) == 2
    named = [f"batch 16 against batch 8 (fabric-{devices}), over fabric-1" for devices in (2, 4)]
    assert effects["claim"].tolist() == named
    speed_ups = comparable_cells.speedup_by_batch(before.cells, before.design)
    change = comparable_cells.batch_effect(speed_ups, before.design)["change_pct"]
    assert effects["ratio"].to_numpy() == pytest.approx(1 + change.to_numpy() / 100)
    half, wide = (np.log(effects[f"{of}high"] / effects[f"{of}low"]).to_numpy() for of in ("", "expected_"))
    assert wide / half == pytest.approx(np.sqrt(2))
    large = (after.cells["batch"] == 16) & (after.cells["ranks"] > 1)
    for tables, verdict in ((after, INSIDE), (_slowed(after, large, 0.8), OUTSIDE)):
        held = held_against(before, tables)
        assert set(held.loc[held["figure"] == "Speed-up by batch", "verdict"]) == {verdict}


def test_software_options_are_claims_against_the_plain_one() -> None:
    def with_options(tables: Tables) -> Tables:
        option = np.where(tables.cells["batch"] == 8, "ddp", "fsdp")
        return replace(tables, cells=tables.cells.assign(batch=8, option_parallel=option))

    before, after = (with_options(campaign(cells=2, seed=seed)) for seed in (1, 2))
    held = held_against(before, _slowed(after, after.cells["option_parallel"] == "fsdp", 0.8))
    options = held[held["figure"] == "Software optimisations"]
    assert len(options) == 4
    assert options["claim"].str.contains("parallel fsdp against parallel ddp").all()
    assert set(options["verdict"]) == {OUTSIDE}
    same = held_against(before, after)
    assert (same.loc[same["figure"] == "Software optimisations", "verdict"] == INSIDE).sum() >= 3
