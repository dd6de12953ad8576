"""Two campaigns held against each other: planted changes are found, chance is not, and the gate says which is which."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from io import StringIO
from pathlib import Path
from typing import Any

import click
import numpy as np
import pandas as pd
import pytest
import yaml
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from campaign.analysis.compare import CampaignComparison, build_document, compare, parse_rule
from campaign.analysis.compare.comparison import _average_ratios, _combine_runs
from campaign.analysis.published import NOT_MEASURED
from campaign.analysis.published.claims import evaluate_claims
from campaign.analysis.tables import io
from campaign.analysis.tables.cells import build_cells_table
from campaign.analysis.tables.io import Tables
from campaign.analysis.tables.runs import build_runs_table
from campaign.cli.compare import _check_claim_rule, _rename_workloads
from campaign.cli.main import main
from campaign.common.errors import ConfigError
from campaign.report.compare_exports import format_csv, format_junit, format_markdown
from campaign.report.compare_page import describe_findings, render_claims_page, render_compare_page
from campaign.spec.cell import Cell
from campaign.spec.published_file import load_set
from tests.unit.report import report_data as synthetic


def tables(
    name: str, seed: int, factor: Callable[[Cell], float] = lambda cell: 1.0, first: int = 0, noise: float = 0.005
) -> Tables:
    """The synthetic campaign on leases of its own, with throughputs times `factor`, without its `first` cells."""
    plan = synthetic.planned()[first:]
    records = [
        record.model_copy(
            update={
                "lease_id": f"{name}-{record.lease_id}",
                "throughput_per_s": record.throughput_per_s and record.throughput_per_s * factor(cell),
            }
        )
        for record, cell in _with_cells(plan, seed, noise)
    ]
    runs = build_runs_table(records)
    context = synthetic.context_document()
    context["campaign"]["name"] = name
    return Tables(runs, build_cells_table(plan, runs), [], [], context)


def _with_cells(plan: Any, seed: int, noise: float) -> Any:
    cells = {entry.cell.id: entry.cell for entry in plan}
    return ((record, cells[record.cell_id]) for record in synthetic.records(plan, seed, noise))


def slower(cell: Cell) -> float:
    return 0.9 if cell.workload == "bert" and cell.precision == "fp16" else 1.0


@pytest.fixture(scope="module")
def before() -> Tables:
    return tables("before", 1)


@pytest.fixture(scope="module")
def after() -> Tables:
    return tables("after", 2, slower, first=2)


@pytest.fixture(scope="module")
def compared(before: Tables, after: Tables) -> CampaignComparison:
    return compare(before, after, [parse_rule("throughput < -5%"), parse_rule("state")])


def test_a_planted_change_is_found_and_nothing_else(compared: CampaignComparison) -> None:
    rows = compared.rows[compared.rows["ratio"].notna()]
    planted = (rows["workload"] == "bert") & (rows["precision"] == "fp16")
    assert (rows.loc[planted, "says"] == "slower").mean() > 0.9
    assert (rows.loc[~planted, "says"].isin(["slower", "faster"])).sum() <= 1  # Holm: 5 % for any at all
    assert rows.loc[planted, "ratio"].to_numpy() == pytest.approx(0.9, rel=0.02)
    assert rows.loc[~planted, "says"].str.startswith("no difference larger than").any()


def test_what_stands_in_one_alone_is_listed(compared: CampaignComparison, before: Tables) -> None:
    assert len(compared.only_base) == 2
    assert compared.only_other.empty
    assert len(compared.rows) == len(before.cells) - 2


def test_means_count_each_cell_once(compared: CampaignComparison) -> None:
    rows = compared.rows[compared.rows["workload"] == "bert"]
    mean = compared.means.set_index("workload").loc["bert"]
    logs = np.log(rows["ratio"].dropna())
    assert mean["ratio"] == pytest.approx(np.exp(logs.mean()))
    assert mean["low"] < mean["ratio"] < mean["high"]
    assert set(compared.means["workload"]) == {"bert", "resnet", "all cells"}


def test_significant_changes_are_said_as_a_range_of_estimates_without_intervals(compared: CampaignComparison) -> None:
    (said,) = (each for each in describe_findings(compared) if "changed significantly" in each)
    count = int(compared.rows["says"].isin(["slower", "faster"]).sum())
    tested = int(compared.rows["p"].notna().sum())
    ends = r"from −1\S+ % \(.*bert.*\) to −9\S+ % \(.*bert.*\)"
    pattern = rf"{count} of {tested} cells changed significantly; the estimated changes range {ends}\."
    assert re.fullmatch(pattern, said.replace("\u202f", " ")), said
    assert "[" not in said


def test_the_other_way_round_gives_the_inverse(before: Tables, after: Tables, compared: CampaignComparison) -> None:
    back = compare(after, before).rows.set_index("cell")
    there = compared.rows.set_index("cell").loc[back.index]
    assert (there["ratio"] * back["ratio"]).dropna().to_numpy() == pytest.approx(1)
    assert (there["low"] * back["high"]).dropna().to_numpy() == pytest.approx(1)


def test_cells_match_by_content_whatever_they_are_called(before: Tables) -> None:
    renamed = replace(before, cells=before.cells.assign(configuration="c" + before.cells["configuration"]))
    found = compare(before, renamed)
    assert len(found.rows) == len(before.cells)
    assert set(found.rows["by"]) == {"content"}


def test_names_are_the_last_resort_and_it_is_said(before: Tables) -> None:
    elsewhere = replace(before, cells=before.cells.assign(device="H100"))
    found = compare(before, elsewhere)
    assert set(found.rows["by"]) == {"names"}
    assert set(found.rows["differs"]) == {"device A100 / H100"}
    assert "matched only by name" in render_compare_page(found)


def test_equal_shapes_match_whatever_sites_call_configurations_and_devices(before: Tables) -> None:
    names = {name: f"c{number}" for number, name in enumerate(before.cells["configuration"].unique())}
    renamed = before.cells.assign(configuration=before.cells["configuration"].map(names))
    assert set(compare(before, replace(before, cells=renamed)).rows["by"]) == {"content"}
    found = compare(before, replace(before, cells=renamed.assign(device="H100")))
    assert len(found.rows) == len(before.cells)
    assert set(found.rows["by"]) == {"shape"}
    assert set(found.rows["differs"]) == {"device A100 / H100"}
    assert "matched only by shape" in render_compare_page(found)


def test_an_option_is_part_of_what_a_cell_is(before: Tables) -> None:
    ddp = replace(before, cells=before.cells.assign(option_parallel="ddp"))
    dp = replace(before, cells=before.cells.assign(option_parallel="dp"))
    assert compare(ddp, dp).rows.empty
    without = compare(before, ddp)
    assert set(without.rows["differs"]) == {"parallel none / ddp"}


def test_a_cell_of_several_under_one_name_is_not_guessed(before: Tables) -> None:
    alike = {"hosts": 1, "attach": "local", "storage": "local"}
    alike |= dict.fromkeys(("devices_per_host", "local_devices_per_host", "devices_used"), 4)
    cells = before.cells.assign(configuration="same", **alike)
    found = compare(replace(before, cells=cells), replace(before, cells=cells.assign(device="H100")))
    assert found.rows.empty
    assert len(found.only_base) == len(cells)


def adjusted_by_a_reference(tables: Tables, speed: float, hardware: str = "x") -> Tables:
    """The tables with runs of a reference in every lease, as a campaign has them that is adjusted by it."""
    leases = tables.runs.drop_duplicates("lease_id")[["lease_id", "configuration", "started"]]
    noise = np.random.default_rng(1).normal(1, 0.001, len(leases))
    reference = leases.assign(attach="fabric", hardware=hardware, status="ok", repetition=1, value=speed * noise)
    about = dict(tables.context["campaign"])
    context = {
        **tables.context,
        "campaign": {**about, "protocol": {**about["protocol"], "reference": {"adjust": True}}},
    }
    return replace(tables, reference=reference, context=context)


def test_what_changed_the_reference_of_both_campaigns_as_well_is_no_change(before: Tables) -> None:
    """A system that became 10 % slower altogether, on leases of their own."""
    runs = before.runs.assign(value=0.9 * before.runs["value"], started=before.runs["started"] + 1e6)
    after = replace(before, runs=runs)
    one = adjusted_by_a_reference(before, 1.0)
    found = compare(one, adjusted_by_a_reference(after, 0.9))
    known = found.rows[found.rows["ratio"].notna()]
    assert known["ratio"].to_numpy() == pytest.approx(1.0, abs=0.01)
    assert known["adjusted"].all()
    assert any("relative to the reference" in said for said in describe_findings(found))
    # A reference on another kind of device, or one in a single campaign, says nothing of both.
    for other in (adjusted_by_a_reference(after, 0.9, "y"), after):
        plain = compare(one, other).rows
        assert "adjusted" not in plain
        assert plain["ratio"].dropna().to_numpy() == pytest.approx(0.9, abs=0.01)


def test_runs_of_one_block_are_paired(before: Tables) -> None:
    shared = before.runs.assign(value=before.runs["value"] * 1.01)
    other = replace(before, runs=shared, cells=before.cells.assign(mean=before.cells["mean"] * 1.01))
    rows = compare(before, other).rows
    rows = rows[rows["ratio"].notna()]
    assert rows["paired"].all()
    assert rows["ratio"].to_numpy() == pytest.approx(1.01)
    width = rows["high"] - rows["low"]
    assert width.median() < 0.02  # what leases share cancels
    assert width.max() < 0.05  # a cell whose own differences are larger keeps them


def test_states_that_changed_are_named_and_break_the_gate(before: Tables) -> None:
    cells = before.cells.copy()
    lost = cells.index[(cells["state"] == "measured")][0]
    cells.loc[lost, ["state", "failures", "n_ok", "mean"]] = ["failed", "oom_device x4", 0, np.nan]
    found = compare(before, replace(before, cells=cells), [parse_rule("state")])
    assert found.changed_outcomes[["base_outcome", "outcome"]].to_numpy().tolist() == [["ok", "oom_device"]]
    assert [each.change for each in found.violations] == ["measured → oom_device"]


def test_the_gate_fails_for_what_changed_and_passes_what_did_not(before: Tables, compared: CampaignComparison) -> None:
    assert {each.rule for each in compared.violations} == {"throughput < -5%"}
    assert all("bert" in each.where for each in compared.violations)
    assert any(each.where.startswith("mean over") for each in compared.violations)
    again = compare(before, tables("again", 5), [parse_rule("throughput < -1%"), parse_rule("throughput > 1%")])
    assert len(again.violations) <= 1


def test_a_change_by_chance_breaks_nothing() -> None:
    noisy = [tables(name, seed, noise=0.2) for name, seed in (("one", 1), ("two", 2))]
    found = compare(noisy[0], noisy[1], [parse_rule("throughput < -5%")])
    beyond = found.rows["ratio"] < 0.95
    assert beyond.sum() > 10
    assert len(found.violations) <= 1


def test_one_composition_each_breaks_no_rule_unless_others_tell_its_spread(before: Tables) -> None:
    cells = before.cells.assign(n_ok=before.cells["n_ok"].clip(upper=1), sd=np.nan)
    once = replace(before, cells=cells, runs=before.runs[before.runs["repetition"] == 1])
    slow = once.runs.assign(value=once.runs["value"] / 2, lease_id=once.runs["lease_id"] + " again")
    found = compare(once, replace(once, runs=slow), [parse_rule("throughput < -5%")])
    # The changes of many configurations tell how much one deviates; those of two do not.
    assert {each.change for each in found.violations} == {"−50.0\u202f%"}
    few = [
        replace(each, cells=each.cells[each.cells["configuration"].isin(["local-4", "fabric-4"])])
        for each in (once, replace(once, runs=slow))
    ]
    found = compare(*few, [parse_rule("throughput < -5%")])
    assert not found.violations
    assert {each.change for each in found.untested_violations} == {"−50.0\u202f%"}
    assert set(found.rows.loc[found.rows["ratio"].notna(), "says"]) == {"no interval: only one run"}


def test_metrics_have_gates_too(before: Tables) -> None:
    hungry = replace(before, runs=before.runs.assign(energy_per_sample_j=before.runs["energy_per_sample_j"] * 1.3))
    assert not compare(before, hungry, [parse_rule("energy_per_sample_j < -10%")]).violations
    found = compare(before, hungry, [parse_rule("energy_per_sample_j > 10%")])
    measured = int(before.cells["n_ok"].gt(0).sum())
    assert len(found.violations) == measured
    with pytest.raises(ConfigError, match="did you mean 'energy_per_sample_j'"):
        compare(before, hungry, [parse_rule("energy_per_sample > 10%")])
    with pytest.raises(ConfigError, match="allowed quantities: throughput, state, throughput_per_s,") as told:
        compare(before, hungry, [parse_rule("zzz > 10%")])
    assert not set(re.findall(r"\w+", str(told.value))) & {"repetition", "hosts", "started", "ended", "batch", "ranks"}


def read_junit(comparison: CampaignComparison) -> dict[str, ElementTree.Element]:
    """Parse a JUnit document, check it against Jenkins' junit-10.xsd, and return its test cases by name."""
    root = ElementTree.fromstring(format_junit(comparison))
    required = {"testsuites": set(), "testsuite": {"name", "tests", "failures", "errors"}, "testcase": {"name"}}
    optional = {"testsuite": {"skipped"}, "testcase": {"classname"}}
    children = {
        "testsuites": {"testsuite"},
        "testsuite": {"properties", "testcase"},
        "properties": {"property"},
        "testcase": {"failure", "skipped"},
    }
    required |= {"property": {"name", "value"}}
    optional |= {"failure": {"type", "message"}, "skipped": {"message"}}
    for element in root.iter():
        names = set(element.attrib)
        assert required.get(element.tag, set()) <= names
        assert names <= required.get(element.tag, set()) | optional.get(element.tag, set())
        assert {child.tag for child in element} <= children.get(element.tag, set())
    (suite,) = root
    cases = suite.findall("testcase")
    for attribute, path in (("tests", "testcase"), ("failures", "testcase[failure]"), ("skipped", "testcase[skipped]")):
        assert suite.get(attribute) == str(len(suite.findall(path)))
    assert len({case.get("name") for case in cases}) == len(cases)
    return {str(case.get("name")): case for case in cases}


def test_junit_fails_the_cells_that_became_slower(before: Tables, after: Tables) -> None:
    comparison = compare(before, after, names=("v1.zip", f"{synthetic.HOSTILE}\x00"))
    cases = read_junit(comparison)
    rows = comparison.rows[comparison.rows["base_state"] == "measured"]
    assert list(cases) == rows["cell"].tolist()
    failed = {name for name, case in cases.items() if case.find("failure") is not None}
    assert failed == set(rows.loc[rows["says"] == "slower", "cell"])
    assert failed
    failure = cases[min(failed)].find("failure")
    assert failure is not None
    assert failure.get("type") == "significantly slower"
    assert re.match(r"−1\S+ % \[−1.* p ", str(failure.get("message")).replace("\u202f", " "))


def test_junit_fails_what_the_rules_fail_and_nothing_else(before: Tables, after: Tables) -> None:
    cells = after.cells.copy()
    lost = cells["cell_id"] == cells.loc[cells["state"] == "measured", "cell_id"].iloc[0]
    cells.loc[lost, ["state", "failures", "n_ok", "mean"]] = ["failed", "oom_device x3", 0, np.nan]
    other = replace(after, cells=cells, runs=after.runs[after.runs["cell_id"] != cells.loc[lost, "cell_id"].iloc[0]])
    (outcome,) = compare(before, other).changed_outcomes["cell"]
    skipped = read_junit(compare(before, other))[outcome].find("skipped")
    assert skipped is not None
    assert skipped.get("message") == "measured → oom_device"
    for texts, tolerant in ((("throughput < -50%", "state"), True), (("throughput < -5%",), False)):
        comparison = compare(before, other, [parse_rule(text) for text in texts])
        failed = {name for name, case in read_junit(comparison).items() if case.find("failure") is not None}
        assert failed == {item.where for item in comparison.violations}
        assert (failed == {outcome}) == tolerant
        assert any("mean over" in name for name in failed) != tolerant


def test_junit_skips_what_was_not_tested(before: Tables) -> None:
    runs = before.runs[before.runs["repetition"] == 1]
    few = before.cells[before.cells["configuration"].isin(["local-4", "fabric-4"])]
    once = replace(before, cells=few.assign(n_ok=few["n_ok"].clip(upper=1), sd=np.nan), runs=runs)
    slow = replace(once, runs=runs.assign(value=runs["value"] / 2, lease_id=runs["lease_id"] + " again"))
    for rules in ((), ("throughput < -5%",)):
        cases = read_junit(compare(once, slow, [parse_rule(text) for text in rules]))
        assert cases
        reasons = {str(skipped.get("message")) for case in cases.values() for skipped in case.iter("skipped")}
        assert len([case for case in cases.values() if case.find("skipped") is not None]) == len(cases)
        assert {reason.replace("\u202f", " ") for reason in reasons} == (
            {"not tested: throughput < -5%: −50.0 %"} if rules else {"no interval: only one run"}
        )


def test_csv_has_every_cell_with_its_ratio(compared: CampaignComparison) -> None:
    table = pd.read_csv(StringIO(format_csv(compared)))
    assert table["cell"].tolist() == compared.rows["cell"].tolist()
    assert table["ratio"].to_numpy() == pytest.approx(compared.rows["ratio"].to_numpy(), nan_ok=True)


def test_markdown_has_findings_violations_and_the_largest_changes(compared: CampaignComparison) -> None:
    text = format_markdown(replace(compared, base="a|b", other="*v2*"))
    assert text.startswith("## \\*v2\\* against a\\|b\n\n- ")
    assert f"**{len(compared.violations)} violations** of throughput \\< -5%, state" in text
    tables = text.split("\n### ")[1:]
    assert [table.partition("\n")[0] for table in tables][:2] == ["Violations", "Largest changes"]
    for table in tables:
        lines = [line for line in table.splitlines() if line.startswith("|")]
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in lines}) == 1
        assert len(lines) <= 22
    hidden = compared.compared_count - 20
    assert f"{hidden} more are in `--format json`." in tables[1]


def test_exports_are_formats_of_the_command_but_not_of_published_claims(directories: tuple[str, str]) -> None:
    starts = {"csv": "configuration,", "junit": "<testsuites>", "markdown": "## B against A"}
    for style, start in starts.items():
        failing = run(*directories, "--format", style, "--fail-on", "throughput < -5%")
        assert failing.stdout.startswith(start)
        assert failing.exit_code == 1
        refused = run(directories[0], "falcon", "--format", style)
        assert refused.exit_code == 1
        assert f"--format {style} compares two campaigns" in refused.stderr


@pytest.mark.parametrize(
    "text", ["throughput", "throughput < 5", "throughput = 5%", "< 5%", "throughput < -5% or state", ""]
)
def test_what_is_no_rule_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a valid rule; write 'state', or a quantity"):
        parse_rule(text)


@given(
    limit=st.floats(-1e6, 1e6, allow_nan=False).map(lambda x: round(x, 3)), test=st.sampled_from(["<", "<=", ">", ">="])
)
@settings(max_examples=30)
def test_rules_are_read_as_written(limit: float, test: str) -> None:
    rule = parse_rule(f" throughput {test}{limit:.3f} % ")
    assert (rule.quantity, rule.test, rule.limit_pct) == ("throughput", test, limit)


def test_what_differs_around_the_numbers_is_listed(before: Tables) -> None:
    context = json.loads(json.dumps(before.context))
    context["software"][1]["version"] = "2.14.0"
    context["environments"] = {"f" * 20: {"cpu": "another processor", "torch": "2.13.0", "host": "elsewhere"}}
    found = {
        each.what: (each.base, each.other)
        for each in compare(before, replace(before, context=context)).context_differences
    }
    assert found == {"software: torch": ("2.13.0", "2.14.0"), "cpu": ("a processor", "another processor")}


def with_program(tables: Tables, command: list[str], sha256: str = "a" * 64, words: str = "") -> Tables:
    document = {
        "workloads": {"bert": {"kind": "command", "description": words, "command": command, "cleanup": []}},
        "inputs": {"bert": {"train.py": {"path": "/anywhere/train.py", "sha256": sha256}}},
    }
    return replace(tables, context={**tables.context, "campaign_yaml": yaml.safe_dump(document)})


@pytest.mark.parametrize(
    ("changes", "what", "named"),
    [
        ({"sha256": "b" * 64}, "input train.py", "is a different program in before (B): input train.py differs."),
        (
            {"command": ["python", "train.py", "--fast"]},
            "command",
            "is a different program in before (B): command differs.",
        ),
        ({"words": "another text"}, "description", ""),
    ],
)
def test_another_program_of_the_same_name_is_named(
    before: Tables, changes: dict[str, Any], what: str, named: str
) -> None:
    same = {"command": ["python", "train.py"]}
    found = compare(with_program(before, **same), with_program(before, **{**same, **changes}))
    assert [each.what for each in found.context_differences] == [f"workload bert: {what}"]
    told = [each for each in describe_findings(found) if "a different program" in each]
    assert [each.partition(". ")[0] for each in told] == ([f"bert {named}".rstrip(".")] if named else [])
    assert "No recorded software" not in render_compare_page(found)


def test_programs_under_two_names_are_compared_where_they_are_matched(before: Tables) -> None:
    other = with_program(before, ["python", "train.py"], "b" * 64)
    renamed = replace(
        _rename_workloads(other, other, ()),
        context={**other.context, "campaign_yaml": other.context["campaign_yaml"].replace("bert:", "own-bert:")},
        runs=other.runs.assign(workload=other.runs["workload"].replace("bert", "own-bert")),
        cells=other.cells.assign(workload=other.cells["workload"].replace("bert", "own-bert")),
    )
    base = with_program(before, ["python", "train.py"])
    assert compare(base, _rename_workloads(base, renamed, ["bert=own-bert"])).program_differences == {
        "bert": ("input train.py",)
    }


def test_a_mean_over_cells_that_are_not_tested_is_not_tested(before: Tables) -> None:
    few = before.cells[before.cells["configuration"].isin(["local-4", "fabric-4"])]
    once = replace(
        before,
        cells=few.assign(n_ok=few["n_ok"].clip(upper=1), sd=np.nan),
        runs=before.runs[before.runs["repetition"] == 1],
    )
    slow = once.runs.assign(value=once.runs["value"] / 2, lease_id=once.runs["lease_id"] + " again")
    found = compare(once, replace(once, runs=slow), [parse_rule("throughput < -5%")])
    assert not found.rows["tested"].any()
    assert not found.violations
    assert {each.where for each in found.untested_violations if "mean over" in each.where} == {
        f"mean over {row['cells']} cells of {row['workload']}"
        for row in found.means.to_dict("records")
        if row["cells"] > 1
    }
    assert found.means[["low", "high", "p"]].isna().all(axis=None)
    assert "(not tested)" in " ".join(describe_findings(found))


def test_a_mean_is_over_the_cells_that_are_tested(before: Tables, after: Tables, compared: CampaignComparison) -> None:
    known = compared.rows[compared.rows["ratio"].notna()]
    lost = known.index[known["workload"] == "bert"][0]
    rows = compared.rows.assign(tested=compared.rows["tested"] & (compared.rows.index != lost))
    rows.loc[lost, "ratio"] = 0.01
    mean = _average_ratios(rows).set_index("workload").loc["bert"]
    rest = known[(known["workload"] == "bert") & (known.index != lost)]["ratio"]
    assert (mean["cells"], mean["ratio"]) == (len(rest), pytest.approx(np.exp(np.log(rest).mean())))


def test_gpus_differ_by_what_they_are_not_by_which() -> None:
    from campaign.analysis.compare.comparison import compare_contexts

    def with_gpu(line: str) -> dict[str, Any]:
        return {"environments": {"a": {"gpus": [line]}}}

    one = with_gpu("0, GPU-aaaa, NVIDIA A100, 40960 MiB, 550.1, 4, 16")
    assert not list(compare_contexts(one, with_gpu("1, GPU-bbbb, NVIDIA A100, 40960 MiB, 550.1, 4, 16")))
    assert [
        each.what for each in compare_contexts(one, with_gpu("0, GPU-aaaa, NVIDIA A100, 40960 MiB, 560.0, 4, 16"))
    ] == ["gpus"]


def test_settings_of_devices_differ_by_what_they_are() -> None:
    from campaign.analysis.compare.comparison import compare_contexts

    def with_device(**settings: Any) -> dict[str, Any]:
        return {"environments": {"a": {"devices": [{"uuid": "GPU-a", "power_limit_w": 700.0, **settings}]}}}

    assert not list(compare_contexts(with_device(), with_device(uuid="GPU-b", address="0000:17:00.0")))
    (found,) = compare_contexts(with_device(), with_device(power_limit_w=500.0))
    assert (found.what, found.base, found.other) == ("devices: power limit w", "700.0", "500.0")


def test_campaigns_of_one_name_are_told_apart(before: Tables) -> None:
    found = compare(before, before)
    assert (found.base, found.other) == ("before (A)", "before (B)")
    assert set(found.rows["ratio"].dropna()) == {1.0}


def test_empty_campaigns_compare_to_nothing(before: Tables) -> None:
    empty = replace(before, cells=before.cells.iloc[:0], runs=before.runs.iloc[:0])
    found = compare(before, empty, [parse_rule("throughput < -5%")])
    assert found.rows.empty
    assert len(found.only_base) == len(before.cells)
    assert found.means.empty
    assert "No cell was measured in both" in render_compare_page(found)


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href")]


def test_the_page_is_whole_and_escapes_what_campaigns_say(compared: CampaignComparison) -> None:
    hostile = replace(compared, base=synthetic.HOSTILE)
    page = render_compare_page(hostile)
    reader = _Reader()
    reader.feed(page)
    assert "script" not in reader.tags
    assert all(address.startswith(("#", "data:")) for address in reader.addresses)
    assert page == render_compare_page(hostile)
    assert re.search(r"42 breaches|\d+ breaches", page)


def test_the_document_is_json_without_nan(compared: CampaignComparison) -> None:
    text = json.dumps(build_document(compared), allow_nan=False)
    again = json.loads(text)
    assert again["schema_version"] == "comparison/1"
    assert len(again["cells"]) == len(compared.rows)
    assert [each["ratio"] for each in again["cells"]].count(None) == int(compared.rows["ratio"].isna().sum())


@pytest.fixture(scope="module")
def directories(before: Tables, after: Tables, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    root = tmp_path_factory.mktemp("compare")
    for name, each in (("A", before), ("B", after)):
        (root / name / "tables").mkdir(parents=True)
        io.write_all_tables(each, root / name / "tables")
    return str(root / "A"), str(root / "B")


def run(*arguments: str) -> Any:
    return CliRunner().invoke(main, ["compare", *arguments])


def test_the_command_fails_where_a_rule_is_broken(directories: tuple[str, str], tmp_path: Path) -> None:
    page = tmp_path / "changes.html"
    failed = run(*directories, "--fail-on", "throughput < -5%", "--output", str(page))
    assert failed.exit_code == 1
    assert "fails: throughput < -5%" in failed.stderr
    assert "B against A" in page.read_text(encoding="utf-8")
    assert run(*directories, "--fail-on", "throughput < -50%").exit_code == 0


def test_the_baseline_can_be_the_second(directories: tuple[str, str]) -> None:
    turned = json.loads(run(*directories, "--baseline", "after", "--format", "json").stdout)
    assert (turned["base"], turned["other"]) == ("B", "A")
    refused = run(*directories, "--baseline", "neither")
    assert refused.exit_code == 1
    assert "is neither of the two" in refused.stderr


def test_sides_are_named_as_they_were_typed(directories: tuple[str, str], tmp_path: Path) -> None:
    twin = tmp_path / "A"
    twin.symlink_to(directories[0])
    shown = run(*directories).stdout
    assert shown.startswith("B compared with A: ")
    assert "only in A, 0 only in B" in shown
    twins = json.loads(run(directories[0], str(twin), "--format", "json").stdout)
    assert (twins["base"], twins["other"]) == (directories[0], str(twin))
    same = json.loads(run(directories[0], directories[0], "--format", "json").stdout)
    assert (same["base"], same["other"]) == (f"{directories[0]} (A)", f"{directories[0]} (B)")


def test_the_command_holds_a_campaign_against_published_claims(directories: tuple[str, str]) -> None:
    said = json.loads(run(directories[0], "falcon", "--format", "json").stdout)
    assert len(said["claims"]) == 48
    both = run("falcon", "faster")
    assert both.exit_code == 1
    assert "one of them must be a campaign" in both.stderr
    assert run("faster", directories[0], "--fail-on", "throughput < 1%").exit_code == 2
    shown = run(directories[0], "falcon").stdout
    assert "claims were not measured (the page of --output gives the reasons)" in shown
    assert "a figure of the hardware there" not in shown


def test_the_gate_of_claims_says_what_differs_and_does_not_count(capsys: pytest.CaptureFixture[str]) -> None:
    claim = {"id": "a.one", "says": "it is so", "here": "9 %", "verdict": "differs", "other": ["device b instead of a"]}
    _check_claim_rule([claim, {**claim, "verdict": "agrees"}])
    assert (
        "1 claim differs only under other conditions or with another program and does not count"
        in capsys.readouterr().err
    )
    with pytest.raises(click.exceptions.Exit):
        _check_claim_rule([claim, {**claim, "other": []}])
    assert "fails: differs: a.one" in capsys.readouterr().err


def test_a_gate_that_compares_nothing_does_not_pass(
    directories: tuple[str, str], before: Tables, tmp_path: Path
) -> None:
    (tmp_path / "tables").mkdir()
    nothing = before.cells.assign(workload="another")
    io.write_all_tables(replace(before, cells=nothing), tmp_path / "tables")
    empty = run(directories[0], str(tmp_path), "--fail-on", "throughput < -5%")
    assert empty.exit_code == 2
    assert "cannot be checked" in empty.stderr
    assert run(directories[0], "falcon.zip", "--fail-on", "state").exit_code == 2
    assert run(directories[0], "falcon.zip").exit_code == 1


def test_a_campaign_that_was_never_run_agrees_with_nothing(
    before: Tables, directories: tuple[str, str], tmp_path: Path
) -> None:
    (tmp_path / "tables").mkdir()
    never = before.cells.assign(n_ok=0, state="missing", n_missing=before.cells["n_planned"], mean=np.nan)
    io.write_all_tables(replace(before, runs=before.runs.head(0), cells=never), tmp_path / "tables")
    for claims in ("faster", "falcon", "bitfusion"):
        said = json.loads(run(str(tmp_path), claims, "--format", "json").stdout)
        assert {claim["verdict"] for claim in said["claims"]} == {NOT_MEASURED}
    gate = run(str(tmp_path), "faster", "--fail-on", "differs")
    assert gate.exit_code == 2
    assert "cannot be checked" in gate.stderr


def test_the_page_of_claims_says_them(before: Tables) -> None:
    page = render_claims_page(before.name, evaluate_claims([load_set("faster")], before))
    assert "Published and measured here" in page
    assert "were not measured here" in page


def test_frames_keep_their_order(compared: CampaignComparison, before: Tables) -> None:
    expected = before.cells["cell_id"].iloc[2:].reset_index(drop=True)
    pd.testing.assert_series_equal(compared.rows["cell_id"], expected, check_names=False)


def test_leases_of_equal_names_are_other_leases_unless_they_hold_the_same_run() -> None:
    runs = pd.DataFrame({
        "cell_id": ["a", "b"], "repetition": 1, "started": [1.0, 2.0], "lease_id": ["c.x.1", ""], "configuration": "x",
    })  # fmt: skip
    again = runs.assign(started=runs["started"] + 1000)
    assert set(_combine_runs(runs, again)["lease_id"]) == {"base c.x.1", "other c.x.1", ""}
    assert set(_combine_runs(runs, again)["configuration"]) == {"base x", "other x"}
    assert set(_combine_runs(runs, runs)["lease_id"]) == {"c.x.1", ""}


def test_the_page_says_how_both_sides_were_measured_and_what_stood_for_hardware(before: Tables, after: Tables) -> None:
    emulated = {**after.context, "conditions": ["the fabric is simulated"]}
    longer = replace(after, context=emulated, runs=after.runs.assign(warmup_steps=9, warmup_steps_max=9))
    found = compare(before, longer)
    page = render_compare_page(found)
    assert "5 warm-up and 20 measured steps per run" in found.protocols[0]
    assert found.protocols[1].startswith(f"{after.name}: Protocol: 9 warm-up and 20 measured steps per run")
    assert "The fabric is simulated." in page
    assert "between cells that were measured differently (such as 9 warm-up steps against 5)" in page
    assert "Each cell was measured on 2 compositions." in page
    assert "at different times" in page
    alike = compare(before, after)
    assert len(alike.protocols) == 1
    assert "unlike" not in render_compare_page(alike)


def test_workloads_with_different_names_are_matched_on_request(before: Tables, after: Tables) -> None:
    runs, cells = (
        table.assign(workload=table["workload"].replace("bert", "own-bert")) for table in (after.runs, after.cells)
    )
    renamed = replace(after, runs=runs, cells=cells)
    assert "bert" not in set(compare(before, renamed).rows["workload"])
    found = compare(before, _rename_workloads(before, renamed, ["bert=own-bert"]))
    assert found.rows.equals(compare(before, after).rows)
    with pytest.raises(ConfigError, match="no workload 'bret'"):
        _rename_workloads(before, renamed, ["bert=bret"])
