"""What to build: the planted optimum is named, a planted tie is called one, and what is not known is said to be so."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from campaign.analysis.recommend.advise import build_recommendation
from campaign.analysis.recommend.document import RecommendationAnswer, RecommendationDocument
from campaign.analysis.recommend.objectives import parse_request
from campaign.analysis.recommend.unmeasured_shapes import DeviceModelPool, build_device_pool, generate_allowed_shapes
from campaign.analysis.tables import io as tableset
from campaign.analysis.tables.io import Tables
from campaign.cli.main import main
from campaign.common.errors import ConfigError, RecordError
from campaign.common.paths import Results
from campaign.report import page as report
from campaign.report.sections.recommendation import build_recommendation_section, read_recommendation
from campaign.report.write import render_report, write_recommendation
from campaign.spec.cell import Configuration
from campaign.spec.system_file import SystemFile
from tests.unit.analysis import planted_shapes
from tests.unit.report import report_data


def recommend(
    tables: Tables, *objectives: str, where: Sequence[str] = (), workloads: Sequence[str] = ()
) -> RecommendationDocument:
    known = sorted(set(tables.cells["workload"]))
    return build_recommendation(tables, parse_request(objectives, where, workloads, known, []))


def answer(tables: Tables, objective: str, *where: str) -> RecommendationAnswer:
    (only,) = recommend(tables, objective, where=where).answers
    return only


@pytest.fixture(scope="module")
def planted() -> Tables:
    return planted_shapes.tables()


def test_the_planted_optimum_is_named_with_the_cell_that_it_rests_on(planted: Tables) -> None:
    best = answer(planted, "throughput")
    assert best.choice.configuration == "local-4"
    (cell,) = best.choice.evidence
    row = planted.cells.set_index("cell_id").loc[cell.cell_id]
    assert (row["configuration"], row["batch"], cell.runs, cell.compositions) == ("local-4", 32, 4, 2)
    assert best.choice.value == pytest.approx(row["mean"])
    # It was chosen for its number, so the error is not the same to both sides.
    assert best.choice.low < best.choice.value < best.choice.high
    assert best.choice.value - best.choice.low < best.choice.high - best.choice.value < row["ci_high"] - row["ci_low"]
    # What is listed beside it keeps its own interval.
    for listed in (*best.tied, *best.not_told_apart):
        (cell,) = listed.evidence
        own = planted.cells.set_index("cell_id").loc[cell.cell_id]
        assert (listed.low, listed.high) == pytest.approx((own["ci_low"], own["ci_high"]))
    hidden = report_data.configuration(each=4, attach="local")
    assert best.choice.low < 32 * 4 / planted_shapes.step_s(hidden, "big", 32, "fp32") < best.choice.high
    assert best.sentences[0].startswith("big, fp32: build local-4 (1 host with 4 local A100), batch 32: ")
    assert best.sentences[0].endswith(", measured on 2 compositions.")


def test_the_time_of_a_million_samples_is_the_inverse_of_the_throughput(planted: Tables) -> None:
    rate, time = recommend(planted, "throughput", "time").answers
    assert time.choice.shape == rate.choice.shape
    assert time.choice.value == pytest.approx(1e6 / rate.choice.value)
    assert time.choice.low == pytest.approx(1e6 / rate.choice.high)


def test_a_planted_tie_is_called_a_tie_and_the_fewest_devices_are_named_first() -> None:
    shapes = [*planted_shapes.SHAPES[:7], report_data.configuration(each=8, used=4, attach="local")]
    tied = answer(planted_shapes.tables(shapes), "throughput", "attach == 'local'")
    assert tied.choice.configuration == "local-4"
    assert [each.configuration for each in tied.tied] == ["local-8-use4"]
    assert tied.sentences[1].startswith(f"Tied within 5\u202f%: local-8-use4 {tied.tied[0].value:,.0f} (")
    assert tied.sentences[1].endswith("Of the tied configurations, the recommended one needs the fewest devices.")


def test_of_a_tie_with_as_many_devices_the_fewest_hosts_are_named_first() -> None:
    def alike(at: Configuration, workload: str, batch: int, precision: str) -> float:
        return (0.004 + 0.002 * batch) * (1 + 0.2 * (at.ranks != 4))

    shapes = [each for each in planted_shapes.SHAPES if each.attach == "fabric"]
    for seed in range(4):
        found = planted_shapes.tables(shapes, truth=alike, seed=seed, noise=0.01)
        tied = answer(found, "throughput", "devices <= 4")
        assert (tied.choice.shape["hosts"], tied.choice.shape["devices_per_host"]) == (1, 4)


def test_a_difference_beyond_the_noise_is_no_tie(planted: Tables) -> None:
    best = answer(planted, "throughput")
    assert best.choice is not None
    assert not best.alternatives


def test_one_run_a_cell_tells_no_tie(planted: Tables) -> None:
    best = answer(planted_shapes.tables(repetitions=1), "throughput")
    assert not best.comparable
    assert best.choice.low is None
    assert "Ties are unknown" in best.sentences[1]


def test_cheapest_within_counts_device_hours_of_those_that_are_fast_enough(planted: Tables) -> None:
    where = ["attach == 'local'"]
    near, far = recommend(planted, "cheapest-within:5%", "cheapest-within:90%", where=where).answers
    assert near.choice.configuration == "local-4"
    assert far.choice.configuration == "local-1"
    rate = planted.cells.query("configuration == 'local-1' and batch == 32")["mean"].item()
    assert far.choice.value == pytest.approx(1e6 / rate / 3600)


def test_idle_devices_count_for_device_hours() -> None:
    shapes = [*planted_shapes.SHAPES[:7], report_data.configuration(each=8, used=4, attach="local")]
    per_hour = answer(planted_shapes.tables(shapes), "throughput-per-device-hour", "devices_used == 4")
    assert per_hour.choice.configuration == "local-4"
    assert not per_hour.alternatives


def test_energy_is_weighed_where_power_was_sampled(planted: Tables) -> None:
    def metrics(at: Configuration, workload: str, rate: float) -> dict[str, float]:
        watts = {"local": 100.0, "fabric": 300.0}[at.attach] * at.ranks
        return {"allreduce_bytes_per_step": planted_shapes.BYTES[workload], "energy_per_sample_j": watts / rate}

    best = answer(planted_shapes.tables(metrics=metrics), "throughput-per-joule")
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
    best = answer(priced(planted, 3.0), "throughput-per-price")
    by_hours = answer(planted, "throughput-per-device-hour")
    assert best.choice.configuration == by_hours.choice.configuration
    assert best.choice.value == pytest.approx(3.0 * 1e6 / by_hours.choice.value)
    assert best.choice.low < best.choice.value < best.choice.high
    assert "EUR per million samples" in best.choice.said
    assert "throughput-per-price" in [each.objective for each in recommend(priced(planted, 3.0)).answers]
    none = answer(planted, "throughput-per-price")
    assert none.choice is None
    assert "no prices" in none.sentences[0]
    limit = best.choice.value * 1.001
    (only,) = recommend(priced(planted, 3.0), "throughput", where=[f"cost_per_million < {limit}"]).answers
    assert only.choice.configuration == best.choice.configuration


def test_of_two_kinds_of_devices_the_cheaper_sample_wins_though_it_is_slower(planted: Tables) -> None:
    dear = planted.cells["attach"] == "local"
    prices = np.where(dear, 100.0, 1.0) * planted.cells["devices"]
    best = answer(replace(planted, cells=planted.cells.assign(price_per_h=prices)), "throughput-per-price")
    assert best.choice.configuration.startswith("fabric")
    fastest = answer(planted, "throughput")
    assert best.choice.configuration != fastest.choice.configuration


def test_the_report_answers_what_there_are_measurements_for(planted: Tables) -> None:
    told = [each.objective for each in recommend(planted).answers]
    assert told == ["throughput", "throughput-per-device-hour", "cheapest-within:5%"]


def test_a_mix_goes_to_the_shape_that_its_shares_ask_for() -> None:
    shapes = planted_shapes.SHAPES[:7]
    times = {("local-4", "big"): 1.0, ("local-4", "small"): 2.0, ("fabric-8", "big"): 3.0, ("fabric-8", "small"): 0.5}

    def truth(at: Configuration, workload: str, batch: int, precision: str) -> float:
        return times.get((at.name, workload), 6.0) * batch * at.ranks

    tables = planted_shapes.tables(shapes, ("big", "small"), truth=truth)
    for share, best in ((0.95, "local-4"), (0.05, "fabric-8")):
        document = recommend(tables, f"mix:big={share},small={1 - share}")
        (mix,) = document.answers
        assert mix.choice.configuration == best
        assert len(mix.choice.evidence) == 2
        slow = 4.0 if best == "local-4" else 3.0
        assert mix.choice.value == pytest.approx(1 + (1 - max(share, 1 - share)) * (slow - 1), rel=0.01)


def test_a_mix_compares_all_shapes_with_the_precision_that_each_workload_is_fastest_with() -> None:
    def truth(at: Configuration, workload: str, batch: int, precision: str) -> float:
        return planted_shapes.step_s(at, workload, batch, "fp32") * (0.25 if precision == "fp16" else 1.0)

    shapes, precisions = planted_shapes.SHAPES[:7], ("fp32", "fp16")
    whole = planted_shapes.tables(shapes, ("big", "small"), precisions=precisions, truth=truth)
    # The best one was measured in fp32 only.
    gone = (whole.cells["configuration"] == "local-4") & (whole.cells["precision"] == "fp16")
    ids = whole.cells.loc[gone, "cell_id"]
    tables = replace(whole, runs=whole.runs[~whole.runs["cell_id"].isin(ids)], cells=whole.cells[~gone])
    (mix,) = recommend(tables, "mix:big=0.7,small=0.3").answers
    assert mix.about == "a mix of 70\u202f% big, fp16 and 30\u202f% small, fp16"
    assert mix.choice.configuration != "local-4"
    assert all("fp16" in each.words for each in mix.choice.evidence)


def test_the_interval_of_a_mix_is_that_of_what_is_not_fastest_on_the_shape() -> None:
    times = {("local-4", "small"): 2.0, ("local-2", "big"): 3.0}

    def truth(at: Configuration, workload: str, batch: int, precision: str) -> float:
        return times.get((at.name, workload), 1.0 if at.name in ("local-4", "local-2") else 9.0) * batch * at.ranks

    tables = planted_shapes.tables(planted_shapes.SHAPES[:3], ("big", "small"), truth=truth, noise=0.01)
    (mix,) = recommend(tables, "mix:big=0.9,small=0.1").answers
    # local-4 is the fastest for `big`, which adds exactly 0.9; `small` takes there twice the time of local-2.
    assert mix.choice.configuration == "local-4"
    assert mix.choice.value == pytest.approx(0.9 + 0.1 * 2.0, rel=0.01)
    assert 0.9 < mix.choice.low < 0.9 + 0.1 * 2.0 < mix.choice.high
    assert mix.choice.high - mix.choice.low < 0.1 * 2.0 * 0.1
    (alone,) = recommend(tables, "mix:big=0.9,small=0.1", where=["devices == 4"]).answers
    assert (alone.choice.value, alone.choice.low) == (pytest.approx(1.0), None)
    assert alone.choice.said == "1.00×\u202fthe time on the fastest shape of each workload"


def test_a_mix_without_a_shape_for_all_its_workloads_names_what_to_do() -> None:
    whole = planted_shapes.tables(planted_shapes.SHAPES[:7], ("big", "small"), system=None)
    one = (whole.cells["workload"] == "big") == (whole.cells["configuration"] == "local-4")
    tables = replace(whole, cells=whole.cells[one])
    (mix,) = recommend(tables, "mix:big=0.5,small=0.5").answers
    assert mix.choice is None
    assert "select others with --constraint" in mix.sentences[0]


def test_a_configuration_that_crashed_is_no_candidate(planted: Tables) -> None:
    best = answer(planted, "throughput", "devices == 8 and hosts == 1").choice
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
    beside = answer(crashed, "throughput")
    assert beside.choice is not None
    assert best.configuration not in {each.configuration for each in (beside.choice, *beside.alternatives)}


def test_a_mix_of_single_runs_has_no_interval_and_its_ties_are_not_known() -> None:
    whole = planted_shapes.tables(planted_shapes.SHAPES[:4], ("big", "small"))
    runs = whole.runs[whole.runs["repetition"] == 1]
    once = replace(whole, runs=runs, cells=whole.cells.assign(n_ok=1, sd=np.nan, ci_low=np.nan, ci_high=np.nan))
    (mix,) = recommend(once, "mix:big=0.5,small=0.5").answers
    assert (mix.choice.low, mix.comparable, mix.describe_alternatives()) == (
        None,
        False,
        "unknown: one composition each",
    )
    single = recommend(once, "throughput")
    said = build_recommendation_section(single)
    summary = said["objectives"][0]["summary"]
    assert summary.endswith("; ties unknown: one composition each.")
    assert re.search(r" reaches .* for (big|small), ", summary)


def test_a_batch_that_ran_out_of_memory_is_not_recommended() -> None:
    tables = planted_shapes.tables(ran_out=lambda at, batch: batch == 32 and at.ranks > 1)
    assert answer(tables, "throughput").choice.batches == "batch 16"
    assert answer(tables, "throughput", "batch == 32 and ranks > 1").choice is None
    assert answer(tables, "throughput", "batch == 32").choice.shape["devices_used"] == 1


def test_shapes_that_the_system_allows_and_nobody_measured_are_named(planted: Tables) -> None:
    document = recommend(planted, "throughput")
    assert {"1x8-local", "2x2-local", "1x4-hybrid", "2x8-fabric"} <= set(document.unmeasured)
    measured = {"1x1-local", "1x2-local", "1x4-local", "1x1-fabric", "1x8-fabric", "2x2-fabric", "4x1-fabric"}
    assert not measured & set(document.unmeasured)
    assert len(set(document.unmeasured)) == len(document.unmeasured)
    one = recommend(planted, "throughput", where=["hosts == 1 and devices == 8", "throughput_per_s > 10"])
    assert one.unmeasured == ("1x8-local", "1x8-hybrid")
    crashed = planted_shapes.tables([*planted_shapes.SHAPES, report_data.configuration(each=8, attach="local")],
        ran_out=lambda at, batch: at.devices == 8 and at.attach == "local")  # fmt: skip
    assert "1x8-local" not in recommend(crashed, "throughput").unmeasured


def test_a_stored_system_with_keys_of_an_earlier_version_is_read() -> None:
    earlier = {**planted_shapes.SYSTEM, "parameters": {"bus": 0.9}, "devices": {"A100": {"memory_gib": 40}}}
    assert recommend(planted_shapes.tables(system=earlier), "throughput").unmeasured


def test_configurations_on_hosts_of_their_own_are_compared_and_never_tie() -> None:
    def alike(at: Configuration, workload: str, batch: int, precision: str) -> float:
        return (0.004 + 0.002 * batch) * at.ranks * (9.0 if at.ranks == 1 else 1.0)

    tables = planted_shapes.tables(planted_shapes.SHAPES[:3], truth=alike)
    tied = answer(tables, "throughput")
    assert {"local-2", "local-4"} == {tied.choice.configuration, *(each.configuration for each in tied.tied)}
    apart = replace(tables, runs=tables.runs.assign(host_names="host of " + tables.runs["configuration"]))
    best = answer(apart, "throughput")
    assert (best.tied_total, best.not_told_apart_total) == (0, 1)
    assert {"local-2", "local-4"} == {best.choice.configuration, best.not_told_apart[0].configuration}


def test_without_the_system_no_shape_is_named_and_the_reason_is() -> None:
    document = recommend(planted_shapes.tables(system=None), "throughput")
    assert document.answers[0].choice is not None
    assert document.unmeasured == ()
    assert any("the hosts and the pool of the system are unknown" in sentence for sentence in document.basis)


def test_the_pool_is_what_the_system_says_and_may_be_used() -> None:
    system = SystemFile.model_validate(planted_shapes.SYSTEM)
    assert build_device_pool(system, "A100") == DeviceModelPool((8, 8, 8, 8), 32)
    assert build_device_pool(system, "T4") == DeviceModelPool((0, 0, 0, 0), 0)
    less = {"allowed_hosts": ["host[1-2]"], "quota": {"A100": 3}}
    assert build_device_pool(
        SystemFile.model_validate({**planted_shapes.SYSTEM, "tenancy": less}), "A100"
    ) == DeviceModelPool((8, 8), 3)
    static = {**planted_shapes.SYSTEM, "fabric": {"kind": "static"}, "pool": []}
    assert build_device_pool(SystemFile.model_validate(static), "A100").pooled_count == 0


def test_every_shape_that_the_numbers_allow_is_listed_and_no_other(planted: Tables) -> None:
    shapes = generate_allowed_shapes(DeviceModelPool((2, 1), 3), "A100", planted.cells)
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
        ([], ["not extrapolated"], [], "extrapolated"),
        ([], [], ["huge"], "measured workloads: big"),
    ],
)
def test_what_is_not_understood_is_said_with_what_is_allowed(
    objectives: list[str], constraints: list[str], workloads: list[str], said: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        parse_request(objectives, constraints, workloads, ["big"], [])


@pytest.fixture(scope="module")
def written(planted: Tables, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("recommended")
    (directory / "tables").mkdir()
    tableset.write_all_tables(planted, directory / "tables")
    write_recommendation(directory / "tables", directory / "recommendation")
    return directory


def test_the_file_is_the_same_byte_for_byte(written: Path) -> None:
    write_recommendation(written / "tables", written / "again")
    assert [path.name for path in (written / "again").iterdir()] == ["recommendation.json"]
    name = Path("recommendation.json")
    assert (written / "again" / name).read_bytes() == (written / "recommendation" / name).read_bytes()


def test_a_section_of_the_report_says_what_to_build_and_names_what_nobody_measured(
    written: Path, planted: Tables
) -> None:
    given = read_recommendation(written / "recommendation")
    page = report.render_report_page(planted.runs, planted.cells, [], planted.context, {}, given)
    assert re.findall(r'<section id="([^"]+)"', page)[:3] == ["answer", "answers", "recommendations"]
    section = page[page.index('<section id="recommendations"') :].partition("</section>")[0]
    assert "local-4, batch 32" in section
    assert " was measured in 4 runs on 2 compositions." in section
    assert ", ".join(given.unmeasured) in section
    (summary,) = re.findall(r'<a href="#recommendations">What to build</a>: ([^<]* for big, [^<]*)</li>', page)
    assert "; ties not known" not in summary


def test_all_answers_are_on_the_page_with_the_unit_once(written: Path) -> None:
    document = read_recommendation(written / "recommendation")
    answers = [answer.model_copy(update={"about": f"w{n}"}) for answer in document.answers for n in range(9)]
    section = build_recommendation_section(document.model_copy(update={"answers": answers}))
    shown = [answer["about"] for objective in section["objectives"] for answer in objective["answers"]]
    assert shown == [answer.about for answer in answers]
    assert section["left_out"] == 0
    assert [objective["unit"] for objective in section["objectives"]] == [
        "samples/s",
        "samples per device-hour",
        "device-hours per million samples",
    ]
    results = [row[1] for each in section["objectives"] for answer in each["answers"] for row in answer["rows"]]
    assert all(re.fullmatch(r"[\d,.]+ \([\d,.]+ to [\d,.]+\)", result) for result in results), results


def test_what_may_be_as_good_stands_below_with_its_interval_on_one_scale(written: Path) -> None:
    document = read_recommendation(written / "recommendation")
    first = document.answers[0]
    value = first.choice.value
    ends = {"value": 1.1 * value, "low": 1.05 * value, "high": 1.15 * value}
    other = first.choice.model_copy(update={"configuration": "other", **ends})
    beside = {"tied": (), "tied_total": 0, "not_told_apart": (other,), "not_told_apart_total": 3}
    said, alone, untested = (
        build_recommendation_section(document.model_copy(update={"answers": (first.model_copy(update=update),)}))
        for update in (beside, {}, {"comparable": False})
    )
    ((_, below),) = (each["rows"] for each in said["objectives"][0]["answers"])
    assert below[0].startswith("or other, ")
    assert below[2] == "2 more may be as good"
    assert said["basis"][-1] == "Each was measured in 4 runs on 2 compositions."
    assert below[3] == "10.0\u202f% [5.0\u202f% to 15.0\u202f%]"
    assert [each["kind"] for each in said["drawn"]["rows"]] == ["better", ""]
    assert alone["drawn"] is None
    assert untested["basis"] == [
        *alone["basis"],
        "Ties are unknown where each configuration was measured on one composition.",
    ]


def test_names_cannot_break_the_section(written: Path, planted: Tables) -> None:
    text = (written / "recommendation" / "recommendation.json").read_text()
    hostile = report_data.HOSTILE.replace('"', "'")
    text = text.replace("local-4", hostile).replace("1x8-local", hostile)
    given = RecommendationDocument.model_validate_json(text)
    page = report.render_report_page(planted.runs, planted.cells, [], planted.context, {}, given)
    assert report_data.HOSTILE not in page


def test_a_report_without_a_recommendation_has_no_such_section(planted: Tables, tmp_path: Path) -> None:
    assert read_recommendation(tmp_path) is None
    page = report.render_report_page(planted.runs, planted.cells, [], planted.context, {})
    assert "recommendations" not in page.split("<body")[1]


def test_a_document_of_another_form_is_an_error_that_names_the_key(written: Path, tmp_path: Path) -> None:
    document = json.loads((written / "recommendation" / "recommendation.json").read_text())
    for text in (json.dumps({**document, "surprise": 1}), "[]", "{"):
        (tmp_path / "recommendation.json").write_text(text)
        with pytest.raises(RecordError, match="surprise" if "surprise" in text else "cannot be read"):
            read_recommendation(tmp_path)


def test_a_document_of_an_earlier_version_is_made_anew_from_the_tables(written: Path, tmp_path: Path) -> None:
    results = Results.from_directory(shutil.copytree(written, tmp_path / "results"))
    earlier = {"schema_version": "recommendation/1", "answers": [], "models": [], "figure": None}
    (results.recommendation / "recommendation.json").write_text(json.dumps(earlier))
    assert read_recommendation(results.recommendation) is None
    render_report(results.tables, results.figures, tmp_path / "report.html", scripts=tmp_path)
    assert "local-4, batch 32" in (tmp_path / "report.html").read_text()


def test_nothing_measured_is_nothing_recommended(tmp_path: Path, planted: Tables) -> None:
    empty = replace(planted, runs=planted.runs.iloc[:0], cells=planted.cells.iloc[:0])
    tableset.write_all_tables(empty, tmp_path)
    write_recommendation(tmp_path, tmp_path / "recommendation")
    document = json.loads((tmp_path / "recommendation" / "recommendation.json").read_bytes())
    assert document["answers"] == []
    assert "nothing to recommend" in document["basis"][0]
    page = report.render_report_page(
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
    assert "unmeasured shapes: 1x2-hybrid, 1x4-hybrid." in shown.output
