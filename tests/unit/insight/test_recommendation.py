"""What to build: the planted optimum is found, a planted tie is called one, and what is not known is said to be so."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from campaign.cli.main import main
from campaign.config.system_file import SystemFile
from campaign.documents.cell import Configuration
from campaign.errors import ConfigError, RecordError
from campaign.insight.recommend.advise import advise
from campaign.insight.recommend.document import RecommendationAnswer, RecommendationDocument
from campaign.insight.recommend.objectives import asked
from campaign.insight.recommend.shape_enumeration import Pool, pool_of, possible
from campaign.report import page as report
from campaign.report.sections.recommendation import read_recommendation, recommended
from campaign.report.write import write_recommendation
from campaign.tables import io as tableset
from campaign.tables.io import Tables
from tests.unit.insight import model_data
from tests.unit.report import report_data


def recommend(
    tables: Tables, *objectives: str, where: Sequence[str] = (), workloads: Sequence[str] = ()
) -> RecommendationDocument:
    known = sorted(set(tables.cells["workload"]))
    return advise(tables, asked(objectives, where, workloads, known, [])).document


def answer(tables: Tables, objective: str, *where: str) -> RecommendationAnswer:
    (only,) = recommend(tables, objective, where=where).answers
    return only


@pytest.fixture(scope="module")
def planted() -> Tables:
    return model_data.tables()


def test_the_planted_optimum_is_found_though_it_was_not_measured(planted: Tables) -> None:
    # Eight local devices were not measured; eight behind the fabric, and fewer local ones, were.
    best = answer(planted, "throughput")
    assert best.choice.configuration == "1x8-local"
    assert not best.choice.measured
    assert best.choice.extrapolated == ""
    hidden = report_data.configuration(each=8, attach="local")
    true = 32 * 8 / model_data.step_s(hidden, "big", 32, "fp32")
    assert best.choice.low < true < best.choice.high
    measured = set(planted.cells["cell_id"])
    assert best.choice.evidence
    assert {each.cell_id for each in best.choice.evidence} <= measured
    assert best.choice.evidence_total == len(measured)
    assert "predicted, not measured" in best.sentences[0]


def test_a_measured_optimum_names_its_cell_and_what_the_model_would_have_said(planted: Tables) -> None:
    best = answer(planted, "throughput", "measured and hosts == 1 and attach == 'local'")
    assert best.choice.configuration == "local-4"
    (cell,) = best.choice.evidence
    row = planted.cells.set_index("cell_id").loc[cell.cell_id]
    assert (row["configuration"], row["batch"], cell.runs) == ("local-4", 32, 4)
    assert best.choice.value == pytest.approx(row["mean"])
    assert "off in throughput" in best.choice.predicted


def test_the_time_of_a_million_samples_is_the_inverse_of_the_throughput(planted: Tables) -> None:
    rate, time = recommend(planted, "throughput", "time").answers
    assert time.choice.shape == rate.choice.shape
    assert time.choice.value == pytest.approx(1e6 / rate.choice.value)
    assert time.choice.low == pytest.approx(1e6 / rate.choice.high)


def test_what_is_outside_of_the_measurements_is_called_that_and_never_chosen(planted: Tables) -> None:
    best = answer(planted, "throughput")
    assert "devices, at most 8 measured" in best.beyond.extrapolated
    assert best.beyond.high / best.beyond.low > 1.1  # no configuration beyond could be left out
    assert "extrapolation" in best.sentences[-1]
    only = answer(planted, "throughput", "devices > 8")
    assert only.choice is None
    assert only.beyond is not None
    assert "within the measured range" in only.sentences[0]
    assert answer(planted, "throughput", "not extrapolated").beyond is None


def test_a_planted_tie_is_called_a_tie_and_the_fewest_devices_are_named_first() -> None:
    shapes = [*model_data.SHAPES[:7], report_data.configuration(each=8, used=4, attach="local")]
    tied = answer(model_data.tables(shapes), "throughput", "measured and attach == 'local'")
    assert tied.choice.configuration == "local-4"
    assert [each.configuration for each in tied.tied] == ["local-8-use4"]
    assert tied.sentences[1].startswith(f"Tied within 5\u202f%: local-8-use4 {tied.tied[0].value:,.0f} (")
    assert tied.sentences[1].endswith("Of those that tie, it takes the fewest devices.")


def test_of_a_tie_with_as_many_devices_the_fewest_hosts_are_named_first() -> None:
    def alike(at: Configuration, workload: str, batch: int, precision: str) -> float:
        return (0.004 + 0.002 * batch) * (1 + 0.2 * (at.ranks != 4))

    shapes = [each for each in model_data.SHAPES if each.attach == "fabric"]
    for seed in range(4):
        found = model_data.tables(shapes, truth=alike, seed=seed, noise=0.01)
        tied = answer(found, "throughput", "measured and devices <= 4")
        assert (tied.choice.shape["hosts"], tied.choice.shape["devices_per_host"]) == (1, 4)


def test_a_prediction_that_is_only_a_little_better_does_not_take_the_place_of_a_measurement() -> None:
    def alike(at: Configuration, workload: str, batch: int, precision: str) -> float:
        return 0.004 + 0.002 * batch + (0.001 if at.ranks > 1 else 0.0)

    shapes = model_data.SHAPES[:7]
    for seed in range(4):
        best = answer(model_data.tables(shapes, truth=alike, seed=seed, noise=0.01), "throughput")
        assert best.choice.configuration == "fabric-8"
        assert "1x8-local" in {each.configuration for each in best.not_told_apart}


def test_a_difference_beyond_the_noise_is_no_tie(planted: Tables) -> None:
    best = answer(planted, "throughput", "measured")
    assert best.choice is not None
    assert not best.alternatives


def test_one_run_a_cell_tells_no_tie(planted: Tables) -> None:
    best = answer(model_data.tables(repetitions=1), "throughput", "measured")
    assert not best.comparable
    assert best.choice.low is None
    assert "ties are unknown" in best.sentences[1]


def test_a_model_that_is_wrong_chooses_nothing_and_says_so() -> None:
    factor = {at.name: f for at, f in zip(model_data.SHAPES, (1, 2, 0.6, 1.7, 1, 0.5, 1.4, 2.2, 0.7, 1.2), strict=True)}

    def strange(at: Configuration, workload: str, batch: int, precision: str) -> float:
        return factor[at.name] * model_data.step_s(at, workload, batch, precision)

    document = recommend(model_data.tables(truth=strange), "throughput")
    (model,) = document.models
    assert not model.trusted
    assert "chooses nothing" in model.sentence
    (best,) = document.answers
    assert best.choice.measured
    assert best.beyond is None
    assert all(each.measured for each in best.alternatives)


def test_cheapest_within_counts_device_hours_of_those_that_are_fast_enough(planted: Tables) -> None:
    where = ["measured and attach == 'local'"]
    near, far = recommend(planted, "cheapest-within:5%", "cheapest-within:90%", where=where).answers
    assert near.choice.configuration == "local-4"
    assert far.choice.configuration == "local-1"
    rate = planted.cells.query("configuration == 'local-1' and batch == 32")["mean"].item()
    assert far.choice.value == pytest.approx(1e6 / rate / 3600)


def test_idle_devices_count_for_device_hours() -> None:
    shapes = [*model_data.SHAPES[:7], report_data.configuration(each=8, used=4, attach="local")]
    per_hour = answer(model_data.tables(shapes), "throughput-per-device-hour", "devices_used == 4", "measured")
    assert per_hour.choice.configuration == "local-4"
    assert not per_hour.alternatives


def test_energy_is_weighed_where_power_was_sampled(planted: Tables) -> None:
    def metrics(at: Configuration, workload: str, rate: float) -> dict[str, float]:
        watts = {"local": 100.0, "fabric": 300.0}[at.attach] * at.ranks
        return {"allreduce_bytes_per_step": model_data.BYTES[workload], "energy_per_sample_j": watts / rate}

    best = answer(model_data.tables(metrics=metrics), "throughput-per-joule", "measured")
    assert best.choice.configuration == "local-1"
    none = answer(planted, "throughput-per-joule")
    assert none.choice is None
    assert "power" in none.sentences[0]


def priced(tables: Tables, price_per_h: float) -> Tables:
    context = {**tables.context, "system": {**tables.context.get("system", {}), "currency": "EUR"}}
    return replace(
        tables, cells=tables.cells.assign(price_per_h=price_per_h * tables.cells["devices"]), context=context
    )


def test_a_million_samples_have_a_price_where_devices_have_one(planted: Tables) -> None:
    best = answer(priced(planted, 3.0), "throughput-per-price", "measured")
    by_hours = answer(planted, "throughput-per-device-hour", "measured")
    assert best.choice.configuration == by_hours.choice.configuration
    assert best.choice.value == pytest.approx(3.0 * 1e6 / by_hours.choice.value)
    assert best.choice.low < best.choice.value < best.choice.high
    assert "EUR a million samples" in best.choice.said
    assert "throughput-per-price" in [each.objective for each in recommend(priced(planted, 3.0)).answers]
    none = answer(planted, "throughput-per-price")
    assert none.choice is None
    assert "no prices" in none.sentences[0]
    limit = best.choice.value * 1.001
    (only,) = recommend(priced(planted, 3.0), "throughput", where=[f"cost_per_million < {limit}", "measured"]).answers
    assert only.choice.configuration == best.choice.configuration


def test_of_two_kinds_of_devices_the_cheaper_sample_wins_though_it_is_slower(planted: Tables) -> None:
    dear = planted.cells["attach"] == "local"
    prices = np.where(dear, 100.0, 1.0) * planted.cells["devices"]
    best = answer(replace(planted, cells=planted.cells.assign(price_per_h=prices)), "throughput-per-price", "measured")
    assert best.choice.configuration.startswith("fabric")
    fastest = answer(planted, "throughput", "measured")
    assert best.choice.configuration != fastest.choice.configuration


def test_the_report_answers_what_there_are_measurements_for(planted: Tables) -> None:
    told = [each.objective for each in recommend(planted).answers]
    assert told == ["throughput", "throughput-per-device-hour", "cheapest-within:5%"]


def test_a_mix_goes_to_the_shape_that_its_shares_ask_for() -> None:
    shapes = model_data.SHAPES[:7]
    times = {("local-4", "big"): 1.0, ("local-4", "small"): 2.0, ("fabric-8", "big"): 3.0, ("fabric-8", "small"): 0.5}

    def truth(at: Configuration, workload: str, batch: int, precision: str) -> float:
        return times.get((at.name, workload), 6.0) * batch * at.ranks

    tables = model_data.tables(shapes, ("big", "small"), truth=truth)
    for share, best in ((0.95, "local-4"), (0.05, "fabric-8")):
        document = recommend(tables, f"mix:big={share},small={1 - share}", where=["measured"])
        (mix,) = document.answers
        assert mix.choice.configuration == best
        assert mix.choice.evidence_total == 2
        slow = 4.0 if best == "local-4" else 3.0
        assert mix.choice.value == pytest.approx(1 + (1 - max(share, 1 - share)) * (slow - 1), rel=0.01)


def test_a_mix_compares_all_shapes_with_the_precision_that_each_workload_is_fastest_with() -> None:
    whole = model_data.tables(model_data.SHAPES[:7], ("big", "small"), precisions=("fp32", "fp16"))
    # The best one was measured in fp32 only; the others, which lose in both, in both.
    gone = (whole.cells["configuration"] == "local-4") & (whole.cells["precision"] == "fp16")
    ids = whole.cells.loc[gone, "cell_id"]
    tables = replace(whole, runs=whole.runs[~whole.runs["cell_id"].isin(ids)], cells=whole.cells[~gone])
    document = recommend(tables, "throughput", "mix:big=0.7,small=0.3", where=["devices <= 4"])
    *fastest, mix = document.answers
    assert [each.choice.configuration for each in fastest if each.choice] == ["local-4"] * 4
    assert mix.about == "a mix of 70\u202f% big, fp16 and 30\u202f% small, fp16"
    assert mix.choice.configuration == "local-4"
    assert not mix.choice.measured
    assert mix.choice.evidence_total == len(tables.cells[tables.cells["precision"] == "fp16"])


def test_a_mix_without_a_shape_for_all_its_workloads_names_what_to_do() -> None:
    whole = model_data.tables(model_data.SHAPES[:7], ("big", "small"), system=None)
    one = (whole.cells["workload"] == "big") == (whole.cells["configuration"] == "local-4")
    tables = replace(whole, cells=whole.cells[one])
    (mix,) = recommend(tables, "mix:big=0.5,small=0.5").answers
    assert mix.choice is None
    assert "choose a precision or options with --constraint" in mix.sentences[0]


def test_a_configuration_that_crashed_is_no_candidate(planted: Tables) -> None:
    best = answer(planted, "throughput", "devices == 8 and hosts == 1 and measured").choice
    at = planted.runs["configuration"] == best.configuration
    runs = planted.runs.assign(
        status=planted.runs["status"].mask(at, "crashed"),
        value=planted.runs["value"].mask(at),
        throughput_per_s=planted.runs["throughput_per_s"].mask(at),
    )
    gone = planted.cells["configuration"] == best.configuration
    numbers = {"n_ok": 0, "n_failed": 4, "state": "failed", "failures": "crashed x4", "mean": np.nan}
    cells = planted.cells.assign(**{name: planted.cells[name].mask(gone, value) for name, value in numbers.items()})
    crashed = replace(planted, runs=runs, cells=cells)
    assert answer(crashed, "throughput", "devices == 8 and hosts == 1 and attach == 'fabric'").choice is None
    beside = answer(crashed, "throughput", "not extrapolated")
    assert beside.choice is not None
    assert best.configuration not in {each.configuration for each in (beside.choice, *beside.alternatives)}


def test_a_mix_of_single_runs_has_no_interval_and_its_ties_are_not_known() -> None:
    whole = model_data.tables(model_data.SHAPES[:4], ("big", "small"))
    runs = whole.runs[whole.runs["repetition"] == 1]
    once = replace(whole, runs=runs, cells=whole.cells.assign(n_ok=1, sd=np.nan, ci_low=np.nan, ci_high=np.nan))
    (mix,) = recommend(once, "mix:big=0.5,small=0.5", where=["measured"]).answers
    assert (mix.choice.low, mix.comparable, mix.beside()) == (None, False, "not known: one composition each")
    single = recommend(once, "throughput", where=["measured"])
    said = recommended({"document": single.model_dump()})
    summary = said["objectives"][0]["summary"]
    assert summary.endswith("; ties not known: one composition each.")
    assert summary.startswith(("for big, ", "for small, "))


def test_what_is_better_by_extrapolation_is_said(planted: Tables) -> None:
    for where, further in ([], True), (["not extrapolated"], False):
        said = recommended({"document": recommend(planted, "throughput", where=where).model_dump()})
        (objective,) = said["objectives"]
        assert [each.startswith("Beyond what was measured, for ") for each in said["remarks"]] == [True] * further
        assert (" Beyond what was measured, " in objective["summary"]) == further


def test_a_batch_that_ran_out_of_memory_is_not_recommended() -> None:
    def ran_out(at: Configuration, batch: int) -> bool:
        return batch == 32 and at.ranks > 1

    tables = model_data.tables(ran_out=ran_out)
    best = answer(tables, "throughput")
    assert best.choice.batches == "batch 16"
    # It fitted on one device, which keeps no buffers for others; that says nothing of several.
    assert answer(tables, "throughput", "batch == 32 and ranks > 1").choice is None
    alone = answer(tables, "throughput", "batch == 32").choice
    assert alone.shape["devices_used"] == 1


def test_a_prediction_whose_memory_nobody_tried_says_so() -> None:
    def ran_out(at: Configuration, batch: int) -> bool:
        return batch == 32 and at.ranks < 4

    tables = model_data.tables(ran_out=ran_out)
    (best,) = recommend(tables, "throughput", where=["batch == 32 and ranks == 4 and hosts == 1"]).answers
    assert best.choice.memory == "fits"
    none = answer(tables, "throughput", "batch == 32 and ranks == 2")
    assert none.choice is None
    unknown = answer(tables, "throughput", "batch == 32 and ranks == 3 and not extrapolated")
    assert unknown.choice.memory == "unknown"
    assert "unknown" in unknown.sentences[0]
    assert answer(tables, "throughput", "batch == 32 and ranks == 3 and memory fits").choice is None


@pytest.mark.parametrize(("compositions", "memory"), [(1, "out"), (2, "unknown")])
def test_running_out_of_memory_once_says_nothing_of_other_shapes_while_another_composition_may_show_it(
    compositions: int, memory: str
) -> None:
    tables = model_data.tables(ran_out=lambda at, batch: batch == 32 and at.ranks in (2, 4))
    campaign = tables.context["campaign"]
    protocol = {**campaign.get("protocol", {}), "compositions": compositions}
    tables = replace(tables, context={**tables.context, "campaign": {**campaign, "protocol": protocol}})
    given = answer(tables, "throughput", "batch == 32 and ranks == 3 and not extrapolated").choice
    assert (given.memory if given else "out") == memory


def test_without_the_system_only_measured_configurations_are_weighed() -> None:
    document = recommend(model_data.tables(system=None), "throughput")
    assert document.answers[0].choice is not None
    assert document.answers[0].choice.measured
    assert any("only measured configurations" in sentence for sentence in document.basis)


def test_the_pool_is_what_the_system_says_and_may_be_used() -> None:
    system = SystemFile.model_validate(model_data.SYSTEM)
    assert pool_of(system, "A100") == Pool((8, 8, 8, 8), 32)
    assert pool_of(system, "T4") == Pool((0, 0, 0, 0), 0)
    less = {"allowed_hosts": ["host[1-2]"], "quota": {"A100": 3}}
    assert pool_of(SystemFile.model_validate({**model_data.SYSTEM, "tenancy": less}), "A100") == Pool((8, 8), 3)
    static = {**model_data.SYSTEM, "fabric": {"kind": "static"}, "pool": []}
    assert pool_of(SystemFile.model_validate(static), "A100").pooled == 0


def test_every_shape_that_the_numbers_allow_is_possible_and_no_other(planted: Tables) -> None:
    shapes = possible(Pool((2, 1), 3), "A100", planted.cells, ["local"])
    found = {(each.hosts, each.devices_per_host, each.attach) for each in shapes}
    assert found == {
        *((1, n, "local") for n in (1, 2)),
        *((1, n, "fabric") for n in (1, 2, 3)),
        *((1, n, "hybrid") for n in (2, 3, 4, 5) if n // 2 <= 2 and n - n // 2 <= 3),
        *((2, n, "local") for n in (1,)),
        *((2, n, "fabric") for n in (1,)),
        *((2, n, "hybrid") for n in (2,)),
    }


@pytest.mark.parametrize(
    ("objectives", "constraints", "workloads", "said"),
    [
        (["fastest"], [], [], "cheapest-within:5%"),
        (["throughput:3"], [], [], "throughput:3"),
        (["cheapest-within:lots"], [], [], "percentage"),
        (["cheapest-within:100%"], [], [], "percentage"),
        (["mix:big=0.5,big=0.5"], [], [], "once"),
        (["mix:big=-1"], [], [], "positive"),
        (["mix:huge=1"], [], [], "huge"),
        ([], ["devcies < 3"], [], "did you mean 'devices'"),
        ([], [], ["huge"], "there are: big"),
    ],
)
def test_what_is_not_understood_is_said_with_what_is_allowed(
    objectives: list[str], constraints: list[str], workloads: list[str], said: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        asked(objectives, constraints, workloads, ["big"], [])


@pytest.fixture(scope="module")
def written(planted: Tables, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("recommended")
    (directory / "tables").mkdir()
    tableset.write(planted, directory / "tables")
    write_recommendation(directory / "tables", directory / "recommendation")
    return directory


def test_the_files_are_the_same_byte_for_byte_and_hold_every_measured_cell(written: Path, planted: Tables) -> None:
    write_recommendation(written / "tables", written / "again")
    for name in ("recommendation.json", "recommendation.svg", "recommendation.csv"):
        assert (written / "again" / name).read_bytes() == (written / "recommendation" / name).read_bytes()
    lines = (written / "recommendation" / "recommendation.csv").read_text().splitlines()
    assert lines[0].endswith("measured_per_s,predicted_per_s,error_pct,reason")
    assert len(lines) == len(planted.cells) + 1


def test_a_section_of_the_report_says_what_to_build(written: Path, planted: Tables) -> None:
    given = read_recommendation(written / "recommendation")
    page = report.assemble(planted.runs, planted.cells, [], planted.context, {}, given)
    assert re.findall(r'<section id="([^"]+)"', page)[:3] == ["answer", "answers", "recommendations"]
    assert 'href="#recommendations"' in page
    section = page[page.index('<section id="recommendations"') :]
    assert "1x8-local, batch" in section
    (summary,) = re.findall(r'<a href="#recommendations">What to build</a>: (for big, [^<]*)</li>', page)
    assert "; ties not known" not in summary
    assert 'aria-labelledby="predictions-title' in section
    assert "when a configuration is left out" in section or "left out is" in section


def test_what_may_be_as_good_stands_below_with_its_interval_on_one_scale(written: Path) -> None:
    document = read_recommendation(written / "recommendation")["document"]
    answer = {**document["answers"][0], "tied": [], "tied_total": 0}
    value = answer["choice"]["value"]
    ends = {"value": 1.1 * value, "low": 1.05 * value, "high": 1.15 * value}
    other = {**answer["choice"], "configuration": "other", "measured": False, **ends}

    def shown(*others: Any) -> dict[str, Any]:
        beside = {"not_told_apart": others, "not_told_apart_total": 3 * len(others)}
        return recommended({"document": {**document, "answers": [{**answer, **beside}]}})

    said = shown(other)
    ((_, below),) = (each["rows"] for each in said["objectives"][0]["answers"])
    assert below[0].startswith("or other, ")
    assert below[2].startswith("predicted from ")
    assert below[2].endswith("; 2 more may be as good")
    assert below[3] == "10.0\u202f% [5.0\u202f% to 15.0\u202f%]"
    assert [each["kind"] for each in said["drawn"]["rows"]] == ["better", ""]
    assert shown()["drawn"] is None


def test_names_cannot_break_the_section(written: Path, planted: Tables) -> None:
    given = read_recommendation(written / "recommendation")
    text = json.dumps(given["document"]).replace("1x8-local", report_data.HOSTILE.replace('"', "'"))
    page = report.assemble(
        planted.runs, planted.cells, [], planted.context, {}, {**given, "document": json.loads(text)}
    )
    assert report_data.HOSTILE not in page


def test_a_report_without_a_recommendation_has_no_such_section(planted: Tables, tmp_path: Path) -> None:
    assert read_recommendation(tmp_path) is None
    page = report.assemble(planted.runs, planted.cells, [], planted.context, {})
    assert "recommendations" not in page.split("<body")[1]


def test_a_document_of_another_form_is_an_error_that_names_the_key(written: Path) -> None:
    given = read_recommendation(written / "recommendation")
    with pytest.raises(RecordError, match="surprise"):
        recommended({**given, "document": {**given["document"], "surprise": 1}})


def test_nothing_measured_is_nothing_recommended(tmp_path: Path, planted: Tables) -> None:
    empty = replace(planted, runs=planted.runs.iloc[:0], cells=planted.cells.iloc[:0])
    tableset.write(empty, tmp_path)
    write_recommendation(tmp_path, tmp_path / "recommendation")
    document = json.loads((tmp_path / "recommendation" / "recommendation.json").read_bytes())
    assert document["answers"] == []
    assert "nothing to recommend" in document["basis"][0]
    page = report.assemble(
        empty.runs, empty.cells, [], empty.context, {}, read_recommendation(tmp_path / "recommendation")
    )
    assert "nothing to recommend" in page


def test_the_command_answers_from_a_directory_of_results(written: Path) -> None:
    run = CliRunner()
    arguments = ["recommend", str(written), "--objective", "throughput", "--constraint", "hosts == 1 and devices <= 4"]
    told = run.invoke(main, [*arguments, "--format", "json"])
    assert told.exit_code == 0, told.output
    document = RecommendationDocument.model_validate_json(told.output)
    assert document.answers[0].choice is not None
    assert document.answers[0].choice.configuration == "local-4"
    shown = run.invoke(main, arguments)
    assert shown.exit_code == 0
    assert "local-4" in shown.output
    assert run.invoke(main, ["recommend", str(written), "--objective", "best"]).exit_code != 0
    further = [run.invoke(main, [*arguments[:4], "--format", style]).output for style in ("table", "json")]
    answers = RecommendationDocument.model_validate_json(further[1]).answers
    for beyond in {each.beyond.configuration for each in answers if each.beyond}:
        assert further[0].count(f"Beyond what was measured, {beyond} (") == 1
