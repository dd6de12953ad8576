"""What `campaign verify` finds in a results directory, and what the next run does about it."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from campaign.cli.main import main
from campaign.common.errors import ConfigError
from campaign.common.paths import Results, lease_id
from campaign.lease.journal import Journal
from campaign.plan.dag import read_plan
from campaign.plan.lease_plans import build_lease_plans
from campaign.plan.missing_runs import drop_damaged_records, read_recorded_runs
from campaign.plan.request import PlanRequest
from campaign.plan.write import write_plan
from campaign.run.check_results import find_problems
from campaign.run.measure_lease import _LeaseMeasurement
from campaign.spec.record import RecordStore
from campaign.spec.superseded import list_superseded
from tests import measured_campaign


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("finished")
    results = measured_campaign.write(directory)
    asked = PlanRequest(directory / "campaign.yaml", directory / "results")
    write_plan(read_plan(asked), Results.from_directory(results))
    return directory


@pytest.fixture
def directory(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "finished", copy_function=shutil.copy))


@pytest.fixture
def results(directory: Path) -> Results:
    return Results(
        directory / "results", next(path.name for path in (directory / "results").iterdir() if path.name[0] != ".")
    )


def record_of(results: Results) -> Path:
    return min(results.records.glob("*/*.json"))


def cut(results: Results) -> str:
    path = record_of(results)
    path.write_bytes(path.read_bytes()[:100])
    return f"{path.name}: is not a complete record"


def emptied(results: Results) -> str:
    record_of(results).write_bytes(b"")
    return "is not a complete record"


def another_digit(results: Results) -> str:
    """It is still a record, and says something else."""
    path = record_of(results)
    text = path.read_text()
    rate = text.partition('"throughput_per_s":')[2][:3]
    path.write_text(text.replace(f'"throughput_per_s":{rate}', f'"throughput_per_s":{(int(rate) + 1) % 1000}', 1))
    return "was changed after it was written"


def renamed(results: Results) -> str:
    path = record_of(results)
    path.rename(path.with_name(f"{path.name.split('.')[0]}.999.json"))
    return "contains the record of"


def of_another_time(results: Results) -> str:
    """The run of a driver whose lease had been given back."""
    store = RecordStore(results.directory)
    path = record_of(results)
    record = store.read_latest(*path.name.split(".")[:1], int(path.name.split(".")[1]))
    path.unlink()
    store.write(record.model_copy(update={"started": record.started + 5000.0, "ended": record.ended + 5000.0}))
    return "was outside the time of its lease"


def unshared(results: Results) -> str:
    min(results.shared_documents.glob("*.json")).unlink()
    return "is missing ("


def shared_changed(results: Results) -> str:
    path = min(results.shared_documents.glob("*.json"))
    path.write_text(path.read_text().replace("{", '{"more": 1,', 1))
    return "does not match its name"


def lease_lost(results: Results) -> str:
    path = min(results.leases.glob("*.json"))
    path.write_text("{")
    return f"{path.name}: cannot be read"


def manifest_lost(results: Results) -> str:
    path = min(results.manifests.rglob("*.json"))
    path.write_text("[]")
    return "not a JSON object"


def plan_changed(results: Results) -> str:
    path = min(results.lease_plans.glob("*.json"))
    path.write_text(json.dumps({**json.loads(path.read_text()), "run_set": "another"}))
    return "its checksum does not match"


def journal_of(results: Results) -> Journal:
    journal = Journal(results.journals_directory("testbed"), lease_id(results, "1x1-local.c1"))
    for state in ("PLANNED", "RESERVED", "COMPOSING"):
        journal.enter_state(state)  # type: ignore[arg-type]
    return journal


def journal_torn(results: Results) -> str:
    path = journal_of(results).path
    path.write_bytes(path.read_bytes().replace(b"RESERVED", b'RESER\0"'))
    return ".jsonl:2: this line is damaged"


def journal_short(results: Results) -> str:
    path = journal_of(results).path
    path.write_text("".join(line for line in path.read_text().splitlines(keepends=True) if "RESERVED" not in line))
    return ".jsonl:2: a lease cannot change from PLANNED to COMPOSING"


def test_a_whole_campaign_has_no_problem(results: Results) -> None:
    journal_of(results)
    assert list(find_problems(results)) == []
    said = CliRunner().invoke(main, ["verify", str(results.directory)])
    assert (said.exit_code, "is intact" in said.output) == (0, True)


@pytest.mark.parametrize(
    "damage",
    [cut, emptied, another_digit, renamed, of_another_time, unshared, shared_changed, lease_lost, manifest_lost, plan_changed,
     journal_torn, journal_short],
)  # fmt: skip
def test_what_is_damaged_is_named(results: Results, damage: Callable[[Results], str]) -> None:
    words = damage(results)
    assert any(words in problem for problem in find_problems(results)), list(find_problems(results))
    said = CliRunner().invoke(main, ["verify", str(results.directory)])
    assert said.exit_code == 1
    assert words in said.output


def test_a_directory_without_results_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="this directory has neither records nor a plan"):
        list(find_problems(Results.from_directory(tmp_path)))


@pytest.mark.parametrize("damage", [cut, emptied, another_digit])
def test_a_damaged_record_of_a_finished_campaign_is_measured_again(
    directory: Path, results: Results, damage: Callable[[Results], str]
) -> None:
    (results.tables).mkdir()
    (results.tables / "runs.parquet").touch()  # all records were read
    time.sleep(0.02)  # times of files are those of the kernel's ticks
    asked = PlanRequest(directory / "campaign.yaml", directory / "results")
    assert read_plan(asked).missing == 0
    path = record_of(results)
    before = path.stat()
    damage(results)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))  # as a copy or a bad disk leaves it
    plan = read_plan(asked)
    assert plan.missing == 1
    (lease,) = (
        each
        for each in build_lease_plans(plan)
        if any(lease.missing and lease.name == each.lease for lease in plan.leases)
    )
    said: list[str] = []
    measuring = _LeaseMeasurement(lease, results, said.append, "")
    assert measuring.list_missing_runs() == []
    measuring.move_damaged_records()
    assert len(measuring.list_missing_runs()) == 1
    assert "1 damaged record moved to" in said[0]
    (aside,) = list_superseded(results.directory)
    assert aside.why.startswith("damaged: ")


def test_records_that_tables_were_made_of_are_not_read_again(results: Results, monkeypatch: pytest.MonkeyPatch) -> None:
    (results.tables).mkdir()
    (results.tables / "runs.parquet").touch()
    monkeypatch.setattr(RecordStore, "read_latest", lambda *_: pytest.fail("a record was read"))
    store = RecordStore(results.directory)
    assert drop_damaged_records(read_recorded_runs(store, skip_implied=True), store).measured == store.list_keys()


def test_what_records_share_is_written_again_when_it_is_damaged(results: Results) -> None:
    store = RecordStore(results.directory)
    path = min(results.shared_documents.glob("*.json"))
    document = json.loads(path.read_text())
    path.write_text("{}")
    assert store.share_document(document) == path.stem
    assert store.read_shared_document(path.stem) == document
