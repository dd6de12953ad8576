from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from campaign.config.resolve import from_document
from campaign.documents.metric import MEASURED_BY_CAMPAIGN, THROUGHPUT, Metric
from campaign.errors import ConfigError
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
    assert from_document(chosen.document()).metric == chosen.metric


def test_a_workload_file_says_direction_and_unit(tmp_path: Path) -> None:
    said = {"workloads.program.metrics": {"score": {"better": "higher", "unit": "points"}}}
    assert load(tmp_path, {**PROGRAM, **said, "campaign.metric": {"name": "score"}}).metric == Metric(
        "score", "points", "higher"
    )


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        ({"name": "score"}, "neither the name 'score' nor a workload file says which direction is better"),
        ({"name": "latency_ms"}, "no workload of this campaign prints 'latency_ms'; did you mean 'latency_us'?"),
    ],
)
def test_what_cannot_lead_is_an_error_with_its_place(tmp_path: Path, metric: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=r"campaign.yaml:\d+: metric.name: ") as error:
        load(tmp_path, {**PROGRAM, "campaign.metric": metric})
    assert message in str(error.value)


def test_directions_are_no_part_of_the_identity(tmp_path: Path) -> None:
    from campaign.plan.matrix import expand

    before = [cell.id for cell in expand(load(tmp_path / "a", PROGRAM)).cells]
    said = {"workloads.program.metrics": {"score": {"better": "higher"}}, "campaign.metric": {"name": "score"}}
    assert [cell.id for cell in expand(load(tmp_path / "b", {**PROGRAM, **said})).cells] == before


@pytest.mark.parametrize("name", MEASURED_BY_CAMPAIGN)
def test_a_metric_with_the_name_of_a_measured_column_is_refused_in_files_only(tmp_path: Path, name: str) -> None:
    parser = {"metric": name, "regex": r"latency: (\S+)"}
    with pytest.raises(ConfigError, match=rf"parsers\.0\.metric: '{name}' is measured .*'program_{name}'"):
        load(tmp_path, {**PROGRAM, "workloads.program.parsers": [parser]})
    stored = load(tmp_path, PROGRAM).document()
    stored["workloads"]["program"]["parsers"][0]["metric"] = name
    assert from_document(stored).workloads["program"].parsers[0].metric == name
