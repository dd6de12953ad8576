from __future__ import annotations

import json
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from campaign.analysis.tables.collect import (
    build_tables,
    read_campaign_results,
    read_planned_results,
    write_campaign_tables,
)
from campaign.analysis.tables.collected import CampaignResults
from campaign.analysis.tables.columns import COLUMN_MEANINGS
from campaign.analysis.tables.io import read_tables
from campaign.analysis.tables.leases import build_leases_table, build_operations_table
from campaign.analysis.tables.report_context import build_context_document
from campaign.analysis.tables.run_notes import list_device_evidence_notes
from campaign.common.errors import RecordError
from campaign.common.files import write_json
from campaign.common.paths import Results
from campaign.emulators.hosts.emulation_plan import describe_links
from campaign.emulators.hosts.topology import LinkRates
from campaign.plan.baseline import choose_baseline
from campaign.plan.campaign.resolve import Campaign, load_campaign
from campaign.plan.dag import read_plan
from campaign.plan.request import PlanRequest
from campaign.plan.write import write_plan
from campaign.slurm.excluded_hosts import ExcludedHosts
from campaign.spec.race import RaceDocument, write_race
from campaign.spec.record import RecordStore
from tests.campaign_files import load, write_files
from tests.campaign_records import fill, write
from tests.unit.archive import archive_data


@pytest.fixture
def campaign(tmp_path: Path) -> Campaign:
    return load(tmp_path / "config")


@pytest.fixture
def results(tmp_path: Path, campaign: Campaign) -> Path:
    fill(campaign, tmp_path / "results")
    return tmp_path / "results"


def test_all_records_and_leases_of_the_campaign_are_gathered(campaign: Campaign, results: Path) -> None:
    collected = read_campaign_results(campaign, results)
    assert len(collected.records) == 32
    assert [lease["lease"] for lease in collected.leases] == [f"{c.name}.c1" for c in campaign.configurations]


def test_records_share_what_is_equal_and_hold_steps_as_arrays(campaign: Campaign, results: Path) -> None:
    """Thousands of records would otherwise take a third more memory."""
    records = read_campaign_results(campaign, results).records
    assert {type(times) for record in records for times in record.step_times_s} == {array}
    first, second = records[:2]
    assert first.key != second.key
    for name in ("specification", "cell", "cell_id", "environment", "phases_s", "in_force"):
        assert getattr(second, name) is getattr(first, name)


def test_steps_are_read_as_written_with_the_ids_of_cells_as_a_category(
    campaign: Campaign, results: Path, tmp_path: Path
) -> None:
    collected = read_campaign_results(campaign, results)
    write_campaign_tables(collected, tmp_path / "tables")
    steps = read_tables(tmp_path / "tables").steps
    assert isinstance(steps["cell_id"].dtype, pd.CategoricalDtype)
    assert len(steps) == 32
    pd.testing.assert_frame_equal(steps.astype({"cell_id": "str"}), build_tables(collected).steps)


def test_a_subset_gathers_only_its_records(campaign: Campaign, results: Path) -> None:
    collected = read_campaign_results(campaign, results, "batch == 2")
    assert {record.cell.batch for record in collected.records} == {2}
    assert len(collected.records) == 16


def test_records_of_cells_that_are_no_longer_asked_for_are_left_out(tmp_path: Path, results: Path) -> None:
    smaller = load(tmp_path / "smaller", {"campaign.axes.batch": 1, "campaign.protocol.repetitions": 1})
    assert len(read_campaign_results(smaller, results).records) == 8


def test_foreign_files_do_no_harm(campaign: Campaign, results: Path) -> None:
    shard = next((results / "records").iterdir())
    for path in (
        shard / "notes.txt",
        results / "records" / "x.json",
        results / "leases" / "README",
        results / "core.123",
        results / "manifests" / "measured.txt",
        results / "shared" / "mine.json",
    ):
        path.parent.mkdir(exist_ok=True)
        path.write_text("foreign")
    assert len(read_campaign_results(campaign, results).records) == 32


def truncate(path: Path) -> Path:
    path.write_bytes(path.read_bytes()[:30])
    return path


DAMAGE: dict[str, Callable[[Path], Path]] = {
    "record": lambda results: truncate(sorted((results / "records").glob("*/*.json"))[3]),
    "lease": lambda results: truncate(results / "leases" / "1x1-local.c1.1.json"),
    "shared": lambda results: truncate(next((results / "shared").iterdir())),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_file_is_named_with_its_remedy(
    campaign: Campaign, results: Path, damage: Callable[[Path], Path]
) -> None:
    path = damage(results)
    with pytest.raises(RecordError, match=f"{path}: .*(move it away|restore it from an archive)") as caught:
        build_context_document(read_campaign_results(campaign, results))
    assert "\n" not in str(caught.value)


_LEASE = '{"lease_id": "x", "configuration": "1x1-local", "state": "RELEASED", '


@pytest.mark.parametrize(
    "content",
    [
        *("[]", "3", "{}", '{"lease_id": [1]}', '{"lease_id": "x", "requested_s": "soon"}', "\xff", "", "[" * 100_000),
        *('{"lease_id": "x", "state": "RELEASED"}', _LEASE + '"lease": []}', _LEASE + '"obtained": {"hosts": 5}}'),
        *(_LEASE + '"obtained": {"hosts": [{}]}}', _LEASE + '"ready_s": {}}'),
    ],
)
def test_what_is_no_lease_document_is_named(campaign: Campaign, results: Path, content: str) -> None:
    path = results / "leases" / "foreign.json"
    path.write_text(content, encoding="latin-1")
    with pytest.raises(RecordError, match=f"{path}: .*move it away"):
        read_campaign_results(campaign, results)


@pytest.mark.parametrize("content", ["[]", "3", "{}", '{"lease": "x"}', '{"lease": [], "reason": ""}', "{torn", ""])
def test_what_is_no_manifest_is_named(campaign: Campaign, results: Path, content: str) -> None:
    path = results / "manifests" / "foreign.json"
    path.parent.mkdir(parents=True)
    path.write_text(content)
    with pytest.raises(RecordError, match=f"{path}: cannot be read .*delete this manifest; it is written again"):
        read_campaign_results(campaign, results)


def test_missing_runs_stand_in_the_tables_with_their_reason(tmp_path: Path, campaign: Campaign) -> None:
    fill(campaign, tmp_path / "r", share=0.75)
    write(
        tmp_path / "r" / "manifests" / "1x2-fabric.c1.json",
        {"lease": "1x2-fabric.c1", "reason": "the chassis is on fire"},
    )
    out = tmp_path / "tables"
    out.mkdir()
    write_campaign_tables(read_campaign_results(campaign, tmp_path / "r"), out)
    runs, cells = pd.read_parquet(out / "runs.parquet"), pd.read_parquet(out / "cells.parquet")
    assert (len(runs), len(cells)) == (24, 16)
    assert "the chassis is on fire" in (out / "cells.csv").read_text()
    assert len(json.loads((out / "leases.json").read_text())) == 4


def test_the_context_says_what_was_left_out_and_what_software_ran(tmp_path: Path) -> None:
    changes = {"campaign.exclude": [{"when": "batch == 2", "why": "a reason"}], "campaign.title": "Title"}
    campaign = load(tmp_path / "config", changes)
    fill(campaign, tmp_path / "r")
    document = build_context_document(read_campaign_results(campaign, tmp_path / "r"))
    assert document["excluded"] == [{"rule": "batch == 2", "why": "a reason", "cells": 8}]
    assert document["software"] == [{"name": "torch", "version": "2.0"}]
    assert document["campaign"]["title"] == "Title"
    assert any("emulated" in note for note in document["notes"])


def test_the_report_says_what_is_unverified_and_how_it_is_known_where_work_was(tmp_path: Path) -> None:
    changes = {"system.devices.cpu-rank": {"runs_on": "xpu", "price_per_h": 1.5}, "system.currency": "EUR"}
    campaign = load(tmp_path / "config", changes)
    fill(campaign, tmp_path / "r")
    collected = read_campaign_results(campaign, tmp_path / "r")
    document = build_context_document(collected)
    assert any(
        "`runs_on: xpu` (cpu-rank) is unverified: nothing was run on an Intel GPU" in n for n in document["notes"]
    )
    (note,) = [note for note in document["notes"] if note.startswith("Evidence that the work ran on the devices")]
    valid = len(collected.records)
    assert note.endswith(f"{valid} runs have neither, so the devices of their work are unknown.")
    told = [r.model_copy(update={"ran_on": ("xpu:0",)}) for r in collected.records[1:]]
    (note,) = list_device_evidence_notes(campaign, [collected.records[0], *told])
    assert f"in {valid - 1}, ranks reported" in note
    assert " 1 run has neither" in note
    assert document["system"]["currency"] == "EUR"
    prices = build_tables(collected).cells.set_index("configuration")["price_per_h"]
    assert prices["1x2-fabric"].unique().tolist() == [3.0]


def test_hosts_that_failed_are_told_with_the_reason(campaign: Campaign, results: Path) -> None:
    assert build_context_document(read_campaign_results(campaign, results))["hosts_left_out"] == []
    for host in ("host3", "host2"):
        write_json(ExcludedHosts(results / "slurm").path(host), {"why": f"{host} is on fire"})
    assert build_context_document(read_campaign_results(campaign, results))["hosts_left_out"] == [
        {"host": "host2", "why": "host2 is on fire"},
        {"host": "host3", "why": "host3 is on fire"},
    ]


def test_runs_are_counted_by_the_launcher_that_measured_them(campaign: Campaign, results: Path) -> None:
    store = RecordStore(results)
    document = campaign.to_document()
    as_used = store.share_document({**document, "system": {**document["system"], "launcher": "slurm"}})
    for key in sorted(store.list_keys())[:5]:
        record = store.read_latest(*key).model_copy(update={"campaign": as_used})
        store.path(*key).unlink()
        store.write(record)
    assert campaign.system.launcher == "local"
    assert build_context_document(read_campaign_results(campaign, results))["launchers"] == {"local": 27, "slurm": 5}


def test_a_lease_is_not_idle_while_it_runs_what_is_not_asked_for(campaign: Campaign, tmp_path: Path) -> None:
    results = tmp_path / "r"
    store = fill(campaign, results)
    keys = sorted(key for key in store.list_keys() if store.read_latest(*key).cell.configuration == "1x1-local")
    for position, key in enumerate(sorted(keys, key=lambda key: store.read_latest(*key).cell.batch)):
        times = {"started": 100.0 + 10 * position, "ended": 109.0 + 10 * position}
        record = store.read_latest(*key).model_copy(update=times)
        store.path(*key).unlink()
        store.write(record)
    for where in (None, "batch == 2"):
        write_campaign_tables(read_campaign_results(campaign, results, where), _made(tmp_path / f"tables-{where}"))
        runs = pd.read_parquet(tmp_path / f"tables-{where}" / "runs.parquet")
        idle = runs[runs["configuration"] == "1x1-local"]["idle_before_s"]
        assert idle.dropna().tolist() == [1.0] * (7 if where is None else 4)


def _made(directory: Path) -> Path:
    directory.mkdir()
    return directory


@pytest.mark.parametrize(
    ("shapes", "named", "expected"),
    [
        ([{"devices_per_host": [1, 2]}], None, "1x2-local"),
        ([{"hosts": [1, 2], "devices_per_host": [2, 1], "zip": [["hosts", "devices_per_host"]]}], None, "1x2-local"),
        ([{"devices_per_host": [1, 2]}], "1x1-local", "1x1-local"),
        ([{"devices_per_host": 2}, {"devices_per_host": 2, "hosts": 2, "attach": "fabric"}], None, "1x2-local"),
        ([{"devices_per_host": 2, "attach": "fabric"}], None, "1x2-fabric"),
    ],
)
def test_the_baseline_is_as_named_or_the_largest_local_one(
    tmp_path: Path, shapes: list[dict[str, Any]], named: str | None, expected: str
) -> None:
    changes: dict[str, Any] = {"campaign.configurations": shapes}
    assert choose_baseline(load(tmp_path, {**changes, "campaign.baseline": named} if named else changes)) == expected


EMULATED = {"system.links": {"fabric": {"gb_per_s": 10.0}}, "system.emulation": {"scale": 0.01}}


def emulated_notes(directory: Path, *links: dict[str, Any] | None) -> list[str]:
    """Notes on links of a report whose runs were measured in turn over these."""
    campaign = load(directory / "config", EMULATED)
    store = fill(campaign, directory / "r")
    for number, key in enumerate(sorted(store.list_keys())):
        record = store.read_latest(*key)
        given = links[number % len(links)]
        shared = store.share_document({"hosts": [], **({} if given is None else {"links": given})})
        store.path(*key).unlink()
        store.write(record.model_copy(update={"composition": shared}))
    notes = build_context_document(read_campaign_results(campaign, directory / "r"))["notes"]
    return [note for note in notes if note.startswith("Links are")]


def test_the_report_says_how_links_were_emulated(tmp_path: Path) -> None:
    rates = LinkRates(fabric_gb_per_s=10, scale=0.01)
    with_, without = describe_links(rates, "root"), describe_links(rates, None, "no `tc` here")
    (said,) = emulated_notes(tmp_path / "all", with_)
    assert "between a fabric device and its host 0.8 Gbit/s;" in said
    assert "runs" not in said
    (said,) = emulated_notes(tmp_path / "none", without)
    assert "not emulated: no `tc` here" in said
    both = emulated_notes(tmp_path / "some", with_, without, None, without)
    assert sorted("8 of 32" in said for said in both) == [False, True]
    assert sorted("16 of 32" in said for said in both) == [False, True]


def test_the_report_says_how_fast_devices_were_and_how_well_that_was_held(tmp_path: Path) -> None:
    emulation = {"scale": 0.01, "pace": {"cpu-rank": {"fp32": 2.0, "bf16": 4.5}}}
    campaign = load(tmp_path / "config", {**EMULATED, "system.emulation": emulation})
    store = fill(campaign, tmp_path / "r")

    def notes() -> list[str]:
        found = build_context_document(read_campaign_results(campaign, tmp_path / "r"))["notes"]
        return [note for note in found if note.startswith("Emulated devices compute at a fixed pace")]

    shared = store.share_document({"hosts": []})
    for number, key in enumerate(sorted(store.list_keys())):
        record = store.read_latest(*key)
        store.path(*key).unlink()
        store.write(
            record.model_copy(update={"composition": shared, "metrics": {"pace_lost_pct": 0.5 if number else 0.9}})
        )
    (said,) = notes()
    assert "'cpu-rank' fp32 2, bf16 4.5" in said
    assert "at most 0.9 %" in said
    assert "median is 0.5 %" in said


@pytest.mark.parametrize("is_emulated", [True, False])
def test_what_an_emulation_assumed_is_said_by_subject(tmp_path: Path, is_emulated: bool) -> None:
    emulation = {"scale": 0.01, "pace": {"cpu-rank": {"fp32": 2.0, "bf16": 4.5}}}
    campaign = load(tmp_path / "config", {**EMULATED, "system.emulation": emulation})
    store = fill(campaign, tmp_path / "r")
    rates = LinkRates(fabric_gb_per_s=10, scale=0.01)
    links = describe_links(rates, "root") if is_emulated else describe_links(rates, None, "no `tc` here")
    shared = store.share_document({"hosts": [], "links": links})
    for key in sorted(store.list_keys()):
        record = store.read_latest(*key)
        store.path(*key).unlink()
        store.write(record.model_copy(update={"composition": shared}))
    precision = {"precision": "The system file makes bf16 2.25× as fast as fp32."}
    fabric = {"links": "The system file sets the links: 0.8 Gbit/s to the fabric."} if is_emulated else {}
    found = build_context_document(read_campaign_results(campaign, tmp_path / "r"))["assumptions"]
    assert found == {**precision, **fabric}
    real = load(tmp_path / "real")
    assert build_context_document(read_campaign_results(real, fill(real, tmp_path / "s").results))["assumptions"] == {}


def test_gathering_needs_no_system(campaign: Campaign, results: Path) -> None:
    collected = read_campaign_results(campaign, results)
    assert isinstance(collected, CampaignResults)
    assert not (results.parent / ".systems").exists()


def test_the_page_repeats_the_links_of_the_system_file_and_says_nothing_without(tmp_path: Path) -> None:
    without = load(tmp_path / "without")
    assert not [
        note
        for note in build_context_document(read_campaign_results(without, tmp_path / "none"))["notes"]
        if "Links" in note
    ]
    links = {"local": {"gb_per_s": 36.2, "latency_us": 1.85, "source": "Table IV"}, "fabric": {"gb_per_s": 12.2}}
    given = load(tmp_path / "given", {"system.links": links})
    assert (
        "One-way links according to the system file, not measured: between devices of one host 36.2 GB/s, 1.85 µs (Table IV); "
        "to devices behind the fabric 12.2 GB/s."
    ) in build_context_document(read_campaign_results(given, tmp_path / "none"))["notes"]


def test_the_page_tells_real_and_emulated_rates_of_storage(tmp_path: Path) -> None:
    storage = {"local": {"path": "/a"}, "nvme": {"path": "/b", "gb_per_s": 3.2, "source": "a data sheet"}}
    emulated = {
        "system.emulation": {"scale": 0.008},
        "system.links": {"fabric": {"gb_per_s": 12}},
        "system.devices": {"cpu-rank": {"runs_on": "cpu"}},
    }
    for name, changes, limit in (
        ("real", {}, ""),
        ("emulated", emulated, ", emulated at 0.0256 GB/s for all ranks of a host"),
    ):
        campaign = load(tmp_path / name, {**changes, "system.storage": storage})
        (said,) = (
            n
            for n in build_context_document(read_campaign_results(campaign, tmp_path / "none"))["notes"]
            if "Storage" in n
        )
        assert said == f"Storage according to the system file: nvme 3.2 GB/s (a data sheet){limit}."


def test_a_plan_in_the_results_is_all_that_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cells and their order are those of the plan's documents, however often a configuration is composed."""
    changes = {"campaign.protocol.compositions": 3, "campaign.protocol.repetitions": 4}
    path, root = write_files(tmp_path, changes), tmp_path / "results"
    campaign = load_campaign(path)
    results = Results(root, campaign.name)
    fill(campaign, results.directory, share=0.7)
    write_plan(read_plan(PlanRequest(path, root)), results)
    expected = build_tables(read_campaign_results(campaign, results.directory))
    monkeypatch.setattr("campaign.analysis.tables.collect.expand_matrix", None)
    made = build_tables(read_planned_results(results.plan_file))
    pd.testing.assert_frame_equal(made.cells, expected.cells)
    assert made.runs["composition"].tolist() == expected.runs["composition"].tolist()
    assert set(made.runs["composition"]) == {1, 2, 3}
    assert made.context == expected.context


def test_compositions_that_a_race_did_not_need_are_not_missing(tmp_path: Path) -> None:
    changes = {"campaign.protocol.compositions": 3, "campaign.protocol.repetitions": 3}
    campaign = load_campaign(write_files(tmp_path, changes))
    results = Results(tmp_path / "results", campaign.name)
    names = [each.name for each in campaign.configurations]
    composed = {name: 3 if name == names[0] else 2 for name in names}
    race = RaceDocument(within_pct=5, blocks=3, ended=True, compositions=composed, compositions_planned=12)
    write_race(results.race_file, race)
    tables = build_tables(read_campaign_results(campaign, results.directory))
    planned = tables.cells.groupby("configuration")["n_planned"].unique()
    assert {name: list(counts) for name, counts in planned.items()} == {name: [k] for name, k in composed.items()}
    assert tables.cells["n_missing"].equals(tables.cells["n_planned"])
    assert RaceDocument.model_validate(tables.context["race"]) == race
    fill(campaign, results.directory)  # what was measured all the same counts
    tables = build_tables(read_campaign_results(campaign, results.directory))
    assert set(tables.cells["n_planned"]) == set(tables.cells["n_ok"]) == {3}
    assert set(tables.cells["n_missing"]) == {0}


def test_runs_that_an_earlier_plan_asked_for_count(tmp_path: Path) -> None:
    """More compositions leave runs of the first one beyond the plan: they are measurements of planned cells."""
    once = load_campaign(write_files(tmp_path, {"campaign.protocol.repetitions": 3}))
    fill(once, tmp_path / "r")
    changes = {"campaign.protocol.repetitions": 3, "campaign.protocol.compositions": 3}
    tables = build_tables(read_campaign_results(load_campaign(write_files(tmp_path, changes)), tmp_path / "r"))
    assert set(tables.cells["n_ok"]) == {3}
    assert set(tables.cells["n_planned"]) == {3}
    assert set(tables.cells["n_missing"]) == {2}


def test_every_column_of_the_tables_has_a_meaning(campaign: Campaign, results: Path) -> None:
    """The reference names the columns that the tables have."""
    tables = build_tables(read_campaign_results(campaign, results))
    frames = {
        "runs": tables.runs,
        "cells": tables.cells,
        "leases": build_leases_table(tables.leases),
        "operations": build_operations_table(tables.leases),
        "telemetry": tables.telemetry,
        "steps": tables.steps,
        "reference": tables.reference,
    }
    named = {name: set(columns) for name, columns in COLUMN_MEANINGS.items()}
    assert {name: set(frame.columns) for name, frame in frames.items()} == named


@pytest.mark.parametrize("emulated", [True, False])
def test_nodes_without_accelerators_emulate_nothing(tmp_path: Path, emulated: bool) -> None:
    device = {"runs_on": "cpu"} if emulated else {"runs_on": "cpu", "emulated": False}
    campaign = archive_data.campaign_in(tmp_path, {"system.devices": {"cpu-rank": device}})
    context = build_tables(read_campaign_results(campaign, archive_data.fill(campaign, tmp_path / "results"))).context
    assert any("is emulated by one process on a CPU core" in note for note in context["notes"]) is emulated
    assert any("its nodes have no accelerators" in note for note in context["notes"]) is not emulated
    assert ("devices are emulated by processes on CPU cores" in context["conditions"]) is emulated
