from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from campaign.config.documentation.schemas import schema_of
from campaign.config.load import config_directories
from campaign.config.resolve import load_campaign
from campaign.errors import ConfigError, nearest
from tests.campaign_files import load, write_files

# change, the file that the message names, what it says
PROBLEMS: dict[str, tuple[dict[str, Any], str, str]] = {
    "unknown key": (
        {"campaign.axes.batches": [1]},
        "campaign.yaml",
        "axes.batches: unknown key; did you mean 'batch'?",
    ),
    "unknown key at the top": (
        {"campaign.protcol": {}},
        "campaign.yaml",
        "protcol: unknown key; did you mean 'protocol'?",
    ),
    "unknown key in a list": (
        {"campaign.configurations.0.device_per_host": 2},
        "campaign.yaml",
        "configurations.0.device_per_host: unknown key; did you mean 'devices_per_host'?",
    ),
    "unknown key of a kind": (
        {"workloads.steps.sampel_ms": 2},
        "workloads/steps.yaml",
        "sampel_ms: unknown key; did you mean 'sample_ms'?",
    ),
    "key of another kind": (
        {"workloads.steps.command": ["true"]},
        "workloads/steps.yaml",
        "command: unknown key; there are: ",
    ),
    "missing key": (
        {"campaign.axes.workload": None},
        "campaign.yaml",
        "axes.workload: this key is missing; docs/reference/configuration.md explains it",
    ),
    "no kind": ({"workloads.steps.kind": None}, "workloads/steps.yaml", "the key 'kind' is missing"),
    "wrong kind": (
        {"workloads.steps.kind": "syntetic"},
        "workloads/steps.yaml",
        "'syntetic' is not a kind of workload; did you mean 'synthetic'?",
    ),
    "text for a number": (
        {"campaign.protocol.repetitions": "3"},
        "campaign.yaml",
        "protocol.repetitions: input should be a valid integer (found '3')",
    ),
    "true for a number": (
        {"campaign.protocol.repetitions": True},
        "campaign.yaml",
        "protocol.repetitions: input should be a valid integer",
    ),
    "number for true": (
        {"workloads.steps.real_time": 1},
        "workloads/steps.yaml",
        "real_time: input should be a valid boolean",
    ),
    "list for a mapping": ({"campaign.protocol": [1]}, "campaign.yaml", "protocol: "),
    "mapping for a list": (
        {"campaign.configurations": {"hosts": 1}},
        "campaign.yaml",
        "configurations: input should be a valid array",
    ),
    "nothing for a mapping": ({"campaign.axes": []}, "campaign.yaml", "axes: "),
    "number out of range": (
        {"campaign.axes.batch": [1, 0]},
        "campaign.yaml",
        "axes.batch.1: input should be greater than or equal to 1 (found 0)",
    ),
    "lone number out of range": (
        {"campaign.axes.batch": -1},
        "campaign.yaml",
        "axes.batch: input should be greater than or equal to 1 (found -1)",
    ),
    "infinite": (
        {"campaign.protocol.time_limit_s": float("inf")},
        "campaign.yaml",
        "protocol.time_limit_s: input should be a finite number",
    ),
    "not a number": (
        {"workloads.steps.options.size": float("nan")},
        "workloads/steps.yaml",
        "options.size: input should be a finite number",
    ),
    "empty axis": ({"campaign.axes.batch": []}, "campaign.yaml", "axes.batch: is empty; give it at least one value"),
    "empty names": (
        {"campaign.axes.configuration": []},
        "campaign.yaml",
        "axes.configuration: is empty; give it at least one value",
    ),
    "empty list in a shape": (
        {"campaign.configurations.0.hosts": []},
        "campaign.yaml",
        "configurations.0.hosts: is empty",
    ),
    "no configurations": ({"campaign.configurations": []}, "campaign.yaml", "configurations: is empty"),
    "unknown precision": (
        {"campaign.axes.precision": ["fp8"]},
        "campaign.yaml",
        "axes.precision.0: input should be 'fp32', 'tf32', 'fp16', 'fp16-o2' or 'bf16' (found 'fp8')",
    ),
    "another version": (
        {"campaign.schema_version": "campaign/7"},
        "campaign.yaml",
        "schema_version: input should be 'campaign/1'",
    ),
    "path as a name": (
        {"campaign.name": "../../etc"},
        "campaign.yaml",
        "name: '../../etc' is not valid here; use letters",
    ),
    "path as a workload": (
        {"campaign.axes.workload": ["../steps"]},
        "campaign.yaml",
        "axes.workload.0: '../steps' is not valid here",
    ),
    "absolute path as a system": (
        {"campaign.system": "/etc/passwd"},
        "campaign.yaml",
        "system: '/etc/passwd' is not valid here",
    ),
    "dots as a name": (
        {"campaign.configurations.0.name": ".."},
        "campaign.yaml",
        "configurations.0.name: '..' is not valid here",
    ),
    "joined name": (
        {"campaign.configurations.0.name": "a--b"},
        "campaign.yaml",
        "configurations.0.name: 'a--b' is not valid here",
    ),
    "newline in a name": ({"campaign.name": "a\nb"}, "campaign.yaml", "name: 'a\\nb' is not valid here"),
    "very long name": ({"campaign.name": "a" * 300}, "campaign.yaml", "name: string should have at most"),
    "path as a device": (
        {"system.hosts.0.devices.0.model": "a/b"},
        "systems/bench.yaml",
        "hosts.0.devices.0.model: 'a/b' is not valid here",
    ),
    "no system": ({"campaign.system": "bensh"}, "campaign.yaml", "no system 'bensh' in "),
    "no workload": ({"campaign.axes.workload": ["step"]}, "campaign.yaml", "no workload 'step' in "),
    "another name inside": (
        {"system.name": "bank"},
        "systems/bench.yaml",
        "name: 'bank' differs from the name of the file, 'bench'; rename one of them",
    ),
    "host twice": (
        {"system.hosts": [{"name": "h[1-3]"}, {"name": "h2"}]},
        "systems/bench.yaml",
        "hosts.1: duplicate host names in 'hosts.1': h2",
    ),
    "range backwards": (
        {"system.hosts.0.name": "h[3-1]"},
        "systems/bench.yaml",
        "hosts.0.name: h[3-1]: a range counts upwards",
    ),
    "unknown fabric": (
        {"system.fabric.kind": "simulatd"},
        "systems/bench.yaml",
        "fabric.kind: 'simulatd' is not a fabric; did you mean 'simulated'?",
    ),
    "no fabric kind": (
        {"system.fabric": {"attach_s": 1}},
        "systems/bench.yaml",
        "fabric.kind: this key is missing; choose one of: ",
    ),
    "unknown option of the fabric": (
        {"system.fabric.atach_s": 1},
        "systems/bench.yaml",
        "fabric.atach_s: unknown key; did you mean 'attach_s'?",
    ),
    "option in a list of the fabric": (
        {"system.fabric.faults": [{"kind": "busy", "tims": 2}]},
        "systems/bench.yaml",
        "fabric.faults.0.tims: unknown key; did you mean 'times'?",
    ),
    "wrong type of a fabric's option": (
        {"system.fabric.attach_s": "2"},
        "systems/bench.yaml",
        "fabric.attach_s: input should be a valid number (found '2')",
    ),
    "option of a fabric without options": (
        {"system.fabric": {"kind": "static", "attach_s": 1}},
        "systems/bench.yaml",
        "fabric.attach_s: unknown key",
    ),
    "two ways to parse": (
        {"campaign.axes.workload": "program", "workloads.program.parsers.0.json_key": "a"},
        "workloads/program.yaml",
        "give either 'regex' or 'json_key'",
    ),
    "no group": (
        {"campaign.axes.workload": "program", "workloads.program.parsers.0.regex": "rate"},
        "workloads/program.yaml",
        "exactly one must hold the number",
    ),
    "no regular expression": (
        {"campaign.axes.workload": "program", "workloads.program.parsers.0.regex": "(["},
        "workloads/program.yaml",
        "is not a regular expression",
    ),
    "name of a variable": (
        {"campaign.axes.workload": "program", "workloads.program.environment": {"A=B": "1"}},
        "workloads/program.yaml",
        "environment.",
    ),
    "nul in a command": (
        {"campaign.axes.workload": "program", "workloads.program.command": ["a\0b"]},
        "workloads/program.yaml",
        "command.0: ",
    ),
}


def message_of(directory: Path, changes: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        load(directory, changes)
    return str(caught.value)


@pytest.mark.parametrize(("changes", "file", "says"), PROBLEMS.values(), ids=PROBLEMS)
def test_a_problem_is_one_message_with_file_line_key_and_remedy(
    tmp_path: Path, changes: dict[str, Any], file: str, says: str
) -> None:
    message = message_of(tmp_path, changes)
    assert len(message.splitlines()) == 1, message
    assert message.startswith(f"{tmp_path}/{file}:")
    assert says in message
    assert len(message) < 600


def test_the_line_is_that_of_the_key(tmp_path: Path) -> None:
    message = message_of(tmp_path, {"campaign.protocol.warmup": 1})
    lines = (tmp_path / "campaign.yaml").read_text().splitlines()
    assert message.startswith(f"{tmp_path}/campaign.yaml:{lines.index('  warmup: 1') + 1}: protocol.warmup: ")


def test_all_problems_of_a_file_are_told_at_once(tmp_path: Path) -> None:
    changes = {"campaign.name": "a/b", "campaign.axes.batch": [0, "x"], "campaign.protcol": 1, "campaign.system": None}
    message = message_of(tmp_path, changes)
    places = {line.split(": ")[1] for line in message.splitlines()}
    assert places == {"name", "axes.batch.0", "axes.batch.1", "protcol", "system"}


def test_problems_of_the_system_and_every_workload_are_told_at_once(tmp_path: Path) -> None:
    changes = {
        "campaign.axes.workload": ["steps", "program", "absent"],
        "system.hosts.0.core": 4,
        "system.fabric.attach": 1,
        "workloads.steps.noise": 1,
        "workloads.program.launch": "twice",
    }
    message = message_of(tmp_path, changes)
    for part in (
        "hosts.0.core: unknown",
        "fabric.attach: unknown",
        "noise: unknown",
        "launch: input",
        "no workload 'absent'",
    ):
        assert part in message
    assert len(message.splitlines()) == 5


def test_files_beside_the_campaign_come_before_the_shipped_ones(tmp_path: Path) -> None:
    path = write_files(tmp_path / "campaigns" / "deep")
    assert load_campaign(path).system.name == "bench"
    (tmp_path / "campaigns" / "deep" / "systems").rename(tmp_path / "campaigns" / "systems")
    assert load_campaign(path).system.name == "bench"
    assert config_directories(path)[:2] == [tmp_path / "campaigns" / "deep", tmp_path / "campaigns"]


@pytest.mark.parametrize(
    ("name", "ending"),
    [("bata", "did you mean 'beta'?"), ("xyz", "there are: alpha, beta"), ("", "there are: alpha, beta")],
)
def test_the_nearest_name_is_offered(name: str, ending: str) -> None:
    assert nearest(name, {"beta", "alpha"}) == ending
    assert nearest(name, []) == "there are: none"


SHAPELESS = {
    "name",
    "another name inside",
    "host twice",
    "range backwards",
    "no system",
    "no workload",
    "infinite",
    "not a number",
    "two ways to parse",
    "no group",
    "no regular expression",
    "name of a variable",
    "newline in a name",
}


@pytest.mark.parametrize(
    ("changes", "file"),
    [(c, f) for name, (c, f, _) in PROBLEMS.items() if name not in SHAPELESS],
    ids=[name for name in PROBLEMS if name not in SHAPELESS],
)
def test_the_schema_refuses_what_the_models_refuse(tmp_path: Path, changes: dict[str, Any], file: str) -> None:
    write_files(tmp_path, changes)
    noun = {"campaign.yaml": "campaign", "systems/bench.yaml": "system"}.get(file, "workload")
    document = json.loads(json.dumps(yaml.safe_load((tmp_path / file).read_text())))
    assert not jsonschema.Draft202012Validator(schema_of(noun)).is_valid(document)


def test_the_schema_takes_what_the_models_take(tmp_path: Path) -> None:
    load(tmp_path, {"campaign.axes.batch": 4, "campaign.axes.workload": ["steps", "program"]})
    for file, noun in (
        ("campaign", "campaign"),
        ("systems/bench", "system"),
        ("workloads/steps", "workload"),
        ("workloads/program", "workload"),
        ("workloads/nano", "workload"),
    ):
        document = yaml.safe_load((tmp_path / f"{file}.yaml").read_text())
        jsonschema.Draft202012Validator(schema_of(noun)).validate(document)
    assert load(tmp_path, {"campaign.axes.batch": 4}).file.axes.batch == (4,)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("host7", ["host7"]),
        ("host[1-3]", ["host1", "host2", "host3"]),
        ("host[1,3-4]", ["host1", "host3", "host4"]),
        ("n[008-010,12]", ["n008", "n009", "n010", "n12"]),
    ],
)
def test_a_text_stands_for_hosts(tmp_path: Path, text: str, names: list[str]) -> None:
    loaded = load(tmp_path, {"system.hosts.0.name": text, "system.tenancy": {"allowed_hosts": [text]}})
    assert [name for group in loaded.system.hosts for name in group.names()] == names
    assert loaded.system.allowed_hosts() == tuple(names)
