from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from campaign.config import resolve
from campaign.config.resolve import from_document, load_campaign, systems_of
from campaign.errors import ConfigError
from campaign.plan.request import request_of
from tests.campaign_files import load, write_files

EMULATED = {"system.emulation": {"scale": 0.01}}
FABRIC, NETWORK = {"fabric": {"gb_per_s": 10.0}}, {"network": {"gb_per_s": 20.0}}
SPREAD = {"campaign.configurations": [{"hosts": [1, 2], "devices_per_host": 1}]}


def test_too_many_combinations_are_told_before_they_are_made(tmp_path: Path) -> None:
    many = list(range(1, 1100))
    with pytest.raises(ConfigError, match=r"configurations\.0: the lists make 1207801 combinations"):
        load(tmp_path, {"campaign.configurations": [{"hosts": many, "devices_per_host": many}]})


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


@pytest.mark.parametrize(
    "fabric", [{"kind": "redfish-zones", "url": "https://chassis.example", "ports": {"host1": ["H1"]}},
               {"kind": "nec", "url": "https://cdim.example"}]
)  # fmt: skip
def test_what_a_fabric_of_before_measured_still_opens(fabric: dict[str, Any], tmp_path: Path) -> None:
    document = json.loads(json.dumps(load(tmp_path, {}).document()))
    (system,) = systems_of(document).values()
    system["fabric"] = fabric
    system["pool"].append({"kind": "memory", "model": "cxl-128gib", "count": 1})
    assert from_document(document).system.fabric == fabric


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


def test_shapes_that_repeat_hardware_are_reported(tmp_path: Path) -> None:
    shapes = [{"devices_per_host": [1, 2]}, {"devices_per_host": 2}, {"devices_per_host": 2, "attach": "fabric"}]
    path = write_files(tmp_path, {"campaign.configurations": shapes})
    (warning,) = load_campaign(path).warnings
    assert re.fullmatch(
        r".*/campaign.yaml:\d+: configurations\.1: '1x2-local' is the same hardware as in configurations\.0, .*; remove one",
        warning,
    )
    assert load_campaign(write_files(tmp_path, {"campaign.configurations": shapes[::2]})).warnings == ()
    overlapping = [{"devices_per_host": [1, 2]}, {"devices_per_host": [2, 1], "hosts": [1, 2]}]
    assert load_campaign(write_files(tmp_path, {"campaign.configurations": overlapping})).warnings == ()


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
        ({}, f"this version reads {resolve.CAMPAIGN_SCHEMA}"),
        ({"schema_version": "campaign-as-used/9"}, "has schema 'campaign-as-used/9'"),
        ({"schema_version": resolve.CAMPAIGN_SCHEMA}, "is damaged .*restore it from an archive"),
        ({"schema_version": resolve.CAMPAIGN_SCHEMA, "campaign": [], "system": {}, "workloads": {}}, "is damaged"),
        (
            {"schema_version": resolve.CAMPAIGN_SCHEMA, "campaign": {"name": "x"}, "system": {}, "workloads": {}},
            "axes: this key is missing",
        ),
    ],
)
def test_a_damaged_campaign_as_used_is_a_clear_error(document: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        from_document(document)


@pytest.mark.parametrize("label", ["580.10", "0580", "1e3", "1_0", "nan", "inf", "true", 580.1, True])
def test_a_label_that_others_write_anew_is_refused_at_every_door(tmp_path: Path, label: Any) -> None:
    """Snakemake makes 580.1 of --config version=580.10, which would be another label than that of --version 580.10."""
    told = "is a number or truth value to YAML and Snakemake.*such as driver-580.10"
    with pytest.raises(ConfigError, match=rf"campaign.yaml:\d+: version: .*{told}"):
        load_campaign(write_files(tmp_path, {"campaign.version": label}))
    plain = write_files(tmp_path)
    with pytest.raises(ConfigError, match=f"version: .*{told}"):
        request_of({"campaign": plain, "version": label}).load()
    for kept in ("580", "580.159.03", "driver-580.10"):
        assert request_of({"campaign": plain, "version": kept}).load().file.version == kept
