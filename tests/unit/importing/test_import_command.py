"""`campaign import`, as a person types it: from logs to a campaign like any other."""

from __future__ import annotations

import copy
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from campaign.analysis.tables.collect import build_tables, read_campaign_results
from campaign.analysis.tables.io import Tables
from campaign.cli.main import main
from campaign.common.errors import ConfigError
from campaign.plan.campaign.resolve import load_campaign
from campaign.run.preflight import check_campaign_files
from campaign.run.try_workload import find_workload
from campaign.spec.record import Record, RecordStore
from tests.unit.importing.logs_of_old import LOGS, MAP, OOM, four_ranks, put, timed, write_logs, write_map


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_logs(tmp_path / "logs")
    write_map(tmp_path / "map.yaml")
    return tmp_path


def command(*words: str) -> Result:
    result = CliRunner().invoke(main, ["import", "logs", "--map", "map.yaml", *words])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def told(*words: str) -> Any:
    result = command("--format", "json", *words)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def refused(*words: str) -> str:
    result = command(*words)
    assert result.exit_code == 1, result.output
    return result.output


def records() -> dict[tuple[str, int, str, int], Record]:
    found = RecordStore(Path("results/old"))
    return {(r.cell.configuration, r.cell.batch, r.cell.precision, r.repetition): r for r in found}


def tables() -> Tables:
    return build_tables(
        read_campaign_results(load_campaign(Path("results/old/config/campaign.yaml")), Path("results/old"))
    )


def why(document: Any, log: str) -> str:
    (found,) = [row["why"] for row in document["unread"] if row["log"] == log]
    return str(found)


def test_logs_become_records_that_say_where_they_are_from() -> None:
    document = told()
    assert document["logs"] == {"new": 12, "present": 0, "unread": 0}
    found = records()
    one = found["1x4", 64, "fp16", 2]
    assert one.status == "ok"
    assert one.throughput_per_s == 1066.0
    assert one.ended - one.started == 30
    assert one.source is not None
    assert (one.source.path, one.source.timed) == ("1x4/resnet50-b64-amp-r2.log", True)
    assert "imported" in one.flags
    lost = found["2x2", 64, "fp16", 3]
    assert lost.status == "oom_device"
    assert lost.failure is not None
    assert "OOM when allocating" in lost.failure.evidence


def test_a_dry_run_shows_the_matrix_and_writes_nothing() -> None:
    shown = command("--dry-run")
    assert shown.exit_code == 0
    for words in (
        "3 of 3",
        "3 oom_device",
        "2x2/resnet50-b64-amp-r1.log",
        "12 new logs (9 ok, 3 failed)",
        "nothing was written",
    ):
        assert words in shown.output
    assert not Path("results").exists()


def test_the_tables_are_those_of_any_campaign() -> None:
    told()
    made = tables()
    assert made.cells["state"].tolist() == ["measured"] * 3 + ["failed"]
    assert made.cells["n_planned"].tolist() == [3] * 4
    assert made.runs["log"].str.endswith(".log").all()
    assert made.context["system"]["fabric"] == "unknown (imported)"
    assert "imported" in made.context["flags"]
    assert {"name": "tensorflow", "version": "2.4.1"} in made.context["software"]
    assert any("All 12 records were read from logs" in note for note in made.context["notes"])


def test_nothing_is_imported_twice_and_new_logs_are_added() -> None:
    told()
    before = records()
    assert told()["logs"] == {"new": 0, "present": 12, "unread": 0}
    put(Path("logs"), "1x4/resnet50-b32-amp-r4.log", timed(four_ranks(1040, 32), 50))
    assert told()["logs"] == {"new": 1, "present": 12, "unread": 0}
    assert {key: record for key, record in records().items() if key in before} == before
    assert set(tables().cells["n_missing"]) == {0}
    assert tables().cells["n_planned"].tolist() == [4, 3, 3, 3]


def test_logs_without_number_are_told_apart_by_what_they_say() -> None:
    write_map(
        Path("map.yaml"),
        logs=[
            {"path": "{configuration}/resnet50-b{batch}-*.log", "values": {"workload": "resnet50", "precision": "fp16"}}
        ],
    )
    # Three runs that ran out of memory in the same way are three runs, another time too.
    for repetition in (1, 2, 3):
        put(Path("logs"), f"2x2/resnet50-b64-amp-r{repetition}.log", OOM)
    assert told()["logs"] == {"new": 12, "present": 0, "unread": 0}
    shutil.move("logs/2x2/resnet50-b64-amp-r1.log", "logs/2x2/resnet50-b64-amp-r9.log")
    put(Path("logs"), "2x2/resnet50-b64-more.log", OOM)
    assert told()["logs"] == {"new": 1, "present": 12, "unread": 0}
    assert sorted(key[3] for key in records() if key[:2] == ("2x2", 64)) == [1, 2, 3, 4]


def test_a_copy_of_a_log_is_no_further_run() -> None:
    shutil.copy("logs/1x4/resnet50-b32-amp-r1.log", "logs/1x4/resnet50-b32-amp-r4.log")
    shutil.copy("logs/1x4/resnet50-b32-amp-r1.log", "logs/1x4/resnet50-b48-amp-r1.log")
    document = told()
    assert why(document, "1x4/resnet50-b32-amp-r4.log") == "is a copy of 1x4/resnet50-b32-amp-r1.log"
    assert "which is a log of 1x4 · resnet50 · batch 32" in why(document, "1x4/resnet50-b48-amp-r1.log")
    assert tables().cells["n_planned"].tolist() == [3] * 4


@pytest.mark.parametrize("said", [None, 4])
def test_repetitions_that_nobody_ran_are_not_planned(said: int | None) -> None:
    write_map(Path("map.yaml"), protocol={"warmup_steps": 10, "measured_steps": 100, "repetitions": said})
    for log in ("1x4/resnet50-b32-amp-r3.log", "2x2/resnet50-b32-amp-r2.log", "2x2/resnet50-b32-amp-r3.log"):
        Path("logs", log).unlink()
    told()
    counts = tables().cells.set_index(["configuration", "batch"])["n_planned"]
    found = {("1x4", 32): 2, ("1x4", 64): 3, ("2x2", 32): 1, ("2x2", 64): 3}
    assert dict(counts) == (found if said is None else dict.fromkeys(found, said))
    assert (tables().cells["n_missing"] == tables().cells["n_planned"] - [2, 3, 1, 3]).all()


def test_equal_logs_of_named_repetitions_are_runs_of_their_own() -> None:
    write_map(
        Path("map.yaml"), workloads={"resnet50": {"parsers": [{"metric": "throughput_per_s", "regex": "rate (.*)"}]}}
    )
    shutil.rmtree("logs")
    names = [f"{c}/resnet50-b32-amp-r{n}.log" for c in ("1x4", "2x2") for n in (1, 2, 3)]
    for name in names:
        put(Path("logs"), name, "rate 100\n")
    assert told()["logs"] == {"new": 6, "present": 0, "unread": 0}
    assert told()["logs"] == {"new": 0, "present": 6, "unread": 0}
    # A log that was renamed is no further run, and one beside those that are there is.
    shutil.move("logs/1x4/resnet50-b32-amp-r1.log", "logs/1x4/resnet50-b32-amp-r4.log")
    assert told()["logs"] == {"new": 0, "present": 6, "unread": 0}
    shutil.copy("logs/1x4/resnet50-b32-amp-r4.log", "logs/1x4/resnet50-b32-amp-r1.log")
    assert told()["logs"] == {"new": 1, "present": 6, "unread": 0}


def test_a_log_that_has_changed_is_not_mixed_with_its_record() -> None:
    told()
    put(Path("logs"), "1x4/resnet50-b32-amp-r1.log", timed(four_ranks(5, 32), 1))
    assert "with other content; move that record away" in why(told(), "1x4/resnet50-b32-amp-r1.log")


def test_every_file_that_is_not_read_is_listed_with_the_reason() -> None:
    put(Path("logs"), "notes.txt", "x")
    put(Path("logs"), "9x9/resnet50-b8-amp-r1.log", "x")
    put(Path("logs"), "1x4/alexnet-b8-amp-r1.log", "x")
    put(Path("logs"), "1x4/resnet50-b8-half-r1.log", "x")
    put(Path("logs"), "1x4/resnet50-b8-amp-r0.log", "x")
    put(Path("logs"), "1x4/resnet50-b8-amp-r1.log", "")
    (Path("logs") / "1x4/resnet50-b8-amp-r2.log").write_bytes(b"\x1f\x8b\x08\x08packed")
    (Path("logs") / "1x4/resnet50-b8-amp-r5.log").write_bytes(b"\x7fELF\0")
    put(Path("logs"), "1x4/resnet50-b8-amp-r3.log", "started yesterday\n")
    node_failure = "slurmstepd: error: *** JOB 12 ON fc1 CANCELLED AT 2022-05-03T11:00:00 DUE TO NODE FAILURE ***\n"
    put(Path("logs"), "1x4/resnet50-b8-amp-r4.log", node_failure)
    document = told()
    assert document["logs"]["unread"] == 10
    for log, words in {
        "notes.txt": "no pattern in the map matches",
        "9x9/resnet50-b8-amp-r1.log": "the map has no configuration '9x9'",
        "1x4/alexnet-b8-amp-r1.log": "the map has no workload 'alexnet'",
        "1x4/resnet50-b8-half-r1.log": "'half' is not a precision",
        "1x4/resnet50-b8-amp-r0.log": "repetition 0 is not between 1 and 999999",
        "1x4/resnet50-b8-amp-r1.log": "is empty",
        "1x4/resnet50-b8-amp-r2.log": "is not a text file",
        "1x4/resnet50-b8-amp-r5.log": "is not a text file",
        "1x4/resnet50-b8-amp-r3.log": "the time 'yesterday' does not have the form 'iso'",
        "1x4/resnet50-b8-amp-r4.log": "host, network or scheduler failed",
    }.items():
        assert words in why(document, log)
    # The run that the apparatus ended belongs to a cell: it is missing there.
    cells = tables().cells.set_index("batch")
    assert cells.loc[8, "state"] == "missing"
    assert "no log of this run was imported" in str(cells.loc[8, "missing_reasons"])
    assert any("10 further files could not be imported" in note for note in tables().context["notes"])


@pytest.mark.parametrize(
    ("text", "pattern", "status"),
    [
        ("Done warm up\nslurmstepd: error: *** STEP 1.0 ON a CANCELLED AT x DUE TO TIME LIMIT ***\n", {}, "time_limit"),
        ("Running\nkilled by the watchdog\n", {"timed_out": "by the watchdog"}, "time_limit"),
        ("Running\nTraceback (most recent call last):\nValueError: bad\n", {}, "crashed"),
        ("Running\nexit code 3\n", {"exit_code": r"exit code (\d+)"}, "crashed"),
        ("Running\nexit code 137\n", {"exit_code": r"exit code (\d+)"}, "crashed"),
        ("Running\n", {}, "incomplete"),
        (four_ranks(1000).replace("8.734", "nan"), {}, "nan"),
        (four_ranks(1000) + "exit code 0\n", {"exit_code": r"exit code (\d+)"}, "ok"),
        (four_ranks(1000) + "exit code 1\n", {"exit_code": r"exit code (\d+)"}, "crashed"),
        (four_ranks(1000, batch=16), {}, "invalid"),
    ],
)
def test_failures_are_classified_by_what_is_in_the_log(text: str, pattern: dict[str, str], status: str) -> None:
    write_map(Path("map.yaml"), logs=[{**MAP["logs"][0], **pattern}])
    put(Path("logs"), "1x4/resnet50-b64-tf32-r1.log", text)
    told()
    assert records()["1x4", 64, "tf32", 1].status == status


def test_the_log_itself_can_say_what_it_is_of() -> None:
    logs = {
        "path": "**/*.txt",
        "values": {"workload": "resnet50", "precision": "fp32"},
        "read": {
            "batch_global": r"Batch size: +(\d+) global",
            "hosts": r"^hosts: (\d+)",
            "host": r"^on (\S+)",
            "devices_per_host": r"^devices: (\d+)",
        },
    }
    write_map(Path("map.yaml"), logs=[logs, *MAP["logs"]])
    text = "on fc1\non fc2\nhosts: 2\ndevices: 2\n" + four_ranks(990)
    put(Path("logs"), "a/1.txt", text)
    put(Path("logs"), "a/2.txt", text.replace("990", "991").replace("hosts: 2", "hosts: 3"))
    put(Path("logs"), "a/3.txt", text.replace("990", "992").replace("on fc2\n", ""))
    put(Path("logs"), "a/4.txt", text.replace("990", "993").replace("256 global", "250 global"))
    document = told()
    one = records()["2x2", 64, "fp32", 1]
    assert one.hosts == ("fc1", "fc2")
    assert (one.source is not None and one.source.timed) is False
    assert one.started == one.ended
    assert "no configuration in the map has hosts 3, devices_per_host 2" in why(document, "a/2.txt")
    assert "has the hosts fc1, but configuration '2x2' has 2 hosts" in why(document, "a/3.txt")
    assert why(document, "a/4.txt") == "a global batch of 250 is not a multiple of 4 ranks"
    # What nothing says is absent, not zero.
    runs = tables().runs
    assert runs.loc[runs["precision"] == "fp32", "wall_s"].isna().all()
    assert runs.loc[runs["precision"] == "fp32", "host_names"].tolist() == ["fc1, fc2"]


def test_a_log_that_contradicts_its_path_is_not_imported() -> None:
    write_map(Path("map.yaml"), logs=[{**MAP["logs"][0], "read": {"batch": r"(\d+) per device"}}])
    put(Path("logs"), "1x4/resnet50-b8-amp-r1.log", four_ranks(900, batch=16))
    assert why(told(), "1x4/resnet50-b8-amp-r1.log") == "batch is 8 in its path, but 16 in the log"


def test_options_in_a_path_are_axes() -> None:
    write_map(
        Path("map.yaml"),
        workloads={"resnet50": {"parser": "tf_cnn_benchmarks", "options": {"image_px": 224, "xla": False}}},
        logs=[{"path": "{configuration}/{workload}-px{image_px}-b{batch}-{precision}.log"}, *MAP["logs"]],
    )
    put(Path("logs"), "1x4/resnet50-px160-b32-fp16.log", four_ranks(1500, 32))
    told()
    cells = tables().cells
    assert cells["option_image_px"].tolist().count(160) == 1
    assert set(cells["option_image_px"]) == {160, 224}
    assert len(cells) == 5
    assert told()["logs"] == {"new": 0, "present": 13, "unread": 0}


def test_cells_without_logs_are_left_out_or_missing() -> None:
    put(Path("logs"), "1x1/resnet50-b128-tf32-r1.log", (LOGS / "tf_cnn_benchmarks/one-gpu.log").read_text())
    told()
    assert len(tables().cells) == 5
    assert {rule["why"] for rule in tables().context["excluded"]} == {"no log of it was found"}
    write_map(Path("map.yaml"), matrix="full")
    told()
    states = tables().cells["state"].value_counts().to_dict()
    assert states == {"missing": 3 * 3 * 2 - 5, "measured": 4, "failed": 1}


def test_sparse_logs_of_several_programs_make_exactly_their_cells() -> None:
    programs = {
        "osu": "osu/latency-cuda",
        "nccl": "nccl_tests/all-reduce-8-ranks",
        "pt": "horovod_synthetic/pytorch-4-gpus",
    }
    parsers = {"osu": "osu", "nccl": "nccl_tests", "pt": "horovod_synthetic"}
    for name, log in programs.items():
        put(Path("logs"), f"{name}.txt", (LOGS / f"{log}.log").read_text())
    shapes = [{"name": f"d{n}", "devices_per_host": n} for n in (2, 3)]
    write_map(
        Path("map.yaml"),
        configurations=[*MAP["configurations"], *shapes],
        workloads={**MAP["workloads"], **{name: {"parser": parser} for name, parser in parsers.items()}},
        logs=[
            *MAP["logs"],
            {"path": "{workload}.txt", "values": {"configuration": "d2", "batch": 1, "precision": "fp32"}},
            {
                "path": "pt.txt",
                "values": {"workload": "pt", "precision": "fp32", "hosts": 1},
                "read": {"devices": r"Number of GPUs: (\d+)", "batch": r"^Batch size: (\d+)"},
            },
        ][::-1],
    )
    told()
    names = ["configuration", "workload", "batch", "precision"]
    cells = {tuple(row) for row in tables().cells[names].to_numpy().tolist()}
    assert cells == {
        ("d2", "osu", 1, "fp32"),
        ("d2", "nccl", 1, "fp32"),
        ("1x4", "pt", 32, "fp32"),
        *((name, "resnet50", batch, "fp16") for name in ("1x4", "2x2") for batch in (32, 64)),
    }
    assert records()["1x4", 32, "fp32", 1].throughput_per_s == 432.8
    # Each program was repeated as often as it was.
    assert dict(tables().cells.groupby("workload")["n_planned"].max()) == {"nccl": 1, "osu": 1, "pt": 1, "resnet50": 3}
    assert set(tables().cells["n_missing"]) == {0}


def test_a_workload_file_reads_its_own_logs_as_the_same_workload() -> None:
    write_map(
        Path("map.yaml"),
        workloads={"tf-resnet50": {}},
        logs=[{**MAP["logs"][0], "words": {"precision": {"amp": "fp16"}, "workload": {"resnet50": "tf-resnet50"}}}],
    )
    told()
    campaign = load_campaign(Path("results/old/config/campaign.yaml"))
    assert campaign.workloads["tf-resnet50"] == find_workload("tf-resnet50").model


def test_what_was_measured_is_not_mixed_with_what_was_imported() -> None:
    told()
    path = next(Path("results/old/records").glob("*/*.json"))
    document = json.loads(path.read_text())
    path.write_text(json.dumps({**document, "source": None}))
    assert "contains measured records" in refused()


def test_nothing_of_an_imported_campaign_is_measured() -> None:
    told()
    with pytest.raises(ConfigError, match="its records were imported from logs"):
        check_campaign_files(load_campaign(Path("results/old/config/campaign.yaml")))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"protocol": {"warmup_steps": 1}}, ["protocol.measured_steps", "this key is missing"]),
        ({"logs": [{"path": "{configuration}/{workloda}.log"}]}, ["'{workloda}' is not a name", "'workload'"]),
        ({"logs": [{"path": "../{configuration}.log"}]}, ["must not leave it"]),
        ({"logs": [{"path": "*.log", "read": {"batch": "x"}}]}, ["has 0 groups"]),
        ({"logs": [{"path": "*.log", "values": {"bach": 1}}]}, ["'bach' is not a property of a log", "'batch'"]),
        ({"workloads": {"bert-nano": {}}}, ["writes its results to other files than its log"]),
        ({"workloads": {"nothing-such": {}}}, ["no workload 'nothing-such'"]),
        ({"workloads": {"x": {"description": "y"}}}, ["add 'parser' or 'parsers'"]),
        ({"configurations": [{"device": "v100"}]}, ["has no device 'v100'", "a100"]),
        ({"colour": "red"}, ["colour: unknown key"]),
        ({"ignore": ["**/*.log"]}, ["matches no log of a run", "there are no files"]),
        ({"logs": [{"path": "*.log", "times": {"timezone": "Mars"}}]}, ["'Mars' is not a time zone"]),
    ],
)
def test_a_wrong_map_is_told_where_and_why(changes: dict[str, Any], words: list[str]) -> None:
    write_map(Path("map.yaml"), **changes)
    said = refused("--dry-run")
    for each in words:
        assert each in said
    assert "Traceback" not in said


def test_a_directory_that_is_none_is_told() -> None:
    result = CliRunner().invoke(main, ["import", "nowhere", "--map", "map.yaml"])
    assert result.exit_code == 1
    assert "nowhere: is not a directory" in result.output


CLAIMS = "{schema_version: published/1, name: mine, document: {title: T, authors: A}, claims: []}\n"


@pytest.mark.parametrize("claims", ["claims.yaml", "papers/claims.yaml"])
def test_sets_of_claims_beside_the_map_come_along(claims: str) -> None:
    put(Path(), claims, CLAIMS)
    write_map(Path("map.yaml"), references=[claims, "falcon"])
    assert command("--dry-run").exit_code == 0
    told()
    Path(claims).unlink()
    assert [each.name for each in load_campaign(Path("results/old/config/campaign.yaml")).references] == [
        "mine",
        "falcon",
    ]
    assert "there is no such set of published claims" in refused()


@pytest.mark.parametrize(
    "changes",
    [
        {"metric": None, "baseline": "9x9"},
        {"references": ["no-such.yaml"]},
        {"protocol": {"repetitions": 2, "warmup_steps": 10, "measured_steps": 100}},
        {"matrix": "full"},
        {"workloads": {"resnet50": {"parser": "tf_cnn_benchmarks", "options": {"seed": 1}}}},
        {
            "configurations": [
                {"name": "1x4", "devices_per_host": 4},
                {"name": "2x2", "hosts": 2, "devices_per_host": 9},
            ]
        },
    ],
)
def test_a_dry_run_passes_where_the_import_does_and_fails_where_it_fails(changes: dict[str, Any]) -> None:
    write_map(Path("map.yaml"), **changes)
    before = command("--dry-run")
    assert not Path("results").exists()
    assert command().exit_code == before.exit_code


def test_a_dry_run_says_that_the_results_cannot_be_written() -> None:
    Path("results").write_text("a file\n")
    assert command("--dry-run").exit_code == command().exit_code == 1


def test_any_metric_can_lead() -> None:
    shutil.rmtree("logs")
    for number in (1, 2, 3):
        put(Path("logs"), f"1x4/resnet50-b32-amp-r{number}.log", f"latency {number}.5 us\nscore {10 * number}\n")
    parsers = [{"metric": "score", "regex": "score (.*)"}, {"metric": "latency_us", "regex": "latency (.*) us"}]
    write_map(Path("map.yaml"), workloads={"resnet50": {"parsers": parsers}})
    # The first metric whose direction its name tells.
    assert told()["cells"][0]["median latency (µs)"] == 2.5
    assert tables().runs["value"].tolist() == [1.5, 2.5, 3.5]
    write_map(
        Path("map.yaml"),
        metric={"name": "score"},
        workloads={"resnet50": {"parsers": parsers, "metrics": {"score": {"better": "higher", "unit": "points"}}}},
    )
    assert told()["cells"][0]["median score (points)"] == 20
    assert tables().runs["value"].tolist() == [10, 20, 30]
    assert tables().context["campaign"]["metric"] == {
        "name": "score",
        "label": "score",
        "unit": "points",
        "better": "higher",
    }


def test_leases_of_logs_are_compositions(tmp_path: Path) -> None:
    """Numbered in the order of the logs, and as they were when more are imported."""
    logs, minute = tmp_path / "leases", 0
    for lease, count in (("a", 3), ("b", 2)):
        for number in range(1, count + 1):
            minute += 1
            text = timed(four_ranks(1000 + minute), minute)
            put(logs, f"1x4/{lease}/resnet50-b64-amp-r{number}.log", text)
    pattern = copy.deepcopy(MAP["logs"])
    pattern[0]["path"] = "{configuration}/{lease}/{workload}-b{batch}-{precision}-r{repetition}.log"
    shutil.rmtree("logs")
    logs.rename("logs")
    write_map(Path("map.yaml"), logs=pattern)
    assert told()["logs"] == {"new": 5, "present": 0, "unread": 0}
    assert sorted(key[3] for key in records()) == [1, 2, 3, 1001, 1002]
    put(Path("logs"), "1x4/c/resnet50-b64-amp-r1.log", timed(four_ranks(1050), 20))
    put(Path("logs"), "1x4/b/resnet50-b64-amp-r3.log", timed(four_ranks(1051), 21))
    assert told()["logs"] == {"new": 2, "present": 5, "unread": 0}
    assert sorted(key[3] for key in records()) == [1, 2, 3, 1001, 1002, 1003, 2001]
    found = tables()
    assert list(found.runs["composition"]) == [1, 1, 1, 2, 2, 2, 3]
    (cell,) = found.cells.to_dict("records")
    assert (cell["n_planned"], cell["n_missing"]) == (7, 0)
    assert found.context["campaign"]["protocol"].keys().isdisjoint({"seed", "lease_order"})


LEASES = [{**MAP["logs"][0], "path": "{configuration}/{lease}/{workload}-b{batch}-{precision}-r{repetition}.log"}]


def test_more_leases_of_a_configuration_than_there_are_numbers_for_are_listed() -> None:
    shutil.rmtree("logs")
    write_map(Path("map.yaml"), logs=LEASES)
    for lease in range(1, 1003):
        put(Path("logs"), f"1x4/j{lease}/resnet50-b64-amp-r1.log", timed(OOM, lease % 60) + f"{lease}")
    document = told()
    assert document["logs"] == {"new": 999, "present": 0, "unread": 3}
    assert "'1x4' has 999 leases already; import the logs of further leases" in why(
        document, "1x4/j1002/resnet50-b64-amp-r1.log"
    )
    assert told()["logs"] == {"new": 0, "present": 999, "unread": 3}
