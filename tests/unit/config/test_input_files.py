"""Scripts and other inputs of workloads: their content is part of a cell's identity."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from campaign.config.input_files import inputs_of, refuse_edited
from campaign.config.resolve import Campaign, from_document
from campaign.errors import ConfigError, LaunchError
from campaign.plan.lease_plans import campaign_of, lease_plans
from campaign.plan.matrix import cell_id, expand, specification
from campaign.plan.plan import build_plan
from tests.campaign_files import load, one_cell, one_run

PROGRAM: dict[str, Any] = {"campaign.axes.workload": "program", "campaign.axes.batch": 1}


def scripted(directory: Path, command: list[str], **keys: Any) -> Campaign:
    more = {f"workloads.program.{name}": value for name, value in keys.items()}
    return load(directory, {**PROGRAM, "workloads.program.command": command, **more})


def ids(campaign: Campaign) -> list[str]:
    return [cell.id for cell in expand(campaign).cells]


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
    cells = expand(campaign).cells
    for cell in cells:
        assert list(specification(campaign, cell)["inputs"]) == [f"HPL-{cell.options['size']}.dat"]
        assert cell_id(specification(campaign, cell)) == cell.id
    (script.parent / "HPL-8.dat").write_text("other\n")
    again = {cell.id for cell in expand(load(tmp_path, changes)).cells}
    assert {cell.options["size"] for cell in cells if cell.id in again} == {16}


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (["bench.py", "no-such.dat"], "inputs.1: no file 'no-such.dat' in "),
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
    stored = from_document(campaign.document())
    assert stored.inputs == campaign.inputs
    assert ids(stored) == ids(campaign)
    document = next(lease_plans(build_plan(campaign, expand(campaign), set())))
    assert campaign_of(document).inputs == campaign.inputs
    cell = document.work[0]
    assert document.specification(cell) == specification(campaign, cell)


def test_inputs_beside_the_workload_file_are_found_by_the_driver(tmp_path: Path, script: Path) -> None:
    prepare = [["cp", "{workload_dir}/bench.py", "."]]
    campaign = scripted(tmp_path, ["python3", "copy.py"], prepare=prepare)
    assert scripted(tmp_path, ["python3", "copy.py"]).workload_dirs == {}
    assert campaign.workload_dirs == {"program": str(script.parent)}
    assert "bench.py" in campaign.inputs["program"]
    document = next(lease_plans(build_plan(campaign, expand(campaign), set())))
    stored = campaign_of(document)
    assert stored.workload_dirs == campaign.workload_dirs
    run = replace(one_run(tmp_path / "run", one_cell()), workload_dir=stored.workload_dirs["program"])
    (step,) = stored.workloads["program"].before(run)
    assert step.argv == ("cp", str(script), ".")


def test_the_program_is_started_where_it_is(tmp_path: Path, script: Path) -> None:
    campaign = scripted(tmp_path, ["python3", "bench.py"])
    files = {text: file.path for text, file in campaign.inputs["program"].items()}
    run = one_run(tmp_path / "run", one_cell())
    step = campaign.workloads["program"].step(type(run)(**{**vars(run), "files": files}))
    assert step.argv == ("python3", str(script))


def test_a_script_that_is_edited_after_the_plan_is_not_run(tmp_path: Path, script: Path) -> None:
    campaign = scripted(tmp_path, ["python3", "bench.py"])
    files = inputs_of(campaign.workloads["program"], {"size": 8}, campaign.inputs)
    refuse_edited(files)
    script.write_text("print('rate: 2')\n")
    with pytest.raises(LaunchError, match="was edited after the campaign was planned"):
        refuse_edited(files)
