from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest

from campaign.common.errors import ConfigError
from campaign.plan.campaign import resolve
from campaign.plan.campaign.resolve import campaign_from_document, load_campaign, stored_systems
from campaign.plan.matrix import expand_matrix
from campaign.plan.request import request_from_config
from tests.campaign_files import load, write_files

EMULATED = {"system.emulation": {"scale": 0.01}}
FABRIC, NETWORK = {"fabric": {"gb_per_s": 10.0}}, {"network": {"gb_per_s": 20.0}}
SPREAD = {"campaign.configurations": [{"hosts": [1, 2], "devices_per_host": 1}]}


def test_too_many_combinations_are_told_before_they_are_made(tmp_path: Path) -> None:
    many = list(range(1, 1100))
    with pytest.raises(ConfigError, match=r"configurations\.0: the lists have 1207801 combinations"):
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
    assert campaign_from_document(campaign.to_document()).system == campaign.system


def test_what_a_fabric_measured_opens_where_its_adapter_is_not_installed(tmp_path: Path) -> None:
    document = json.loads(json.dumps(load(tmp_path, {}).to_document()))
    (system,) = stored_systems(document).values()
    system["fabric"] = {"kind": "patch-panel", "url": "https://panel.example"}
    assert campaign_from_document(document).system.fabric == system["fabric"]


NANO = {
    "campaign.configurations": [{"devices_per_host": 2}],
    "campaign.axes": {"workload": "nano", "batch": 2, "precision": "fp32"},
    "system.emulation": {"scale": 0.001, "pace": {"cpu-rank": {"fp32": 2.0}}},
    "system.links": {"fabric": {"gb_per_s": 10.0}, "network": {"gb_per_s": 10.0}},
}


def test_keys_of_predictions_are_ignored_in_results_and_refused_in_files(tmp_path: Path) -> None:
    campaign = load(tmp_path, NANO)
    document = json.loads(json.dumps(campaign.to_document()))
    (system,) = stored_systems(document).values()
    system |= {"parameters": {"slowdown": {"low": 0.1, "high": 0.2}}}
    system["emulation"]["dilation"] = None
    system["devices"]["cpu-rank"]["memory_gib"] = 16.0
    system["links"]["fabric"]["uses"] = ["falcon.t4.bw.FF"]
    assert campaign_from_document(document).to_document() == campaign.to_document()
    for key in ("parameters", "emulation.dilation", "devices.cpu-rank.memory_gib", "links.fabric.uses"):
        with pytest.raises(ConfigError, match=f"{re.escape(key)}: unknown key"):
            load(tmp_path, {**copy.deepcopy(NANO), f"system.{key}": 1})


def test_cells_with_removed_options_keep_their_identities_in_results(tmp_path: Path) -> None:
    """The ids are those of commit 4516c968, which had these options."""
    document = json.loads(json.dumps(load(tmp_path, NANO).to_document()))
    defaults = {"sequence_parallel": [False], "pipeline_parallel": [1], "pipeline_schedule": ["1f1b"]}
    options = {"tensor_parallel": [1, 2], "rank_order": ["tp-dp-pp"], **defaults}
    document["campaign"]["axes"]["options"] = options
    found = {cell.options["tensor_parallel"]: cell.id for cell in expand_matrix(campaign_from_document(document)).cells}
    assert found == {1: "35166c3d85c16fd5b066", 2: "ae0bcd792f26c889fed5"}
    with pytest.raises(ConfigError, match="workload 'nano' has no such option"):
        load(tmp_path, {**NANO, "campaign.axes.options": options})


@pytest.mark.parametrize("check", [None, "devices"])
def test_a_stored_campaign_that_checked_devices_still_opens(check: str | None, tmp_path: Path) -> None:
    campaign = load(tmp_path, {})
    document = json.loads(json.dumps(campaign.to_document()))
    document["campaign"]["protocol"]["check"] = check
    assert campaign_from_document(document).file.protocol == campaign.file.protocol


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
        r".*/campaign.yaml:\d+: configurations\.1: '1x2-local' is the same hardware as in configurations\.0, .*; remove .*",
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
    assert [c.describe() for c in campaign.configurations] == [
        "1 host with 2 fabric cpu-rank, peer-to-peer through the fabric"
    ]
    assert [i.why for i in campaign.impossible][1:] == [
        "hybrid needs local and fabric devices, but 0 of 1 devices would be local",
        "peer-to-peer needs two pooled devices per host, but a host would have 1",
    ]


def test_only_the_chosen_configurations_are_measured(tmp_path: Path) -> None:
    campaign = load(tmp_path, {"campaign.axes.configuration": "1x2-fabric"})
    assert [c.name for c in campaign.configurations] == ["1x2-fabric"]


def test_the_campaign_as_used_is_the_same_campaign(tmp_path: Path) -> None:
    campaign = load(
        tmp_path, {"campaign.axes.workload": ["steps", "program", "nano"], "campaign.baseline": "1x2-local"}
    )
    again = campaign_from_document(json.loads(json.dumps(campaign.to_document())))
    assert (again.file, again.system, again.workloads) == (campaign.file, campaign.system, campaign.workloads)
    assert again.configurations == campaign.configurations
    assert again.to_document() == campaign.to_document()


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
        campaign_from_document(document)


@pytest.mark.parametrize("label", ["580.10", "0580", "1e3", "1_0", "nan", "inf", "true", 580.1, True])
def test_a_label_that_others_write_anew_is_refused_at_every_door(tmp_path: Path, label: Any) -> None:
    """YAML makes 580.1 of `version: 580.10`, which would be another label than that of --version 580.10."""
    told = "YAML reads .* as a number or boolean.*such as driver-580.10"
    with pytest.raises(ConfigError, match=rf"campaign.yaml:\d+: version: .*{told}"):
        load_campaign(write_files(tmp_path, {"campaign.version": label}))
    plain = write_files(tmp_path)
    if not isinstance(label, str):
        told = "YAML reads the value in the config file as .*put the value in quotes"
    with pytest.raises(ConfigError, match=f"version: .*{told}"):
        request_from_config({"campaign": plain, "version": label}).load_campaign()
    for kept in ("580", "580.159.03", "driver-580.10"):
        assert request_from_config({"campaign": plain, "version": kept}).load_campaign().file.version == kept
