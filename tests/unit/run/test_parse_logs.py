"""Logs that are read again: what a reading changes, what it leaves, and what plans say of it."""

from __future__ import annotations

import json
import platform
import re
from pathlib import Path
from typing import Any

import pytest

from campaign.analysis.tables.collect import build_tables, read_campaign_results
from campaign.common.errors import ConfigError, RecordError
from campaign.common.paths import Results
from campaign.plan.campaign.resolve import Campaign, load_campaign
from campaign.plan.dag import read_plan
from campaign.plan.matrix import build_specification, expand_matrix
from campaign.plan.request import PlanRequest
from campaign.run import environment
from campaign.run.check_results import find_problems
from campaign.run.parse_logs import ParseSummary, parse_logs
from campaign.run.since_measured import find_changes
from campaign.spec.readings import REREAD_FLAG, read_all_readings
from campaign.spec.record import Failure, Record, RecordedCell, RecordStore, read_record
from tests.campaign_files import write_files

BASE: dict[str, Any] = {
    "campaign.axes": {"workload": ["program"], "batch": [1], "precision": ["fp32"]},
    "campaign.configurations": [{"devices_per_host": 1}],
    "campaign.protocol.repetitions": 1,
}
LOG = "rate: 12 of 15 per s, latency 3 us\n"
SWAPPED = [
    {"metric": "throughput_per_s", "regex": r"of (\S+)"},
    {"metric": "latency_us", "regex": r"latency (\S+)"},
]


class Measured:
    """A campaign of one run, of which the log is kept."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.root = directory, directory / "results"
        self.place = Results(self.root, "small")
        self.store = RecordStore(self.place.directory)

    def campaign(self, **keys: Any) -> Campaign:
        """As its files are now, with these keys of the workload."""
        path = write_files(self.directory, {**BASE, **{f"workloads.program.{key}": keys[key] for key in keys}})
        return load_campaign(path, results=self.root)

    def record(self, campaign: Campaign, *, started: float = 10.0, host: str = "", **changes: Any) -> Record:
        """Write the record of the run, as its parser reads the log."""
        cell = expand_matrix(campaign).cells[0]
        log = self.place.directory / "logs" / "program.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text(LOG)
        installed = {"schema_version": "environment/1", "host": host, "drivers": {"nvidia": "570.86"}}
        record = Record(
            cell_id=cell.id, repetition=1, cell=RecordedCell.from_cell(cell), specification=build_specification(campaign, cell),
            started=started, ended=started + 1, lease_id="l.1", composition="c", log="logs/program.log",
            environment=self.store.share_document(installed), campaign=self.store.share_document(campaign.to_document()),
            **{
                "status": "ok", "throughput_per_s": 12.0, "flags": ("composition: lacks one",),
                "metrics": {"power_w": 5.0, "energy_per_sample_j": 2.0}, **changes,
            },
        )  # fmt: skip
        self.store.write(record)
        return record

    def read(self, campaign: Campaign) -> ParseSummary:
        return parse_logs(campaign, RecordStore(self.place.directory))

    @property
    def now(self) -> Record:
        """What the run says now, to whoever comes anew."""
        (record,) = RecordStore(self.place.directory)
        return record


@pytest.fixture
def measured(tmp_path: Path) -> Measured:
    return Measured(tmp_path)


def test_a_reading_takes_the_place_of_what_was_read_and_of_nothing_else(measured: Measured) -> None:
    before = measured.record(measured.campaign())
    path = measured.store.path(*before.key)
    content = path.read_bytes()
    parsed = measured.read(measured.campaign(parsers=SWAPPED))
    assert (parsed.runs, parsed.changed, parsed.skipped) == (1, 1, {})
    now = measured.now
    assert (now.throughput_per_s, now.metrics["latency_us"], now.metrics["power_w"]) == (15.0, 3.0, 5.0)
    assert now.metrics["energy_per_sample_j"] == pytest.approx(2.0 * 12 / 15)
    assert now.flags == ("composition: lacks one", REREAD_FLAG)
    kept = {"throughput_per_s", "metrics", "flags"}
    assert {name for name in Record.model_fields if getattr(now, name) != getattr(read_record(path), name)} == kept
    assert path.read_bytes() == content

    # The same reading again changes nothing; an earlier one undoes it; the newest counts.
    assert measured.read(measured.campaign(parsers=SWAPPED)).changed == 0
    assert measured.read(measured.campaign()).changed == 1
    assert (measured.now.throughput_per_s, "latency_us" in measured.now.metrics) == (12.0, False)
    assert measured.now.metrics["energy_per_sample_j"] == pytest.approx(2.0)
    (readings, *_) = read_all_readings(measured.place.directory)
    assert [each["metric"] for each in readings.workloads["program"]["parsers"]] == ["throughput_per_s", "latency_us"]
    assert len(list(measured.place.log_readings.iterdir())) == 3


def test_tables_have_the_reading_and_the_report_says_so(measured: Measured) -> None:
    measured.record(measured.campaign())
    campaign = measured.campaign(parsers=SWAPPED)
    (note,) = [
        each
        for each in build_tables(read_campaign_results(campaign, measured.place.directory)).context["notes"]
        if "parser" in each
    ]
    assert note.startswith("1 run of workload program was read by another parser than its present one")
    measured.read(campaign)
    tables = build_tables(read_campaign_results(campaign, measured.place.directory))
    assert not any("another parser" in note for note in tables.context["notes"])
    assert list(tables.runs["throughput_per_s"]) == list(tables.cells["mean"]) == [15.0]
    assert REREAD_FLAG in tables.runs["flags"][0]
    assert any("were read again at" in note and "by its own parsers" in note for note in tables.context["notes"])


@pytest.mark.parametrize(
    ("changes", "keys", "left"),
    [
        ({"status": "crashed", "failure": Failure(reason="signal 11")}, {}, "that failed before"),
        ({"log": ""}, {}, "without a stored log"),
        ({"log": "logs/gone.log"}, {}, "without a stored log"),
        ({"log": "../others.log"}, {}, "without a stored log"),
        ({}, {"command": ["echo", "rate: 1"]}, "of workloads whose command has changed"),
    ],
)
def test_a_run_that_a_parser_has_no_part_in_is_left(
    measured: Measured, changes: dict[str, Any], keys: dict[str, Any], left: str
) -> None:
    before = measured.record(measured.campaign(), **{"flags": (), **changes} if "log" not in changes else {})
    if "log" in changes:
        (measured.root / "others.log").write_text(LOG)
        path = measured.store.path(*before.key)
        path.unlink()
        before = before.model_copy(update=changes)
        measured.store.write(before)
    parsed = measured.read(measured.campaign(parsers=SWAPPED, **keys))
    assert [why for why in parsed.skipped if why.startswith(left)]
    assert (parsed.path, parsed.runs) == (None, 0)
    assert measured.now.model_dump(exclude={"checksum"}) == before.model_dump(exclude={"checksum"})


def test_what_made_a_run_invalid_beside_its_log_stays(measured: Measured) -> None:
    failure = Failure(reason="devices of the run did no work")
    measured.record(measured.campaign(), status="invalid", failure=failure)
    measured.read(measured.campaign(parsers=SWAPPED))
    assert (measured.now.status, measured.now.failure, measured.now.throughput_per_s) == ("invalid", failure, 15.0)


@pytest.mark.parametrize("left", ["", "rate: "])
def test_a_log_that_was_cut_makes_no_good_run_a_bad_one(measured: Measured, left: str) -> None:
    measured.record(measured.campaign())
    (measured.place.directory / "logs" / "program.log").write_text(left)
    parsed = measured.read(measured.campaign(parsers=SWAPPED))
    assert (parsed.path, parsed.skipped) == (None, {"whose log is no longer complete": 1})
    assert measured.now.throughput_per_s == 12.0


def test_a_run_that_is_measured_again_has_no_earlier_reading(measured: Measured) -> None:
    campaign = measured.campaign()
    before = measured.record(campaign)
    measured.read(measured.campaign(parsers=SWAPPED))
    measured.store.path(*before.key).unlink()
    measured.record(campaign, started=99.0)
    assert measured.now.throughput_per_s == 12.0


def test_a_reading_that_does_not_say_how_it_was_made_still_counts(measured: Measured) -> None:
    measured.record(campaign := measured.campaign())
    path = measured.read(measured.campaign(parsers=SWAPPED)).path
    assert path is not None
    path.write_text(json.dumps({**json.loads(path.read_text()), "workloads": {}}))
    tables = build_tables(read_campaign_results(campaign, measured.place.directory))
    assert list(tables.runs["throughput_per_s"]) == [15.0]
    assert any("were read again at" in note for note in tables.context["notes"])


@pytest.mark.parametrize("text", ["{", '{"schema_version": "readings/1"}', "made", "status"])
def test_a_damaged_reading_is_named_and_no_record_is_measured_again_for_it(measured: Measured, text: str) -> None:
    before = measured.record(measured.campaign())
    path = measured.read(measured.campaign(parsers=SWAPPED)).path
    assert path is not None
    edits = {"made": (r'"made":[^,]+', '"made":1e30'), "status": ('"status":"ok"', '"status":"fine"')}
    path.write_text(re.sub(*edits[text], path.read_text()) if text in edits else text)
    store = RecordStore(measured.place.directory)
    with pytest.raises(ConfigError, match=r"readings.*'campaign parse'"):
        store.read_latest(*before.key)
    assert store.find_damaged([before.key]) == {}
    if text != "status":
        assert any(str(path) in told for told in find_problems(measured.place))


def test_what_reads_no_log_is_refused(tmp_path: Path) -> None:
    steps = load_campaign(write_files(tmp_path))
    with pytest.raises(ConfigError, match="none of the workloads steps has a parser"):
        parse_logs(steps, RecordStore(tmp_path / "results"))


def test_the_plan_says_what_has_changed_since_runs_were_measured(
    measured: Measured, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = measured.directory / "sys" / "module" / "nvidia" / "version"
    version.parent.mkdir(parents=True)
    monkeypatch.setattr(environment, "_SYS", measured.directory / "sys")

    def told(driver: str, label: str | None = None) -> list[str]:
        version.write_text(f"{driver}\n")
        request = PlanRequest(measured.directory / "campaign.yaml", measured.root, version=label)
        return find_changes(read_plan(request), measured.place)

    campaign = measured.campaign()
    assert told("580.159") == []
    measured.record(campaign, host=platform.node())
    assert told("570.86") == []
    (said,) = told("580.159")
    assert said.startswith("1 cell was measured with nvidia driver 570.86; this machine has nvidia driver 580.159. ")
    assert told("580.159", "driver-580") == []
    changed = measured.campaign(parsers=SWAPPED)
    assert [line.split(":")[0] for line in told("570.86")] == ["workload 'program'"]
    measured.read(changed)
    assert told("570.86") == []
    # Of another host, nothing is known here.
    measured.store.path(*measured.now.key).unlink()
    measured.record(changed, host="another")
    assert told("580.159") == []


def test_damaged_records_are_still_told(measured: Measured) -> None:
    before = measured.record(measured.campaign())
    measured.store.path(*before.key).write_text("{")
    with pytest.raises(RecordError):
        parse_logs(measured.campaign(parsers=SWAPPED), measured.store)
