from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from campaign.common.errors import ConfigError, suggest_name
from campaign.common.paths import ROOT
from campaign.plan.campaign.json_schemas import build_schema
from campaign.plan.campaign.load import list_config_directories
from campaign.plan.campaign.resolve import load_campaign
from tests.campaign_files import load, write_files

CASES = yaml.safe_load((ROOT / "tests" / "data" / "config" / "invalid.yaml").read_text())
# Of the schema's business: keys and types of one file, by themselves.
OF_ONE_FILE = list(CASES)[: list(CASES).index("no such baseline")]


def message_of(directory: Path, changes: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        load(directory, changes)
    return str(caught.value)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_problem_is_one_message_with_file_line_key_and_remedy(tmp_path: Path, case: dict[str, Any]) -> None:
    message = message_of(tmp_path, case["change"])
    assert len(message.splitlines()) == 1, message
    assert message.startswith(f"{tmp_path}/{case['file']}:")
    assert case["says"] in message
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


def test_of_thousands_of_problems_the_first_are_told_and_the_rest_counted(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as told:
        load(tmp_path, {"campaign.axes.batch": list(range(1, 10_001))})
    lines = str(told.value).splitlines()
    assert len(lines) == 21
    assert "axes.batch.4096: input should be less than or equal to 4096 (found 4097)" in lines[0]
    assert lines[-1].endswith("campaign.yaml: there are 5884 more problems; correct those above first")


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
    assert list_config_directories(path)[:2] == [tmp_path / "campaigns" / "deep", tmp_path / "campaigns"]


@pytest.mark.parametrize(
    ("name", "ending"),
    [("bata", "did you mean 'beta'?"), ("xyz", "there are: alpha, beta"), ("", "there are: alpha, beta")],
)
def test_the_nearest_name_is_offered(name: str, ending: str) -> None:
    assert suggest_name(name, {"beta", "alpha"}) == ending
    assert suggest_name(name, []) == "there are: none"


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


@pytest.mark.parametrize("name", [name for name in OF_ONE_FILE if name not in SHAPELESS])
def test_the_schema_refuses_what_the_models_refuse(tmp_path: Path, name: str) -> None:
    changes, file = CASES[name]["change"], CASES[name]["file"]
    write_files(tmp_path, changes)
    noun = {"campaign.yaml": "campaign", "systems/bench.yaml": "system"}.get(file, "workload")
    document = json.loads(json.dumps(yaml.safe_load((tmp_path / file).read_text())))
    assert not jsonschema.Draft202012Validator(build_schema(noun)).is_valid(document)


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
        jsonschema.Draft202012Validator(build_schema(noun)).validate(document)
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
    assert [name for group in loaded.system.hosts for name in group.list_names()] == names
    assert loaded.system.list_allowed_hosts() == tuple(names)
