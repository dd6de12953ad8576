"""Races on planted surfaces: what is dropped, what is named, and when. In full size: `tests.benchmarks.racing`."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from campaign.analysis.racing import evaluate_races
from campaign.report.sections.race import format_race_lines
from campaign.spec.race import RaceDocument, read_race, write_race
from tests.benchmarks.racing import measure_races
from tests.planted_races import SURFACES, WITHIN_PCT, PlantedRace, plant_race

CAMPAIGNS = 5


def race_until(planted: PlantedRace, block: int) -> RaceDocument:
    """Return the race with the records of the first blocks alone."""
    runs = planted.runs[planted.runs["composition"] <= block]
    return evaluate_races(
        planted.cells, replace(planted, runs=runs).tables, lambda _, composition: composition <= block, WITHIN_PCT
    )


def change_runs(planted: PlantedRace, name: str, factor: float, compositions: tuple[int, ...]) -> PlantedRace:
    """Return the campaign with other values of one configuration on some compositions; without any if factor is 0."""
    runs = planted.runs.copy()
    at = (runs["configuration"] == name) & runs["composition"].isin(compositions)
    runs.loc[at, ["value", "throughput_per_s"]] *= factor
    runs.loc[at, "status"] = "ok" if factor else "crashed"
    return replace(planted, runs=runs)


@pytest.mark.parametrize("surface", SURFACES)
def test_hardly_any_race_says_what_is_false_and_each_measures_less_than_the_whole_plan(surface: str) -> None:
    found = measure_races(surface, 5, CAMPAIGNS, seed=1000)
    assert found.wrong == 0
    assert found.measured < 97
    assert found.decided > (15 if surface in ("ties", "slope", "noisy best") else 70)


@pytest.mark.parametrize("seed", range(4))
def test_a_race_follows_from_the_records_of_its_blocks_alone(seed: int) -> None:
    planted = plant_race("slope", seed, 8, 2)
    whole, before = planted.race(), None
    for block in range(6):
        race = race_until(planted, block)
        if before is not None:
            assert {each.configuration for each in before.dropped} <= {each.configuration for each in race.dropped}
            assert all(race.compositions[name] >= count for name, count in before.compositions.items())
        next_block = min(block + 1, 5)
        assert race.ended or max(race.compositions.values()) == next_block
        assert all(whole.compositions[name] >= count for name, count in race.compositions.items())
        before = race
    assert before == whole
    # Records beyond what the race asked for change nothing.
    composed = planted.runs["configuration"].map(whole.compositions)
    needed = replace(planted, runs=planted.runs[planted.runs["composition"] <= composed])
    assert needed.race() == whole


def test_nothing_is_dropped_before_the_second_composition() -> None:
    planted = change_runs(plant_race("clear winner", 1, 6), "c00", 0.01, (1, 2, 3, 4, 5))
    assert race_until(planted, 1).compositions == {f"c{n:02d}": 2 for n in range(6)}
    assert not race_until(planted, 1).dropped
    assert "c00" in {each.configuration for each in race_until(planted, 2).dropped}
    # Also where earlier campaigns say how much compositions differ: they know nothing of a configuration that is noisier.
    earlier = {
        "campaign": "a",
        "workload": "w0",
        "metric": "throughput_per_s",
        "variance": 1e-4,
        "freedom": 20.0,
        "per_run": 0.5,
    }
    tables = planted.tables
    tables = replace(tables, context={"campaign": {**tables.context["campaign"], "earlier_spread": [earlier]}})
    race = evaluate_races(planted.cells, tables, lambda _, composition: composition == 1, WITHIN_PCT)
    assert race.compositions == {f"c{n:02d}": 2 for n in range(6)}
    assert not race.dropped


def test_a_crash_counts_once_a_second_composition_shows_it() -> None:
    planted = plant_race("clear winner", 3, 6, batches=1)
    best = planted.race().workloads[0].best
    once = change_runs(planted, best, 0.0, (1,))
    assert once.race().workloads[0].best == best
    twice = change_runs(once, best, 0.0, (2,)).race()
    assert best not in {each.configuration for each in twice.workloads[0].candidates}
    assert twice.compositions[best] == 2
    (reason,) = (each.reason for each in twice.dropped if each.configuration == best)
    assert reason == "it failed on every composition with w0, fp32"
    later = change_runs(planted, best, 0.0, (2, 3))  # a valid run shows that it can run
    assert best in {each.configuration for each in later.race().workloads[0].candidates}


def test_a_configuration_is_composed_for_the_workload_that_it_may_be_the_best_for() -> None:
    planted = plant_race("ties", 1, 4, workloads=2, batches=1)
    (best, tied) = np.flatnonzero(planted.rate[:, 0, 0] == planted.rate[:, 0, 0].max())
    name = f"c{tied:02d}"
    runs = planted.runs.copy()
    runs.loc[(runs["configuration"] == name) & (runs["workload"] == "w0"), "value"] /= 10
    race = replace(planted, runs=runs).race()
    first, second = race.workloads
    assert (first.best, first.block) == (f"c{best:02d}", 2)
    assert name not in {each.configuration for each in first.candidates}
    assert name in {each.configuration for each in second.candidates}
    assert race.compositions[name] == race.compositions[f"c{best:02d}"] == second.block == 4
    assert name not in {each.configuration for each in race.dropped}


def test_the_least_is_the_best_of_a_metric_of_which_less_is_better() -> None:
    planted = plant_race("clear winner", 2, 5, batches=1)
    best = planted.race().workloads[0].best
    runs = planted.runs.assign(value=1e4 / planted.runs["value"])
    metric = {"name": "time_s", "label": "time", "unit": "s", "better": "lower"}
    tables = replace(planted, runs=runs).tables
    tables = replace(tables, context={"campaign": {**tables.context["campaign"], "metric": metric}})
    race = evaluate_races(planted.cells, tables, lambda *_: True, WITHIN_PCT)
    assert race.workloads[0].best == best
    values = [each.value for each in race.workloads[0].candidates]
    assert values == sorted(values)


def test_configurations_on_hosts_of_their_own_are_not_told_apart() -> None:
    planted = plant_race("clear winner", 2, 4, batches=1)
    own = replace(planted, runs=planted.runs.assign(host_names="host-" + planted.runs["configuration"]))
    race = own.race()
    assert (race.ended, race.is_decided, race.dropped) == (True, False, ())
    assert set(race.compositions.values()) == {5}
    assert "Some configurations ran on hosts that no other configuration used" in "\n".join(format_race_lines(race))


def test_a_race_whose_runs_all_fail_ends_without_an_answer() -> None:
    planted = plant_race("clear winner", 2, 3)
    failed = replace(planted, runs=planted.runs.assign(status="oom_device", value=np.nan))
    race = failed.race()
    assert (race.ended, race.is_decided) == (True, False)
    assert race.compositions == {"c00": 2, "c01": 2, "c02": 2}
    assert "w0, fp32: every configuration failed." in "\n".join(format_race_lines(race))


def test_the_end_is_told_with_the_interval_of_each_candidate_and_why_others_were_dropped() -> None:
    planted = plant_race("ties", 4, 12, batches=1)
    race = planted.race()
    text = "\n".join(format_race_lines(race))
    measured = sum(race.compositions.values())
    assert f"{measured} of 60 compositions ({100 * measured / 60:.0f}\u202f%)" in text
    for candidate in race.workloads[0].candidates:
        assert f"{candidate.configuration} with " in text
        assert f"(batch 1, {race.compositions[candidate.configuration]} of 5 compositions)" in text
        assert candidate.low < candidate.value < candidate.high
    assert race.dropped
    for each in race.dropped:
        assert f"{each.configuration} was excluded after {race.compositions[each.configuration]} of 5" in text
        assert "cannot be within 5\u202f% of the best: it reaches at most " in text


def test_the_document_is_read_as_it_was_written(tmp_path) -> None:  # type: ignore[no-untyped-def]
    race = plant_race("clear winner", 1, 4).race()
    assert read_race(tmp_path / "race.json") is None
    write_race(tmp_path / "race.json", race)
    assert read_race(tmp_path / "race.json") == race
