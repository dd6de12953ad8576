"""`campaign redo`: measuring exactly the runs again that an expression over axes and hosts selects."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from campaign.analysis.tables.collect import read_campaign_results
from campaign.analysis.tables.report_context import build_context_document
from campaign.cli import run as run_command
from campaign.cli.main import main
from campaign.common import files
from campaign.common.errors import ConfigError, RecordError
from campaign.common.paths import Results
from campaign.plan.campaign.resolve import Campaign
from campaign.plan.dag import read_plan
from campaign.plan.matrix import expand_matrix
from campaign.plan.request import PlanRequest
from campaign.run.redo import find_matching_runs
from campaign.run.redo import move_records_for_redo as move
from campaign.spec.record import Failure, RecordStore
from campaign.spec.run_numbers import format_run_number
from campaign.spec.superseded import RecordedHosts, list_superseded, supersede_records
from tests.campaign_files import load
from tests.campaign_records import fill

ON_2 = "host == 'host2'"


@pytest.fixture
def campaign(tmp_path: Path) -> Campaign:
    """Every run on host1, but the second repetition of the cells with batch 2, which was on host2."""
    campaign = load(tmp_path)
    store = fill(campaign, results_of(campaign, tmp_path).directory)
    batches = {cell.id: cell.batch for cell in expand_matrix(campaign).cells}
    for cell_id, repetition in store.list_keys():
        put(store, (cell_id, repetition), "host2" if (batches[cell_id], repetition) == (2, 2) else "host1")
    return campaign


def results_of(campaign: Campaign, directory: Path) -> Results:
    return Results(directory / "results", campaign.name)


@pytest.fixture
def results(campaign: Campaign, tmp_path: Path) -> Results:
    return results_of(campaign, tmp_path)


@pytest.fixture
def store(results: Results) -> RecordStore:
    return RecordStore(results.directory)


def redo(campaign: Campaign, results: Results, where: str) -> None:
    """`campaign redo`, without the question."""
    move(results, where, find_matching_runs(campaign, results, where))


def put(store: RecordStore, run: tuple[str, int], *hosts: str) -> None:
    """The record of a run, moved to other hosts."""
    record = store.read_latest(*run).model_copy(update={"hosts": hosts})
    store.path(*run).unlink()
    store.write(record)


def again(store: RecordStore, results: Results, *hosts: str) -> None:
    """Measure on these hosts what was set aside last."""
    last = list_superseded(results.directory)[-1]
    for run in last.runs:
        record = RecordStore(last.directory).read_latest(*run)
        store.write(record.model_copy(update={"hosts": hosts}))


def batch_2(campaign: Campaign) -> set[str]:
    return {cell.id for cell in expand_matrix(campaign).cells if cell.batch == 2}


def test_host_selects_the_cells_that_ran_on_it(campaign: Campaign, tmp_path: Path) -> None:
    hosts = RecordedHosts(RecordStore(results_of(campaign, tmp_path).directory))
    assert {cell.id for cell in expand_matrix(campaign, ON_2, hosts=hosts).cells} == batch_2(campaign)
    assert len(expand_matrix(campaign, "host == 'host1'", hosts=hosts).cells) == len(expand_matrix(campaign).cells)
    both = expand_matrix(campaign, f"{ON_2} and precision == 'bf16'", hosts=hosts).cells
    assert {(cell.batch, cell.precision) for cell in both} == {(2, "bf16")}


def test_everything_that_reads_records_knows_hosts(campaign: Campaign, results: Results) -> None:
    plan = read_plan(PlanRequest(campaign.path, results.root, ON_2))
    assert {cell.id for _, cell in plan.cells} == batch_2(campaign)
    assert {record.cell_id for record in read_campaign_results(campaign, results.directory, ON_2).records} == batch_2(
        campaign
    )


def test_a_cell_without_a_run_is_selected_by_no_host(tmp_path: Path) -> None:
    campaign = load(tmp_path)
    store = fill(campaign, tmp_path / "results", share=0.0)
    with pytest.raises(ConfigError, match="no cell is left"):
        expand_matrix(campaign, "host != 'host9'", hosts=RecordedHosts(store))


def test_an_unknown_host_is_an_error_that_names_those_that_there_are(campaign: Campaign, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="hosts with records: host1, host2"):
        redo(campaign, results_of(campaign, tmp_path), "host == 'host7'")


def test_exactly_the_runs_of_the_host_are_set_aside(campaign: Campaign, results: Results, store: RecordStore) -> None:
    gone = {(cell_id, 2) for cell_id in batch_2(campaign)}
    before = {run: store.path(*run).read_bytes() for run in store.list_keys()}
    redo(campaign, results, ON_2)
    assert store.list_keys() == set(before) - gone
    (kept,) = list_superseded(results.directory)
    assert {run: kept.path(run).read_bytes() for run in kept.runs} == {run: before[run] for run in gone}
    plan = read_plan(PlanRequest(campaign.path, results.root, ON_2))
    assert plan.missing == len(gone)
    assert {cell.id for _, cell in plan.cells} == batch_2(campaign)


def test_the_command_says_what_it_moves_and_asks_first(campaign: Campaign, results: Results) -> None:
    before = RecordStore(results.directory).list_keys()
    count = len(batch_2(campaign))
    call = ["redo", str(campaign.path), "--results", str(results.root), "--where", ON_2]
    dry = CliRunner().invoke(main, [*call, "--dry-run"])
    assert dry.output == f"would move {count} records of {count} cells to {results.superseded_records}\n"
    refused = CliRunner().invoke(main, call, input="n\n")
    assert (refused.exit_code, RecordStore(results.directory).list_keys()) == (1, before)
    assert not results.superseded_records.exists()
    done = CliRunner().invoke(main, [*call, "--yes"])
    assert done.output.startswith(
        f"moved {count} records of {count} cells to {results.superseded_records}; 'campaign run "
    )
    assert len(RecordStore(results.directory).list_keys()) == len(before) - count


def test_what_was_moved_and_not_measured_yet_is_no_record(
    campaign: Campaign, results: Results, store: RecordStore
) -> None:
    redo(campaign, results, ON_2)
    left = store.list_keys()
    with pytest.raises(ConfigError, match="has a record; 'campaign run' measures"):
        redo(campaign, results, ON_2)
    assert store.list_keys() == left
    again(store, results, "host1")
    with pytest.raises(ConfigError, match="has a record"):
        redo(campaign, results, ON_2)
    assert len(list_superseded(results.directory)) == 1


def test_runs_that_came_to_the_host_again_are_set_aside_again(campaign: Campaign, results: Results) -> None:
    redo(campaign, results, ON_2)
    again(RecordStore(results.directory), results, "host2")
    redo(campaign, results, ON_2)
    first, second = list_superseded(results.directory)
    assert set(first.runs) == set(second.runs)


def test_a_crash_while_moving_is_made_good(
    campaign: Campaign, results: Results, store: RecordStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved: list[Path] = []
    rename = Path.rename

    def dies(path: Path, target: Path) -> Path:
        if len(moved) == 3:
            raise KeyboardInterrupt
        moved.append(path)
        return rename(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", dies)
        with pytest.raises(KeyboardInterrupt):
            redo(campaign, results, ON_2)
    gone = {(cell_id, 2) for cell_id in batch_2(campaign)}
    assert len(store.list_keys() & gone) == len(gone) - 3
    redo(campaign, results, ON_2)
    assert not store.list_keys() & gone


def test_nothing_is_set_aside_under_a_running_lease(campaign: Campaign, results: Results) -> None:
    before = RecordStore(results.directory).list_keys()
    lease = f"{expand_matrix(campaign).cells[0].configuration.name}.c1"
    with (
        files.hold_lock(results.work_directory(lease) / "driver.lock"),
        pytest.raises(ConfigError, match="is being measured, so its records"),
    ):
        redo(campaign, results, ON_2)
    assert RecordStore(results.directory).list_keys() == before


def test_an_expression_over_axes_selects_all_runs_of_the_cells(campaign: Campaign, results: Results) -> None:
    redo(campaign, results, "batch == 2")
    (kept,) = list_superseded(results.directory)
    assert {cell for cell, _ in kept.runs} == batch_2(campaign)
    assert not batch_2(campaign) & {cell for cell, _ in RecordStore(results.directory).list_keys()}


def failed(store: RecordStore, run: tuple[str, int]) -> None:
    """The record of a run, which now crashed."""
    failure = Failure(reason="exit code 1")
    record = store.read_latest(*run).model_copy(update={"status": "crashed", "failure": failure})
    store.path(*run).unlink()
    store.write(record)


def test_failed_runs_leave_the_valid_ones_of_their_cells(
    campaign: Campaign, results: Results, store: RecordStore
) -> None:
    before = store.list_keys()
    crashed, another = sorted(before)[0], sorted(before)[-1]
    for run in (crashed, another):
        failed(store, run)
    call = ["redo", str(campaign.path), "--results", str(results.root), "--failed"]
    one = CliRunner().invoke(main, [*call, "--where", f"cell == '{crashed[0]}'", "--yes"])
    assert one.output.startswith("moved 1 record of 1 cell")
    assert store.list_keys() == before - {crashed}
    assert CliRunner().invoke(main, [*call, "--yes"]).output.startswith("moved 1 record of 1 cell")
    assert store.list_keys() == before - {crashed, another}
    assert "no failed run has a record" in CliRunner().invoke(main, [*call, "--yes"]).output
    assert "--where EXPRESSION, --failed, or both" in CliRunner().invoke(main, call[:-1]).output


@pytest.mark.parametrize(
    ("where", "numbers"),
    [
        ("status == 'crashed'", {2}),
        ("status == 'ok' and run == 1", {1}),
        ("repetition in [2, 1001]", {2}),
        ("composition == 1 and host == 'host1' and batch == 2", {1}),
    ],
)
def test_an_expression_can_name_properties_of_runs(
    campaign: Campaign, results: Results, store: RecordStore, where: str, numbers: set[int]
) -> None:
    for run in store.list_keys():
        if run[1] == 2:
            failed(store, run)
    assert {number for _, number in find_matching_runs(campaign, results, where)} == numbers


def test_the_last_line_of_logs_measures_the_failed_run_again(
    campaign: Campaign, results: Results, store: RecordStore
) -> None:
    crashed = sorted(store.list_keys())[1]
    failed(store, crashed)
    output = CliRunner().invoke(main, ["logs", str(results.directory)]).output
    assert f"· {format_run_number(crashed[1])}:" in output
    command = shlex.split("".join(output.partition("again: ")[2].splitlines()))
    assert CliRunner().invoke(main, [*command[1:], "--yes"]).output.startswith("moved 1 record of 1 cell")
    assert not store.has_record(*crashed)


def test_an_option_called_host_stays_an_axis(tmp_path: Path) -> None:
    changes = {"campaign.axes.options": {"host": [1, 2]}, "workloads.steps.options": {"size": 8, "host": 1}}
    campaign = load(tmp_path, changes)
    store = fill(campaign, tmp_path / "results")
    cells = expand_matrix(campaign, "host == 2", hosts=RecordedHosts(store)).cells
    assert {cell.options["host"] for cell in cells} == {2}
    results = Results(tmp_path, "results")
    assert {cell for cell, _ in find_matching_runs(campaign, results, "host == 2")} == {cell.id for cell in cells}


def test_the_report_says_what_was_set_aside(campaign: Campaign, results: Results) -> None:
    redo(campaign, results, ON_2)
    (note,) = [
        n
        for n in build_context_document(read_campaign_results(campaign, results.directory))["notes"]
        if "superseded/" in n
    ]
    assert note.startswith(f"{len(batch_2(campaign))} records were set aside (runs with {ON_2})")


def test_run_moves_nothing_and_names_the_command_that_does(
    tmp_path: Path, campaign: Campaign, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Any] = []

    monkeypatch.setattr(run_command.os, "execv", lambda path, command: started.append(command))
    call = ["run", str(campaign.path), "--results", str(tmp_path / "results"), "--where", ON_2]
    assert f"campaign redo {campaign.path} --where" in CliRunner().invoke(main, call).output
    # Snakemake takes quotes away from the ends of a value.
    assert f"where=({ON_2})" in started[0]
    assert not results_of(campaign, tmp_path).superseded_records.exists()


def test_damaged_files_are_named(campaign: Campaign, results: Results, store: RecordStore) -> None:
    made = supersede_records(store, [min(store.list_keys())], where=ON_2)
    (made.directory / "why.json").write_text("{")
    with pytest.raises(RecordError, match=r"why\.json"):
        list_superseded(results.directory)
    path = store.path(*min(store.list_keys()))
    path.write_text(json.dumps({"hosts": 3}))
    with pytest.raises(RecordError, match=path.name):
        expand_matrix(campaign, ON_2, hosts=RecordedHosts(store))


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sets(st.sampled_from(["a", "b", "c"]), min_size=1), min_size=4, max_size=4), st.sampled_from("abc"))
def test_no_record_is_ever_lost_or_doubled(
    tmp_path_factory: pytest.TempPathFactory, placed: list[set[str]], host: str
) -> None:
    directory = tmp_path_factory.mktemp("redo")
    campaign = load(directory, {"campaign.configurations": [{"devices_per_host": [1]}], "campaign.axes.batch": [1]})
    results = results_of(campaign, directory)
    store = fill(campaign, results.directory)
    runs = sorted(store.list_keys())
    for run, hosts in zip(runs, placed, strict=True):
        put(store, run, *sorted(hosts))
    touched = {run for run, hosts in zip(runs, placed, strict=True) if host in hosts}
    if not touched:
        with pytest.raises(ConfigError):
            redo(campaign, results, f"host == '{host}'")
        return
    redo(campaign, results, f"host == '{host}'")
    (aside,) = list_superseded(results.directory)
    assert set(aside.runs) == touched
    assert store.list_keys() == set(runs) - touched
    assert RecordStore(aside.directory).list_keys() == touched
