"""Scripts and other inputs of workloads: their content is part of a cell's identity."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from campaign.common.errors import ConfigError, LaunchError
from campaign.common.files import write_json
from campaign.plan.campaign.resolve import Campaign, campaign_from_document, load_campaign
from campaign.plan.campaign.workload_inputs import check_unedited, describe_edited_files, select_inputs
from campaign.plan.lease_plans import build_lease_plans, campaign_part_from_lease_plan
from campaign.plan.matrix import build_specification, expand_matrix, hash_specification
from campaign.plan.plan import build_plan
from campaign.run.preflight import check_campaign_files, find_missing_inputs, find_missing_software
from campaign.spec.record import RecordStore
from tests.campaign_files import load, one_cell, one_run, write_files

PROGRAM: dict[str, Any] = {"campaign.axes.workload": "program", "campaign.axes.batch": 1}


def scripted(directory: Path, command: list[str], **keys: Any) -> Campaign:
    more = {f"workloads.program.{name}": value for name, value in keys.items()}
    return load(directory, {**PROGRAM, "workloads.program.command": command, **more})


def ids(campaign: Campaign) -> list[str]:
    return [cell.id for cell in expand_matrix(campaign).cells]


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "workloads" / "bench.py"
    path.parent.mkdir()
    path.write_text("print('rate: 1')\n")
    return path


@pytest.mark.parametrize(
    "command",
    [
        ["python3", "bench.py", "--batch", "{batch}"],
        ["python3", "{where}/bench.py"],
        ["python3", "{workload_dir}/bench.py"],
        ["sh", "-c", "exec python3 workloads/bench.py"],
        ["python3", "-m", "torch.distributed.run", "workloads/bench.py"],
    ],
)
def test_an_edited_script_makes_other_cells(tmp_path: Path, script: Path, command: list[str]) -> None:
    options = {"size": 8, "where": str(script.parent)}
    before = ids(scripted(tmp_path, command, options=options))
    assert ids(scripted(tmp_path, command, options=options)) == before
    script.write_text("print('rate: 2')\n")
    after = ids(scripted(tmp_path, command, options=options))
    assert not set(before) & set(after)
    script.write_text("print('rate: 1')\n")
    assert ids(scripted(tmp_path, command, options=options)) == before


def test_no_inputs_keep_the_ids_of_before_there_were_such(tmp_path: Path, script: Path) -> None:
    command = ["python3", str(script)]
    plain = ids(scripted(tmp_path, command, inputs=[]))
    assert plain != ids(scripted(tmp_path, command))
    script.unlink()
    assert ids(scripted(tmp_path, command)) == plain
    assert not scripted(tmp_path, ["python3", "-c", "print('rate: 1')"]).inputs


def test_a_program_of_ones_own_counts_and_those_of_the_system_do_not(tmp_path: Path) -> None:
    program = tmp_path / "bench"
    program.write_bytes(b"\x7fELF")
    assert scripted(tmp_path, [str(program), "--fast"]).inputs["program"][str(program)].path == str(program)
    assert not scripted(tmp_path, ["/bin/sh", "--version"]).inputs


def test_named_inputs_replace_the_default_and_follow_options(tmp_path: Path, script: Path) -> None:
    for size in (8, 16):
        (script.parent / f"HPL-{size}.dat").write_text(f"{size}\n")
    changes = {
        **PROGRAM,
        "workloads.program.inputs": ["HPL-{size}.dat"],
        "campaign.axes.options": {"size": [8, 16]},
    }
    campaign = load(tmp_path, changes)
    assert sorted(campaign.inputs["program"]) == ["HPL-16.dat", "HPL-8.dat"]
    cells = expand_matrix(campaign).cells
    for cell in cells:
        assert list(build_specification(campaign, cell)["inputs"]) == [f"HPL-{cell.options['size']}.dat"]
        assert hash_specification(build_specification(campaign, cell)) == cell.id
    (script.parent / "HPL-8.dat").write_text("other\n")
    again = {cell.id for cell in expand_matrix(load(tmp_path, changes)).cells}
    assert {cell.options["size"] for cell in cells if cell.id in again} == {16}


def test_a_version_counts_in_place_of_the_content(tmp_path: Path, script: Path) -> None:
    def with_inputs(inputs: Any) -> list[str]:
        return ids(scripted(tmp_path, ["python3", "bench.py"], inputs=inputs))

    plain, labelled = with_inputs(["bench.py"]), with_inputs({"bench.py": "v1"})
    assert with_inputs({"bench.py": None}) == plain
    assert with_inputs({"bench.py": "v2"}) not in (plain, labelled)
    measured = scripted(tmp_path, ["python3", "bench.py"])
    script.write_text("# a comment\nprint('rate: 1')\n")
    assert with_inputs({"bench.py": "v1"}) == labelled
    assert with_inputs({"bench.py": None}) != plain
    # The message has the line that keeps what was measured.
    now = scripted(tmp_path, ["python3", "bench.py"])
    (told,) = describe_edited_files(now.workloads, now.inputs, measured.inputs)
    assert with_inputs(yaml.safe_load(told.split("`")[1])["inputs"]) == plain
    now = scripted(tmp_path, ["python3", "bench.py"], inputs={"bench.py": "v1"})
    (told,) = describe_edited_files(now.workloads, now.inputs, measured.inputs)
    assert "its version is still 'v1'" in told
    for size in (8, 16):
        (script.parent / f"HPL-{size}.dat").write_text(f"{size}\n")
    varied = scripted(tmp_path, ["x"], inputs={"HPL-{size}.dat": "v3"}, options={"size": 16})
    assert build_specification(varied, expand_matrix(varied).cells[0])["inputs"] == {"HPL-16.dat": "v3"}


OTHER_PARSER = [{"metric": "throughput_per_s", "regex": "speed: (.*)"}]


@pytest.mark.parametrize(
    ("keys", "same"),
    [
        ({"parsers": OTHER_PARSER}, True),
        ({"parsers": None, "parser": "osu"}, True),
        ({"parsers": OTHER_PARSER, "command": ["echo", "speed: 1"]}, False),
        ({"environment": {"A": "1"}}, False),
    ],
)
@pytest.mark.parametrize("known", ["plan", "records"])
def test_another_reading_of_what_was_measured_makes_no_other_cells(
    tmp_path: Path, keys: dict[str, Any], same: bool, known: str
) -> None:
    results = tmp_path / "results"
    path = write_files(tmp_path, PROGRAM)
    before = load_campaign(path)
    store = RecordStore(results / before.name)

    def planned(campaign: Campaign) -> None:
        name = store.share_document(campaign.to_document())
        if known == "plan":
            write_json(results / before.name / "plan" / "plan.json", {"campaign_hash": name})

    planned(before)
    write_files(tmp_path, {**PROGRAM, **{f"workloads.program.{key}": value for key, value in keys.items()}})
    after = load_campaign(path, results=results)
    assert (ids(after) == ids(before)) == same
    assert ids(campaign_from_document(after.to_document())) == ids(after)
    planned(after)
    write_files(tmp_path, {**PROGRAM, "workloads.program.parsers": [{"metric": "latency_us", "regex": "(.*) us"}]})
    assert ids(load_campaign(path, results=results)) == ids(before)
    # Elsewhere, where nothing was measured, and here once it is read as at first.
    assert not load_campaign(path, results=tmp_path / "elsewhere").readings
    assert load_campaign(write_files(tmp_path, PROGRAM), results=results) == before


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (["bench.py", "no-such.dat"], "inputs.1: there is no file 'no-such.dat' in "),
        (["{sise}.dat"], "inputs.0: '{sise}' is not known; did you mean '{size}'?"),
    ],
)
def test_a_missing_input_is_an_error_with_its_place(
    tmp_path: Path, script: Path, inputs: list[str], message: str
) -> None:
    with pytest.raises(ConfigError, match=r"workloads/program.yaml:\d+: inputs") as error:
        scripted(tmp_path, ["python3", "bench.py"], inputs=inputs)
    assert message.replace("'{size}'", "'size'") in str(error.value)


def test_stored_campaigns_and_lease_plans_hold_the_hashes(tmp_path: Path, script: Path) -> None:
    campaign = scripted(tmp_path, ["python3", "bench.py"])
    script.unlink()
    stored = campaign_from_document(campaign.to_document())
    assert stored.inputs == campaign.inputs
    assert ids(stored) == ids(campaign)
    document = next(build_lease_plans(build_plan(campaign, expand_matrix(campaign))))
    assert campaign_part_from_lease_plan(document).inputs == campaign.inputs
    cell = document.work_cells[0]
    assert document.specification(cell) == build_specification(campaign, cell)


@pytest.mark.parametrize("known", ["plan", "archive", "records"])
@pytest.mark.parametrize("inputs", [None, ["bench.py"]])
def test_a_file_that_is_gone_is_as_it_was_measured(
    tmp_path: Path, script: Path, known: str, inputs: list[str] | None
) -> None:
    """By the plan, by what an archive was extracted to, and by the records alone."""
    changes = {**PROGRAM, "workloads.program.command": ["python3", "bench.py"]}
    changes |= {} if inputs is None else {"workloads.program.inputs": inputs}
    path = write_files(tmp_path, changes)
    before, results = load_campaign(path), tmp_path / "results"
    store = RecordStore(results / before.name)
    name = store.share_document(before.to_document())
    if known == "plan":
        write_json(results / before.name / "plan" / "plan.json", {"campaign_hash": name})
    if known == "archive":
        write_json(results / before.name / "campaign.json", before.to_document())
        (store.shared / f"{name}.json").unlink()
    script.unlink()
    after = load_campaign(path, results=results)
    assert ids(after) == ids(before)
    assert find_missing_software(after) == find_missing_inputs(after)
    assert "workloads/program.yaml:1: input file 'bench.py' is missing: " in find_missing_inputs(after)[0]
    with pytest.raises(ConfigError, match=r"input file 'bench.py' is missing"):
        check_campaign_files(after)
    with pytest.raises(LaunchError, match="the file is missing on this host"):
        check_unedited(after.inputs["program"])
    check_unedited(after.inputs["program"], in_container=True)
    script.write_text("print('rate: 2')\n")
    assert not set(ids(load_campaign(path, results=results))) & set(ids(before)), "an edited file is another program"


@pytest.mark.parametrize(
    ("changes", "missing"),
    [
        ({"command": ["python3", "bench.py"]}, ["bench.py"]),
        ({"command": ["{workload_dir}/run.sh", "--out", "x"]}, ["run.sh"]),
        ({"command": ["python3", "-u", "bench-{size}.py"], "options": {"size": 8}}, ["bench-8.py"]),
        ({"command": ["python3", "{where}/bench.py"], "options": {"where": "/no/such"}}, ["/no/such/bench.py"]),
        ({"command": ["python3", "copy.py"], "prepare": [["cp", "{workload_dir}/bench.py", "."]]}, ["bench.py"]),
        ({"command": ["python3", "copy.py"], "prepare": [["git", "clone", "somewhere"]]}, []),
        ({"command": ["sh", "-c", "echo > a.sh; sh a.sh"]}, []),
        ({"command": ["python3", "bench.py"], "inputs": []}, []),
        ({"command": ["python3", "bench.py"], "software": {"apptainer": {"image": "/an/image.sif"}}}, []),
        ({"command": ["python3", "--script=bench.py", "-c", "pass", "notes.txt"]}, []),
    ],
)
def test_a_script_that_was_never_there_is_told_before_anything_is_composed(
    tmp_path: Path, changes: dict[str, Any], missing: list[str]
) -> None:
    campaign = scripted(tmp_path, **changes)
    told = find_missing_inputs(campaign)
    assert [line.split("'")[1] for line in told] == missing
    stored = find_missing_inputs(campaign_from_document(campaign.to_document()))
    assert [line.split("'")[1] for line in stored] == missing, "the driver's document says the same"
    if missing:
        with pytest.raises(ConfigError, match="command: there is no file"):
            check_campaign_files(campaign)


def test_files_of_other_hosts_are_not_looked_for_here(tmp_path: Path) -> None:
    changes = {**PROGRAM, "system.launcher": "slurm", "workloads.program.command": ["python3", "/of/a/node/bench.py"]}
    assert not find_missing_inputs(load(tmp_path, changes))


@pytest.mark.parametrize(
    ("key", "stored"),
    [
        *(
            ("inputs", {"program": {"a": {"path": path, "sha256": sha}}})
            for path, sha in ((1, "0" * 64), ("a", "../.."))
        ),
        ("inputs", {"p": {"a": {}}}),
        *((key, stored) for key in ("inputs", "readings") for stored in (5, [], {"program": 5})),
        ("readings", {"program": {"command": ["rm"]}}),
    ],
)
def test_stored_inputs_and_readings_that_are_none_are_an_error(tmp_path: Path, key: str, stored: Any) -> None:
    document = {**load(tmp_path, PROGRAM).to_document(), key: stored}
    with pytest.raises(ConfigError, match="the stored campaign is damaged"):
        campaign_from_document(document)


def test_inputs_beside_the_workload_file_are_found_by_the_driver(tmp_path: Path, script: Path) -> None:
    prepare = [["cp", "{workload_dir}/bench.py", "."]]
    campaign = scripted(tmp_path, ["python3", "copy.py"], prepare=prepare)
    assert scripted(tmp_path, ["python3", "copy.py"]).workload_dirs == {}
    assert campaign.workload_dirs == {"program": str(script.parent)}
    assert "bench.py" in campaign.inputs["program"]
    document = next(build_lease_plans(build_plan(campaign, expand_matrix(campaign))))
    stored = campaign_part_from_lease_plan(document)
    assert stored.workload_dirs == campaign.workload_dirs
    run = replace(one_run(tmp_path / "run", one_cell()), workload_dir=stored.workload_dirs["program"])
    (step,) = stored.workloads["program"].preparation_steps(run)
    assert step.argv == ("cp", str(script), ".")


def test_the_program_is_started_where_it_is(tmp_path: Path, script: Path) -> None:
    campaign = scripted(tmp_path, ["python3", "bench.py"])
    files = {text: file.path for text, file in campaign.inputs["program"].items()}
    run = one_run(tmp_path / "run", one_cell())
    step = campaign.workloads["program"].step(type(run)(**{**vars(run), "files": files}))
    assert step.argv == ("python3", str(script))


def test_a_script_that_is_edited_after_the_plan_is_not_run(tmp_path: Path, script: Path) -> None:
    campaign = scripted(tmp_path, ["python3", "bench.py"])
    files = select_inputs(campaign.workloads["program"], {"size": 8}, campaign.inputs)
    check_unedited(files)
    script.write_text("print('rate: 2')\n")
    with pytest.raises(LaunchError, match="was edited after the campaign was planned"):
        check_unedited(files)


def test_the_script_of_a_service_counts_and_is_missed(tmp_path: Path, script: Path) -> None:
    service = {
        "name": "service",
        "kind": "service",
        "precisions": ["fp32"],
        "server": {"command": ["python3", "{workload_dir}/bench.py"]},
        "client": {"command": ["echo"], "parser": "vllm"},
    }
    changes = {
        "campaign.axes.workload": "service",
        "campaign.axes.precision": ["fp32"],
        "campaign.axes.batch": 1,
        "workloads.service": service,
    }
    campaign = load(tmp_path, changes)
    assert list(campaign.inputs["service"]) == ["bench.py"]
    script.unlink()
    assert "command: there is no file 'bench.py'" in find_missing_inputs(load(tmp_path, changes))[0]
