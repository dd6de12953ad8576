from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from campaign.config import resolve
from campaign.config.resolve import from_document
from campaign.errors import ConfigError
from tests.campaign_files import load

TRAIN = {"campaign.axes.workload": "nano"}
PROGRAM = {"campaign.axes.workload": "program"}
EMULATED = {"system.emulation": {"scale": 0.01}}
FABRIC, NETWORK = {"fabric": {"gb_per_s": 10.0}}, {"network": {"gb_per_s": 20.0}}
SPREAD = {"campaign.configurations": [{"hosts": [1, 2], "devices_per_host": 1}]}

# change, the file that the message names, what it says
CLASHES: dict[str, tuple[dict[str, Any], str, str]] = {
    "no such baseline": (
        {"campaign.baseline": "1x2-lokal"},
        "campaign.yaml",
        "baseline: configuration '1x2-lokal' is not declared; did you mean '1x2-local'?",
    ),
    "baseline is not measured": (
        {"campaign.baseline": "1x2-local", "campaign.axes.configuration": ["1x1-local"]},
        "campaign.yaml",
        "baseline: '1x2-local' is not measured; add it to axes.configuration",
    ),
    "no such configuration": (
        {"campaign.axes.configuration": ["1x1-lokal"]},
        "campaign.yaml",
        "axes.configuration.0: configuration '1x1-lokal' is not declared; did you mean '1x1-local'?",
    ),
    "precision that nothing supports": (
        {"campaign.axes.precision": ["fp32", "fp16"]},
        "campaign.yaml",
        "axes.precision.1: no workload of this campaign supports 'fp16'; supported: bf16, fp32",
    ),
    "precision of an override": (
        {"campaign.overrides": [{"when": "hosts == 1", "axes": {"precision": "tf32"}}]},
        "campaign.yaml",
        "overrides.0.axes.precision: no workload of this campaign supports 'tf32'",
    ),
    "axis that is no option": (
        {"campaign.axes.options": {"sise": [1]}},
        "campaign.yaml",
        "axes.options.sise: workload 'steps' has no such option; did you mean 'size'?",
    ),
    "axis with a taken name": (
        {"campaign.axes.options": {"ranks": [1]}},
        "campaign.yaml",
        "axes.options.ranks: this name is reserved for the campaign",
    ),
    "option with a taken name": (
        {"workloads.steps.options": {"seed": 1}},
        "workloads/steps.yaml",
        "options.seed: this name is reserved for the campaign; choose another",
    ),
    "exclusion that names no axis": (
        {"campaign.exclude": [{"when": "batsh == 1", "why": ""}]},
        "campaign.yaml",
        "exclude.0.when: 'batsh == 1' names 'batsh', which is no axis; did you mean 'batch'?",
    ),
    "exclusion that is code": (
        {"campaign.exclude": [{"when": "__import__('os').system('true')", "why": ""}]},
        "campaign.yaml",
        "exclude.0.when: '__import__('os').system('true')' is not allowed in an expression",
    ),
    "override that cannot know the batch yet": (
        {"campaign.overrides": [{"when": "batch == 1", "axes": {"precision": "fp32"}}]},
        "campaign.yaml",
        "overrides.0.when: 'batch == 1' names 'batch', which is no axis",
    ),
    "zip of different lengths": (
        {"campaign.zip": [["batch", "configuration"]]},
        "campaign.yaml",
        "zip: the lists must have the same length, but batch has 2, configuration has 4",
    ),
    "zip of no axis": ({"campaign.zip": [["batch", "hosts"]]}, "campaign.yaml", "zip: 'hosts' is not an axis here"),
    "zip of a shape": (
        {"campaign.configurations.0.zip": [["hosts", "devices_per_host"]]},
        "campaign.yaml",
        "configurations.0.zip: the lists must have the same length",
    ),
    "one name for many": (
        {"campaign.configurations.0.name": "many"},
        "campaign.yaml",
        "configurations.0.name: 'many' would name 4 configurations; remove the name or the lists",
    ),
    "two names for one": (
        {"campaign.configurations": [{"name": "a"}, {"name": "b"}]},
        "campaign.yaml",
        "configurations.1: 'b' is the same hardware as 'a'; remove one",
    ),
    "one name for two": (
        {"campaign.configurations": [{"name": "a"}, {"name": "a", "hosts": 2}]},
        "campaign.yaml",
        "configurations.0.name: the name a names two different shapes; rename one",
    ),
    "name of a shape's own": (
        {"campaign.configurations": [{"name": "2x1-local"}, {"hosts": 2}]},
        "campaign.yaml",
        "the name 2x1-local names two different shapes",
    ),
    "no possible shape": (
        {"campaign.configurations": [{"attach": "hybrid"}]},
        "campaign.yaml",
        "configurations: no configuration is possible: 1x1-hybrid0: hybrid needs local and fabric devices",
    ),
    "no such device": (
        {"campaign.configurations.0.device": "cpu-rang"},
        "campaign.yaml",
        "configurations.0.device: system 'bench' has no device 'cpu-rang'; did you mean 'cpu-rank'?",
    ),
    "which device": (
        {"system.pool.0.model": "a100"},
        "campaign.yaml",
        "configurations.0: give a 'device': system 'bench' has a100, cpu-rank",
    ),
    "unknown device model": (
        {"system.devices": {"cpu-rnk": {"runs_on": "cpu"}}},
        "systems/bench.yaml",
        "devices.cpu-rnk: no host and no pool entry has this device; did you mean 'cpu-rank'?",
    ),
    "unknown model": (
        {**TRAIN, "workloads.nano.model": "bert-nanno"},
        "workloads/nano.yaml",
        "model: model 'bert-nanno' is not known (did you mean bert-nano?)",
    ),
    "unknown option of a model": (
        {**TRAIN, "workloads.nano.options": {"sec_len": 3}},
        "workloads/nano.yaml",
        "options.sec_len: bert-nano has no option 'sec_len'",
    ),
    "value that a model refuses": (
        {**TRAIN, "workloads.nano.options.seq_len": 100000},
        "workloads/nano.yaml",
        "options.seq_len: option seq_len of bert-nano has to be at most 512",
    ),
    "value of an axis that a model refuses": (
        {**TRAIN, "campaign.axes.options": {"seq_len": [16, "long"]}},
        "campaign.yaml",
        "axes.options.seq_len.1: option seq_len of bert-nano has to be int, not 'long'",
    ),
    "unknown name in braces": (
        {**PROGRAM, "workloads.program.command": ["echo", "{batc}"]},
        "workloads/program.yaml",
        "command.1: '{batc}' is not known; did you mean 'batch'?",
    ),
    "unknown name in a variable": (
        {**PROGRAM, "workloads.program.environment": {"A": "{sise}"}},
        "workloads/program.yaml",
        "environment.A: '{sise}' is not known; did you mean 'size'?",
    ),
    "attribute in braces": (
        {**PROGRAM, "workloads.program.command": ["echo", "{batch.__class__}"]},
        "workloads/program.yaml",
        "command.1: '{batch.__class__}' is not known",
    ),
    "format in braces": (
        {**PROGRAM, "workloads.program.command": ["echo", "{batch:03d}"]},
        "workloads/program.yaml",
        "command.1: '{batch:03d}': only plain names are allowed in braces",
    ),
    "position in braces": (
        {**PROGRAM, "workloads.program.command": ["echo", "{}"]},
        "workloads/program.yaml",
        "command.1: '{}' is not known",
    ),
    "lone brace": (
        {**PROGRAM, "workloads.program.command": ["echo", "{"]},
        "workloads/program.yaml",
        "write {{ and }} for literal braces",
    ),
    "relative program": (
        {**PROGRAM, "workloads.program.command": ["./run.sh"]},
        "workloads/program.yaml",
        "command.0: './run.sh' is a relative path",
    ),
    "failure that names no axis": (
        {"workloads.steps.failures": [{"when": "batsh > 1", "status": "nan"}]},
        "workloads/steps.yaml",
        "failures.0.when: 'batsh > 1' names 'batsh'",
    ),
    "emulated fabric without a rate": (
        {**EMULATED, "system.links": NETWORK},
        "systems/bench.yaml",
        "emulation: configurations attach devices through the fabric, but links.fabric has no rate; add gb_per_s there",
    ),
    "emulated network without a rate": (
        {**EMULATED, **SPREAD, "system.links": FABRIC},
        "systems/bench.yaml",
        "emulation: configurations spread over hosts, but links.network has no rate; add gb_per_s there",
    ),
    "emulated links that a machine cannot carry": (
        {**EMULATED, "system.emulation": {"scale": 0.2}, "system.links": FABRIC},
        "systems/bench.yaml",
        "emulation.scale: links.fabric would be emulated at 16 Gbit/s, which one machine may not sustain; use at most 0.1",
    ),
    "emulated local links that a machine cannot carry": (
        {**EMULATED, "system.links": {**FABRIC, "local": {"gb_per_s": 300}}},
        "systems/bench.yaml",
        "use at most 0.0033, or remove links.local, and devices of a host share its loopback",
    ),
    "GPUs on emulated hosts": (
        {**EMULATED, "system.links": FABRIC, "system.devices": {}},
        "systems/bench.yaml",
        "set `runs_on: cpu` for 'cpu-rank' under devices, or remove emulation",
    ),
    "a pace of an unknown device": (
        {"system.emulation": {"pace": {"cpu-rnk": {"fp32": 1}}}, "system.links": FABRIC},
        "systems/bench.yaml",
        "emulation.pace.cpu-rnk: no host and no pool entry has this device; did you mean 'cpu-rank'?",
    ),
    "a pace of a GPU": (
        {"system.emulation": {"pace": {"gpu": {"fp32": 1}}}, "system.links": FABRIC, "system.pool.0.model": "gpu"}
        | {"campaign.configurations": [{"devices_per_host": 1, "device": "cpu-rank"}]},
        "systems/bench.yaml",
        "emulation.pace.gpu: 'gpu' is a GPU and has its own rate; set `runs_on: cpu`",
    ),
    "a pace without a rate for other precisions": (
        {"system.emulation": {"pace": {"cpu-rank": {"bf16": 1}}}, "system.links": FABRIC},
        "systems/bench.yaml",
        "emulation.pace.cpu-rank: has no rate for fp32",
    ),
    "too many combinations": (
        {"campaign.configurations": [{"hosts": list(range(1, 1100)), "devices_per_host": list(range(1, 1100))}]},
        "campaign.yaml",
        "configurations.0: the lists make 1207801 combinations",
    ),
}


@pytest.mark.parametrize(("changes", "file", "says"), CLASHES.values(), ids=CLASHES)
def test_what_does_not_fit_together_is_told_when_the_campaign_is_loaded(
    tmp_path: Path, changes: dict[str, Any], file: str, says: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, changes)
    message = str(caught.value)
    assert len(message.splitlines()) == 1, message
    assert message.startswith(f"{tmp_path}/{file}:")
    assert says in message
    assert len(message) < 500


def test_everything_that_does_not_fit_is_told_at_once(tmp_path: Path) -> None:
    changes = {
        "campaign.baseline": "nowhere",
        "campaign.axes.precision": ["fp16"],
        "campaign.axes.workload": ["steps", "program", "nano"],
        "campaign.exclude": [{"when": "batsh == 1", "why": ""}, {"when": "open('x')", "why": ""}],
        "workloads.nano.model": "bert",
        "workloads.program.command": ["{a}", "{b}"],
        "system.devices": {"gpu": {}},
    }
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, changes)
    assert len(str(caught.value).splitlines()) == 8


@pytest.mark.parametrize(
    "changes",
    [
        {"system.links": FABRIC},  # nothing is spread over hosts
        {**SPREAD, "system.links": NETWORK},  # nothing is behind the fabric
        {"system.links": {**FABRIC, **NETWORK}, "system.emulation": {"scale": 0.04}},
    ],
)
def test_emulated_links_need_only_the_rates_that_are_asked_for(tmp_path: Path, changes: dict[str, Any]) -> None:
    campaign = load(tmp_path, {**EMULATED, **changes})
    assert campaign.system.emulation is not None
    assert from_document(campaign.document()).system == campaign.system


def names(directory: Path, *shapes: dict[str, Any], **changes: Any) -> list[str]:
    return [c.name for c in load(directory, {"campaign.configurations": list(shapes), **changes}).configurations]


def test_shapes_expand_by_product_or_zip(tmp_path: Path) -> None:
    assert names(tmp_path, {"hosts": [1, 2], "devices_per_host": [1, 2]}) == [
        "1x1-local",
        "1x2-local",
        "2x1-local",
        "2x2-local",
    ]
    spread = {"hosts": [1, 2, 4], "devices_per_host": [4, 2, 1], "zip": [["hosts", "devices_per_host"]]}
    assert names(tmp_path, spread) == ["1x4-local", "2x2-local", "4x1-local"]


@pytest.mark.parametrize(
    ("shape", "name", "local", "used"),
    [
        ({"devices_per_host": 4, "attach": "hybrid"}, "1x4-hybrid", 2, 4),
        ({"devices_per_host": 4, "attach": "hybrid", "local_devices_per_host": 1}, "1x4-hybrid1", 1, 4),
        ({"devices_per_host": 4, "attach": "fabric-p2p"}, "1x4-fabric-p2p", 0, 4),
        ({"devices_per_host": 4, "attach": "hybrid-p2p"}, "1x4-hybrid-p2p", 2, 4),
        ({"devices_per_host": 4, "attach": "hybrid-p2p", "local_devices_per_host": 1}, "1x4-hybrid-p2p1", 1, 4),
        ({"devices_per_host": 4, "attach": "fabric"}, "1x4-fabric", 0, 4),
        ({"devices_per_host": 4, "devices_used": 1}, "1x1of4-local", 4, 1),
        ({"devices_per_host": 2, "storage": "nvme"}, "1x2-local-nvme", 2, 2),
        ({"name": "mine", "hosts": 2}, "mine", 1, 1),
    ],
)
def test_names_follow_from_the_shape(tmp_path: Path, shape: dict[str, Any], name: str, local: int, used: int) -> None:
    (configuration,) = load(tmp_path, {"campaign.configurations": [shape]}).configurations
    assert (configuration.name, configuration.local_devices_per_host, configuration.devices_used) == (name, local, used)


def test_the_same_hardware_twice_is_one_configuration_and_a_name_given_wins(tmp_path: Path) -> None:
    assert names(tmp_path, {"devices_per_host": [1, 2]}, {"devices_per_host": 2}, {"name": "one"}) == [
        "one",
        "1x2-local",
    ]


def test_impossible_shapes_of_a_product_are_told_not_dropped(tmp_path: Path) -> None:
    shape = {"devices_per_host": [1, 2], "devices_used": [1, 2], "attach": ["local", "hybrid"]}
    campaign = load(tmp_path, {"campaign.configurations": [shape]})
    possible = {"1x1-local", "1x1of2-local", "1x1of2-hybrid", "1x2-local", "1x2-hybrid"}
    assert {c.name for c in campaign.configurations} == possible
    assert {(i.shape, i.why) for i in campaign.impossible} == {
        ("1x1-hybrid0", "hybrid needs local and fabric devices, but 0 of 1 devices would be local"),
        ("1x2of1-hybrid0", "hybrid needs local and fabric devices, but 0 of 1 devices would be local"),
        ("1x2of1-local", "a run cannot use 2 of 1 devices of a host"),
    }


def test_peer_to_peer_is_between_pooled_devices_of_a_host(tmp_path: Path) -> None:
    shape = {"devices_per_host": [1, 2], "attach": ["fabric-p2p", "hybrid-p2p"]}
    campaign = load(tmp_path, {"campaign.configurations": [shape]})
    assert [c.words() for c in campaign.configurations] == [
        "1 host with 2 fabric cpu-rank, peer-to-peer through the fabric"
    ]
    assert [i.why for i in campaign.impossible][1:] == [
        "hybrid needs local and fabric devices, but 0 of 1 devices would be local",
        "peer-to-peer is between pooled devices of a host, and it would have 1",
    ]


UNEVEN = {"hosts": [{"devices": [{"count": 3, "attach": "fabric"}]}, {"count": 2, "devices": [{"count": 1}]}]}


def test_hosts_may_have_unequal_devices(tmp_path: Path) -> None:
    shape = {**UNEVEN, "storage": ["local", "nvme"]}
    campaign = load(tmp_path, {"campaign.configurations": [shape]})
    first, second = campaign.configurations
    assert from_document(json.loads(json.dumps(campaign.document()))).configurations == campaign.configurations
    assert (first.name, second.name) == ("1x3_2x1-hybrid", "1x3_2x1-hybrid-nvme")
    assert first.words() == "3 hosts: 1 x 3 fabric cpu-rank | 2 x 1 local cpu-rank"
    assert (first.hosts, first.devices, first.ranks, first.fabric_devices, first.attach) == (3, 5, 5, 3, "hybrid")
    assert [host.used for host in first.host_shapes] == [3, 1, 1]
    assert (
        first.first_device().shape()
        == load(tmp_path, {"campaign.configurations": [{"attach": "fabric"}]}).configurations[0].shape()
    )


def test_hosts_that_are_equal_are_the_shape_that_they_would_be_otherwise(tmp_path: Path) -> None:
    """The same hardware has one identity, however it is written."""
    listed = {
        "hosts": [{"count": 2, "devices": [{"count": 1}, {"count": 2, "attach": "fabric-p2p"}], "devices_used": 2}]
    }
    plain = {"hosts": 2, "devices_per_host": 3, "attach": "hybrid-p2p", "devices_used": 2}
    found = [load(tmp_path, {"campaign.configurations": [each]}).configurations for each in (listed, plain)]
    assert found[0] == found[1]


def test_a_host_may_have_two_models(tmp_path: Path) -> None:
    changes = {
        "system.pool": [{"model": "cpu-rank", "count": 2}, {"model": "other", "count": 2}],
        "system.devices": {"cpu-rank": {"runs_on": "cpu"}, "other": {"runs_on": "cpu", "precisions": ["fp32"]}},
        "campaign.configurations": [
            {
                "hosts": [
                    {
                        "devices": [
                            {"count": 2, "device": "cpu-rank"},
                            {"count": 1, "device": "other", "attach": "fabric"},
                        ]
                    }
                ]
            }
        ],
    }
    campaign = load(tmp_path, changes)
    (found,) = campaign.configurations
    assert (found.name, found.device, found.models) == (
        "1x2cpu-rank_1other-hybrid",
        "cpu-rank+other",
        ("cpu-rank", "other"),
    )
    assert campaign.device_of(found).precisions == ("fp32",)
    changes["system.devices"] = {"cpu-rank": {"runs_on": "cpu"}}
    with pytest.raises(ConfigError, match="a run is on devices of one kind, but 'cpu-rank' on cpu, 'other' on cuda"):
        load(tmp_path, changes)


@pytest.mark.parametrize(
    ("shape", "system", "message"),
    [
        ({"hosts": [2, *UNEVEN["hosts"]]}, {}, "hosts: numbers and lists are mixed"),
        ({**UNEVEN, "attach": "fabric"}, {}, "configurations.0.attach: not beside hosts with lists of devices"),
        ({"hosts": [{"devices": [{"count": 1, "device": "a100"}]}]}, {}, "no device 'a100'; there are: cpu-rank"),
        ({"hosts": [{"devices": [{"count": 0}]}]}, {}, "devices.0.count: input should be greater than or equal to 1"),
        ({"hosts": [{"devices": []}]}, {}, "hosts.0.devices: is empty"),
        (UNEVEN, {"exclusive": False}, "unequal ones need whole hosts"),
        (UNEVEN, {"strategy": "resume"}, "unequal ones need `slurm.placement: pinned`, and not strategy resume"),
        (UNEVEN, {"placement": "scheduler"}, "Slurm would choose any hosts"),
        (UNEVEN, {"gpus": True}, "of unequal hosts Slurm grants numbers of GPUs, not the composed ones"),
    ],
)
def test_what_cannot_be_said_of_unequal_hosts(
    tmp_path: Path, shape: dict[str, Any], system: dict[str, Any], message: str
) -> None:
    slurm: dict[str, Any] = {}
    if system:
        kind = "cuda" if system.pop("gpus", False) else "cpu"
        slurm = {"system.launcher": "slurm", "system.slurm": system, "system.devices": {"cpu-rank": {"runs_on": kind}}}
    with pytest.raises(ConfigError, match=re.escape(message)):
        load(tmp_path, {"campaign.configurations": [shape], **slurm})


def test_only_the_chosen_configurations_are_measured(tmp_path: Path) -> None:
    campaign = load(tmp_path, {"campaign.axes.configuration": "1x2-fabric"})
    assert [c.name for c in campaign.configurations] == ["1x2-fabric"]


def test_the_campaign_as_used_is_the_same_campaign(tmp_path: Path) -> None:
    campaign = load(
        tmp_path, {"campaign.axes.workload": ["steps", "program", "nano"], "campaign.baseline": "1x2-local"}
    )
    again = from_document(json.loads(json.dumps(campaign.document())))
    assert (again.file, again.system, again.workloads) == (campaign.file, campaign.system, campaign.workloads)
    assert again.configurations == campaign.configurations
    assert again.document() == campaign.document()


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({}, f"this version reads {resolve.SCHEMA}"),
        ({"schema_version": "campaign-as-used/9"}, "has schema 'campaign-as-used/9'"),
        ({"schema_version": resolve.SCHEMA}, "is damaged .*restore it from an archive"),
        ({"schema_version": resolve.SCHEMA, "campaign": [], "system": {}, "workloads": {}}, "is damaged"),
        (
            {"schema_version": resolve.SCHEMA, "campaign": {"name": "x"}, "system": {}, "workloads": {}},
            "axes: this key is missing",
        ),
    ],
)
def test_a_damaged_campaign_as_used_is_a_clear_error(document: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        from_document(document)
