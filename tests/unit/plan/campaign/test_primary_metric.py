from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from campaign.common.errors import ConfigError
from campaign.plan.campaign.resolve import campaign_from_document
from campaign.spec.metric import MEASURED_BY_CAMPAIGN, THROUGHPUT, Metric, read_primary_metric
from tests.campaign_files import load

LATENCY = Metric("latency_us", "µs", "lower")
PROGRAM: dict[str, Any] = {
    "campaign.axes.workload": "program",
    "workloads.program.parsers": [
        {"metric": "latency_us", "regex": r"latency: (\S+)"},
        {"metric": "score", "regex": r"score: (\S+)"},
    ],
}


def test_throughput_leads_by_default(tmp_path: Path) -> None:
    assert load(tmp_path).metric == THROUGHPUT


def test_a_workload_that_prints_no_throughput_leads_with_what_it_prints(tmp_path: Path) -> None:
    assert load(tmp_path, PROGRAM).metric == LATENCY


def test_one_workload_with_a_throughput_keeps_throughput(tmp_path: Path) -> None:
    assert load(tmp_path, {**PROGRAM, "campaign.axes.workload": ["program", "steps"]}).metric == THROUGHPUT


def test_a_campaign_names_its_metric(tmp_path: Path) -> None:
    chosen = load(tmp_path, {**PROGRAM, "campaign.metric": {"name": "score", "better": "higher"}})
    assert chosen.metric == Metric("score", "", "higher")
    assert campaign_from_document(chosen.to_document()).metric == chosen.metric


def test_a_workload_file_says_direction_and_unit(tmp_path: Path) -> None:
    said = {"workloads.program.metrics": {"score": {"better": "higher", "unit": "points"}}}
    assert load(tmp_path, {**PROGRAM, **said, "campaign.metric": {"name": "score"}}).metric == Metric(
        "score", "points", "higher"
    )


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        ({"name": "score"}, "it is unknown which direction of 'score' is better"),
        ({"name": "latency_ms"}, "no workload of this campaign reports 'latency_ms'; did you mean 'latency_us'?"),
    ],
)
def test_what_cannot_lead_is_an_error_with_its_place(tmp_path: Path, metric: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=r"campaign.yaml:\d+: metric.name: ") as error:
        load(tmp_path, {**PROGRAM, "campaign.metric": metric})
    assert message in str(error.value)


def test_directions_are_no_part_of_the_identity(tmp_path: Path) -> None:
    from campaign.plan.matrix import expand_matrix

    before = [cell.id for cell in expand_matrix(load(tmp_path / "a", PROGRAM)).cells]
    said = {"workloads.program.metrics": {"score": {"better": "higher"}}, "campaign.metric": {"name": "score"}}
    assert [cell.id for cell in expand_matrix(load(tmp_path / "b", {**PROGRAM, **said})).cells] == before


@pytest.mark.parametrize("name", MEASURED_BY_CAMPAIGN)
def test_a_metric_with_the_name_of_a_measured_column_is_refused_in_files_only(tmp_path: Path, name: str) -> None:
    parser = {"metric": name, "regex": r"latency: (\S+)"}
    with pytest.raises(
        ConfigError, match=rf"parsers\.0\.metric: '{name}' is reserved, because campaign measures it .*'program_{name}'"
    ):
        load(tmp_path, {**PROGRAM, "workloads.program.parsers": [parser]})
    stored = load(tmp_path, PROGRAM).to_document()
    stored["workloads"]["program"]["parsers"][0]["metric"] = name
    assert campaign_from_document(stored).workloads["program"].parsers[0].metric == name


def scaling_of(directory: Path, changes: dict[str, Any]) -> tuple[Any, list[str]]:
    """How the metric of PROGRAM with changes scales on one and two devices, and the warnings about it."""
    both = {"campaign.configurations": [{"devices_per_host": [1, 2], "attach": "local"}]}
    found = load(directory, {**PROGRAM, **both, **changes})
    assert campaign_from_document(found.to_document()).metric.scaling == found.metric.scaling
    return found.metric.scaling, [each for each in found.warnings if "it is unknown how" in each]


def test_a_metric_says_how_it_scales(tmp_path: Path) -> None:
    """The campaign says it before the workload file, and what is known of the name counts last."""
    lead = {"campaign.metric": {"name": "score", "better": "higher"}}
    in_workload = {"workloads.program.metrics": {"score": {"scaling": "rate_per_device"}}}
    in_campaign = {"campaign.metric": {**lead["campaign.metric"], "scaling": "total_rate"}}
    unknown, warnings = scaling_of(tmp_path / "a", lead)
    assert unknown is None
    assert [each.partition(": ")[0].rpartition("/")[2].partition(":")[0] for each in warnings] == ["campaign.yaml"]
    assert "add `scaling: total_rate`, rate_per_device" in warnings[0]
    assert scaling_of(tmp_path / "b", {**lead, **in_workload}) == ("rate_per_device", [])
    assert scaling_of(tmp_path / "c", {**in_campaign, **in_workload}) == ("total_rate", [])
    assert scaling_of(tmp_path / "d", {}) == ("none", [])
    assert scaling_of(tmp_path / "e", {"campaign.metric": {"name": "step_median_s"}}) == ("time_per_device_work", [])


def test_a_campaign_with_one_number_of_devices_is_not_asked(tmp_path: Path) -> None:
    one = {"campaign.configurations": [{"devices_per_host": 1, "attach": "local"}]}
    lead = {"campaign.metric": {"name": "score", "better": "higher"}}
    assert not any("it is unknown how" in each for each in load(tmp_path, {**PROGRAM, **one, **lead}).warnings)


def test_workload_files_that_contradict_each_other_tell_nothing(tmp_path: Path) -> None:
    files = {
        "campaign.axes.workload": ["program", "steps"],
        "campaign.metric": {"name": "step_median_s"},
        "workloads.program.metrics": {"step_median_s": {"scaling": "time_of_fixed_work"}},
        "workloads.steps.metrics": {"step_median_s": {"scaling": "time_per_device_work"}},
    }
    scaling, warnings = scaling_of(tmp_path, files)
    assert scaling is None
    assert len(warnings) == 1


def test_a_rate_that_is_better_lower_is_refused(tmp_path: Path) -> None:
    wrong = {"name": "score", "better": "lower", "scaling": "total_rate"}
    with pytest.raises(
        ConfigError,
        match=r"campaign.yaml:\d+: metric: 'score' has `better: lower`, which contradicts `scaling: total_rate`",
    ):
        load(tmp_path, {**PROGRAM, "campaign.metric": wrong})


def test_scaling_is_no_part_of_the_identity(tmp_path: Path) -> None:
    from campaign.plan.matrix import expand_matrix

    before = [cell.id for cell in expand_matrix(load(tmp_path / "a", PROGRAM)).cells]
    said = {"workloads.program.metrics": {"score": {"scaling": "total_rate"}}}
    assert [cell.id for cell in expand_matrix(load(tmp_path / "b", {**PROGRAM, **said})).cells] == before


def test_a_metric_of_results_without_a_scaling_has_what_is_known_of_its_name() -> None:
    old = {"name": "busbw_peak_gb_per_s", "label": "busbw peak", "unit": "GB/s", "better": "higher"}
    assert read_primary_metric({"campaign": {"metric": old}}).scaling == "rate_per_device"
    declared = Metric("score", "", "higher", "total_rate")
    assert read_primary_metric({"campaign": {"metric": declared.document()}}).scaling == "total_rate"
    assert "scaling" not in THROUGHPUT.document()


@pytest.mark.parametrize(
    ("more", "warned"),
    [
        ({}, True),
        ({"campaign.metric": {"name": "busbw_peak_gb_per_s"}}, False),
        ({"workloads.program.metrics": {"busbw_peak_gb_per_s": {}}}, False),
    ],
)
def test_a_parser_without_throughput_and_no_metric_is_warned_of(
    tmp_path: Path, more: dict[str, Any], warned: bool
) -> None:
    program = {"workloads.program.parser": "nccl_tests", "workloads.program.parsers": None}
    said = load(tmp_path, {"campaign.axes.workload": "program", **program, **more}).warnings
    words = "the parser 'nccl_tests' of workload 'program' reports no throughput"
    assert [words in each and "`metric: {name: busbw_peak_gb_per_s}`" in each for each in said].count(True) == warned
