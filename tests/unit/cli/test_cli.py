"""The command line: what it prints, its exit codes, and compositions by hand."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from campaign.cli import practice_cluster
from campaign.cli.main import main
from campaign.common.files import acquire_lock
from campaign.common.paths import PUBLISHED_DATA_DIRECTORY, Results
from campaign.plan.campaign.resolve import load_campaign
from tests import campaign_files
from tests.campaign_records import fill

Run = Callable[..., Result]


@pytest.fixture
def campaign(tmp_path: Path) -> Path:
    return campaign_files.write_files(tmp_path / "config")


@pytest.fixture
def run(campaign: Path, tmp_path: Path) -> Run:
    """`campaign COMMAND [CONFIGURATION] CAMPAIGN --results ...`."""

    def call(command: str, *arguments: str, results: bool = True) -> Result:
        options = ["--results", str(tmp_path / "results")] if results else []
        return CliRunner().invoke(main, [command, *arguments, *options])

    return call


@pytest.mark.parametrize("command", sorted(main.commands))
def test_every_command_has_help(command: str) -> None:
    result = CliRunner().invoke(main, [command, "--help"])
    assert result.exit_code == 0
    assert len(result.output.splitlines()) > 4


def test_the_list_of_commands_says_of_each_what_its_own_help_says() -> None:
    listed = CliRunner().invoke(main, ["--help"], terminal_width=200).output
    for name, command in main.commands.items():
        (line,) = re.findall(rf"^  {name} +(.*)$", listed, re.MULTILINE)
        assert line.split()[0] == str(command.help).split()[0]


def test_help_of_a_command_loads_no_other_command_and_what_it_loads_is_not_looked_through_for_garbage() -> None:
    program = (
        "import gc, sys\nfrom campaign.cli.main import main\nmain(['plan', '--help'], standalone_mode=False)\n"
        "print(sorted(name for name in sys.modules if name.startswith('campaign.cli.')))\n"
        "assert len(gc.get_objects()) < gc.get_freeze_count()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = ["campaign.cli.cost_table", "campaign.cli.main", "campaign.cli.options", "campaign.cli.plan"]
    loaded += ["campaign.cli.practice_cluster", "campaign.cli.source", "campaign.cli.terminal"]
    assert done.stdout.splitlines()[-1] == str(loaded)


def test_a_command_that_slurm_waits_for_loads_little() -> None:
    program = (
        "import sys\nfrom campaign.cli.main import main\nmain(['cluster', 'slurmd', 'start', '--help'], standalone_mode=False)\n"
        "print(sorted({'rich', 'jinja2', 'campaign.plan.campaign', 'campaign.workloads'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_an_unknown_command_is_an_error() -> None:
    result = CliRunner().invoke(main, ["meassure"])
    assert (result.exit_code, "No such command 'meassure'" in result.output) == (2, True)


def test_plan_as_a_table_json_and_tsv_without_side_effects(run: Run, campaign: Path, tmp_path: Path) -> None:
    table = run("plan", str(campaign))
    assert table.exit_code == 0
    assert "16 cells, 32 runs, 32 without a record, in 4 leases" in table.output
    document = json.loads(run("plan", str(campaign), "--format", "json").output)
    assert document["schema_version"] == "plan/1"
    assert document["totals"]["runs"] == 32
    rows = run("plan", str(campaign), "--format", "tsv").output.splitlines()
    assert len(rows) == 17
    assert not (tmp_path / "results").exists()
    assert "other cell" not in table.output
    (tmp_path / "results" / "small" / "records" / "ff").mkdir(parents=True)
    (tmp_path / "results" / "small" / "records" / "ff" / f"{'f' * 20}.1.json").touch()
    (tmp_path / "results" / "small" / "tables").mkdir()
    (tmp_path / "results" / "small" / "tables" / "runs.parquet").touch()  # which were made of this record, too
    assert "1 other cell with records in these results" in run("plan", str(campaign)).output


def test_no_cell_of_the_table_of_a_plan_is_a_formula_and_numbers_stay_numbers(run: Run, tmp_path: Path) -> None:
    options = {"workloads.program.options": {"flag": "-O2", "shift": -1}}
    axes = {
        "campaign.axes.options": {"flag": ["=1+1", "-O3"], "shift": [-1, -2]},
        "campaign.axes.workload": ["program"],
    }
    campaign = str(campaign_files.write_files(tmp_path / "odd", options | axes))
    assert run("plan", campaign, "--write").exit_code == 0, run("plan", campaign).output
    header, *rows = [line.split("\t") for line in (tmp_path / "results/small/plan/plan.tsv").read_text().splitlines()]
    flags, shifts = ({row[header.index(name)] for row in rows} for name in ("flag", "shift"))
    assert (flags, shifts) == ({"'=1+1", "'-O3"}, {"-1", "-2"})


def test_composing_that_takes_less_than_a_second_is_no_zero(run: Run, campaign: Path) -> None:
    output = run("plan", str(campaign)).output
    assert "under 1 s" in output
    assert not re.search(r"(?<![\d.])0 s\b", output)


def test_plan_says_which_warm_ups_are_lengthened_and_which_cannot_be(run: Run, tmp_path: Path) -> None:
    changes = {"campaign.protocol.warmup_steps_max": 60, "campaign.axes.workload": ["steps", "program"]}
    both = str(campaign_files.write_files(tmp_path / "both", changes))
    table = run("plan", both)
    assert table.exit_code == 0, table.output
    words = " ".join(table.output.split())
    assert "warm-ups of 20 to 60 steps, until step times show no trend" in words
    assert "warmup_steps_max does not apply to workload 'program'" in words
    (note,) = json.loads(run("plan", both, "--format", "json").output)["notes"]
    assert "a command workload controls its own warm-up" in note
    assert json.loads(run("plan", both, "--format", "json", "--where", "workload == 'steps'").output)["notes"] == []


def test_where_selects_on_plan(run: Run, campaign: Path) -> None:
    document = json.loads(run("plan", str(campaign), "--format", "json", "--where", "batch >= 2 and ranks == 1").output)
    assert document["totals"]["cells"] == 4


def test_plan_exits_with_1_when_something_does_not_fit(run: Run, tmp_path: Path) -> None:
    big = campaign_files.write_files(tmp_path / "big", {"campaign.configurations": [{"devices_per_host": [1, 40]}]})
    result = run("plan", str(big))
    assert result.exit_code == 1
    assert result.output.lstrip().startswith("Does not fit")
    assert "1x40-local" in result.output


def test_validate(run: Run, campaign: Path, tmp_path: Path) -> None:
    assert "valid; 16 cells, 32 runs in 4 leases" in run("validate", str(campaign), results=False).output
    wrong = campaign_files.write_files(tmp_path / "wrong", {"campaign.axes.batches": [1]})
    result = run("validate", str(wrong), results=False)
    assert result.exit_code == 1
    assert "did you mean 'batch'?" in result.output
    assert "Traceback" not in result.output


def test_validate_needs_nothing_of_the_machine_and_check_says_what_is_missing(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = {
        "campaign.axes.workload": "program",
        "workloads.program.command": ["no-such-program"],
        "workloads.program.environment": {"HF_TOKEN": {"from": "environment"}},
        "system.launcher": "slurm",
        "system.slurm": {"partition": "gpu"},
    }
    campaign = campaign_files.write_files(tmp_path / "far", changes)
    monkeypatch.setenv("PATH", "/no/such/directory")
    result = run("validate", str(campaign), results=False)
    assert result.exit_code == 0, result.output
    assert not result.stderr
    for launcher in ("slurm", "local"):
        devices = {"cpu-rank": {"runs_on": "cuda"}}
        near = campaign_files.write_files(tmp_path / launcher, {"system.launcher": launcher, "system.devices": devices})
        assert run("validate", str(near), results=False).exit_code == 0
        checked = run("check", str(near.parent / "systems/bench.yaml"))
        assert checked.exit_code == 1
        assert ("sinfo" if launcher == "slurm" else "'nvidia-smi', which lists the devices") in checked.output
    (tmp_path / "far" / "campaign.yaml").write_text(campaign.read_text().replace("batch", "btch"))
    assert run("validate", str(campaign), results=False).exit_code == 1


def test_validate_says_what_nobody_has_tried(run: Run, tmp_path: Path) -> None:
    amd = campaign_files.write_files(tmp_path / "amd", {"system.devices.cpu-rank": {"runs_on": "rocm"}})
    result = run("validate", str(amd), results=False)
    assert result.exit_code == 0
    assert "note: `runs_on: rocm` (cpu-rank) is unverified: nothing was run on an AMD GPU" in result.output


@pytest.mark.parametrize("noun", ["systems/bench.yaml", "workloads/program.yaml", "claims"])
def test_a_system_workload_or_claims_file_is_validated_alone(run: Run, campaign: Path, noun: str) -> None:
    file = PUBLISHED_DATA_DIRECTORY / "falcon.yaml" if noun == "claims" else campaign.parent / noun
    result = run("validate", str(file), results=False)
    assert (result.exit_code, result.output) == (0, f"{file}: valid; a {noun.split('s/')[0]} file\n")


def test_without_a_campaign_a_project_is_suggested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for command in ("plan", "status", "run", "report", "inventory"):
        result = CliRunner().invoke(main, [command])
        assert result.exit_code == 1
        assert (
            "config/campaign.yaml: no such file; name a campaign file, or create a project with one by 'campaign init'"
            in result.output
        )


def test_a_plan_says_that_torch_is_missing_with_a_command(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    campaign = campaign_files.write_files(tmp_path / "train", {"campaign.axes.workload": "nano"})
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "torch" else found(name))
    monkeypatch.setattr(sys, "executable", "/a place/python")
    result = run("plan", str(campaign))
    assert result.exit_code == 0
    assert (
        "workloads/nano.yaml:1: PyTorch is not installed; run: '/a place/python' -m pip install --index-url "
        "https://download.pytorch.org/whl/cpu torch=="
    ) in result.stderr


def test_what_contradicts_itself_in_a_file_alone_is_told(run: Run, tmp_path: Path) -> None:
    changes = {
        "system.slurm": {"overrides": [{"when": "host > 1", "qos": "long"}]},
        "system.devices.gpu": {},
        "workloads.program.command": ["echo", "{btch}"],
        "workloads.program.options.seed": 1,
        "workloads.program.parsers": None,
    }
    campaign = campaign_files.write_files(tmp_path, changes)
    system = run("validate", str(campaign.parent / "systems/bench.yaml"), results=False)
    assert system.exit_code == 1
    assert "devices.gpu: no host and no pool entry has this device" in system.output
    assert (
        "slurm.overrides.0.when: 'host > 1' contains 'host', which is not an axis; did you mean 'hosts'?"
        in system.output
    )
    workload = run("validate", str(campaign.parent / "workloads/program.yaml"), results=False)
    assert workload.exit_code == 1
    assert "command.1: '{btch}' is not known; did you mean 'batch'?" in workload.output
    assert "options.seed: this name is reserved for the campaign" in workload.output


def test_warnings_are_told_beside_a_plan_that_programs_read(run: Run, tmp_path: Path) -> None:
    campaign = campaign_files.write_files(tmp_path / "odd", {"campaign.axes.batch": [1, 1]})
    for command in (["validate"], ["plan", "--format", "json"]):
        result = CliRunner().invoke(main, [*command, str(campaign)])
        assert result.exit_code == 0
        assert re.fullmatch(r"warning: .*campaign.yaml:\d+: axes.batch: 1 is listed twice but .*\n", result.stderr)
    assert json.loads(result.stdout)["totals"]["cells"] == 8


def test_compose_verify_release_by_hand(run: Run, campaign: Path) -> None:
    composed = run("compose", "1x2-fabric", "--campaign", str(campaign))
    assert composed.exit_code == 0, composed.output
    assert "falcon1/drawer1/slot1" in composed.output
    verified = run("verify", str(campaign))
    assert verified.exit_code == 0, verified.output
    assert verified.output.count("yes") == 2
    assert "kept-1x2-fabric" in run("inventory", str(campaign)).output
    # It is kept on purpose: not an orphan although the process that composed it has ended.
    orphans = run("release", "--orphans", "--campaign", str(campaign))
    assert "no lease was left behind" in orphans.output
    assert "released" in run("release", "1x2-fabric", "--campaign", str(campaign)).output
    assert "no composition is held" in run("verify", str(campaign)).output
    assert "no composition is kept" in run("release", "1x2-fabric", "--campaign", str(campaign)).output
    assert "no configuration '1x9'" in run("release", "1x9", "--campaign", str(campaign)).output


def test_compose_on_chosen_hosts_under_a_name(run: Run, campaign: Path) -> None:
    options = [str(campaign)]
    for name, host in (("one", "host2"), ("two", "host1")):
        composed = run("compose", "1x2-fabric", "--hosts", host, "--name", name, *options)
        assert composed.exit_code == 0, composed.output
        assert host in composed.output
    kept = run("inventory", str(campaign)).output
    assert "kept-one" in kept
    assert "kept-two" in kept
    elsewhere = run("compose", "1x2-fabric", "--hosts", "host1", "--name", "one", *options)
    assert elsewhere.exit_code == 1
    assert "on host2" in elsewhere.output
    unknown = run("compose", "1x2-fabric", "--hosts", "host1,host9", *options)
    assert "has no host host9; it has: host1, host2" in unknown.output
    assert "one: released" in run("release", "1x2-fabric", "--name", "one", *options).output
    kept = run("inventory", str(campaign)).output
    assert "kept-one" not in kept
    assert "kept-two" in kept


def test_compose_names_the_configurations_there_are(run: Run, campaign: Path) -> None:
    result = run("compose", "1x9-local", str(campaign))
    assert result.exit_code == 1
    assert "it has: 1x1-local" in result.output


def test_status_of_a_campaign_that_was_never_run(run: Run, campaign: Path) -> None:
    result = run("status", str(campaign))
    assert result.exit_code == 0
    assert "0 of 32 runs have a record: none yet" in result.output
    assert "still to measure: 32 runs of unknown duration (no earlier run of steps on cpu-rank" in result.output


def test_status_after_a_part_was_run_is_of_that_part(run: Run, campaign: Path, tmp_path: Path) -> None:
    where = "configuration == '1x1-local' and batch == 1"
    run("plan", str(campaign), "--write", "--where", where)
    fill(load_campaign(campaign), tmp_path / "results" / "small")
    for path in (tmp_path / "results" / "small" / "records").glob("*/*.json"):
        cell = json.loads(path.read_bytes())["cell"]
        if (cell["configuration"], cell["batch"]) != ("1x1-local", 1):
            path.unlink()
    of_part = run("status", str(campaign))
    assert f"4 of 4 runs of the part that was requested last (where {where}; --all shows the whole" in of_part.output
    assert "to do" not in of_part.output
    assert "4 of 32 runs have a record: 4 ok" in run("status", str(campaign), "--all").output
    assert "0 of 8 runs of the part" in run("status", str(campaign), "--where", "configuration == '1x2-local'").output
    # It ends by itself, since nothing is left to do.
    watched = json.loads(run("status", str(campaign), "--watch", "1", "--format", "json").output)
    assert (watched["runs"], watched["runs_done"], watched["where"], watched["outcomes"]) == (4, 4, where, {"ok": 4})
    assert watched["leases"] == [
        {"lease": "1x1-local.c1", "runs": 4, "runs_done": 4, "state": "complete", "job": None, "last_run": None}
    ]


def test_status_is_of_the_label_that_was_asked_for_last(run: Run, campaign: Path, tmp_path: Path) -> None:
    fill(load_campaign(campaign), tmp_path / "results" / "small")
    run("plan", str(campaign), "--write", "--version", "driver-580")
    assert "0 of 32 runs have a record" in run("status", str(campaign)).output
    assert "32 of 32 runs have a record" in run("status", str(campaign), "--version", "none").output
    labelled = campaign_files.write_files(campaign.parent, {"campaign.version": "driver-590"})
    assert "0 of 32 runs have a record" in run("status", str(labelled)).output
    wrong = run("plan", str(campaign), "--version", "a b")
    assert (wrong.exit_code, "version: 'a b' is not a valid label; use at most 64 letters" in wrong.output) == (1, True)


@pytest.mark.parametrize(
    "listing", ["status", "inventory", "verify", "plan", "fabric reconcile", "workload list", "workload show steps"]
)
def test_every_listing_is_also_a_json_document(
    run: Run, campaign: Path, monkeypatch: pytest.MonkeyPatch, listing: str
) -> None:
    monkeypatch.chdir(campaign.parent.parent)
    words = listing.split()
    if listing == "fabric reconcile":
        words += ["config/systems/bench.yaml"]
    if listing == "workload show steps":
        words[-1:] = ["config/workloads/steps.yaml"]
    assert run("compose", "1x1-fabric").exit_code == 0
    result = CliRunner().invoke(main, [*words, "--format", "json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)


def test_a_practice_cluster_is_found_without_a_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_CONF", "set, so that it is restored")
    monkeypatch.delenv("SLURM_CONF")
    monkeypatch.setattr(practice_cluster, "_SITE_SLURM_CONF", tmp_path / "none")
    monkeypatch.setattr(practice_cluster, "get_default_directory", lambda: tmp_path / "cluster")
    conf = tmp_path / "cluster" / "etc" / "slurm.conf"
    conf.parent.mkdir(parents=True)
    conf.write_text("")
    practice_cluster.use_practice_cluster()
    assert "SLURM_CONF" not in os.environ  # it is down
    lock = acquire_lock(tmp_path / "cluster" / "keeper.lock")
    assert lock is not None
    for there in (tmp_path, tmp_path / "none"):
        monkeypatch.setattr(practice_cluster, "_SITE_SLURM_CONF", there)
        practice_cluster.use_practice_cluster()
        assert os.environ.get("SLURM_CONF") == (None if there == tmp_path else str(conf))
    os.close(lock)


def test_report_without_any_record_shows_everything_as_missing(run: Run, campaign: Path, tmp_path: Path) -> None:
    result = run("report", str(campaign))
    assert result.exit_code == 0, result.output
    page = (tmp_path / "results" / "small" / "report.html").read_text()
    assert "not measured yet" in page


def test_archive_of_nothing_and_report_of_no_file(run: Run, campaign: Path, tmp_path: Path) -> None:
    assert "no records to archive" in run("archive", str(campaign)).output
    result = run("report", str(tmp_path / "none.zip"))
    assert result.exit_code == 1
    assert "no such file" in result.output


@pytest.mark.root
def test_the_campaign_of_another_user_is_shown() -> None:
    with tempfile.TemporaryDirectory() as made:
        Path(made).chmod(0o755)
        campaign, results = campaign_files.write_files(Path(made) / "config"), Path(made) / "results"
        fill(load_campaign(campaign), results / "small", 0.5)
        options = [str(campaign), "--results", str(results)]
        assert CliRunner().invoke(main, ["compose", "1x1-fabric", "--campaign", *options]).exit_code == 0
        directories = Results(results, "small")
        lock = acquire_lock(directories.driver_lock_file("1x1-local.c1"))
        assert lock is not None
        for command, says in (
            ("status", "measuring, no run finished yet"),
            ("verify", "kept-1x1-fabric"),
            ("plan", "32 runs"),
        ):
            CliRunner().invoke(main, [command, *options])  # imports what it needs while that can be read
            reading, writing = os.pipe()
            if (child := os.fork()) == 0:
                os.seteuid(65534)
                result = CliRunner().invoke(main, [command, *options])
                os.write(writing, result.output.encode()[:4000])
                os._exit(result.exit_code)
            os.close(writing)
            with os.fdopen(reading) as said:
                assert says in said.read()
            assert os.waitpid(child, 0)[1] == 0
        os.close(lock)
