"""Cells that read from storage: refused where the system has none, and new ones where its emulated rate changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from campaign.common.errors import ConfigError
from campaign.plan.matrix import build_specification, expand_matrix, hash_specification
from tests.campaign_files import ids, load

NVME = {
    "system.hosts": [
        {
            "name": "host[1-2]",
            "cores": 4,
            "devices": [{"model": "cpu-rank", "count": 2}, {"kind": "nvme", "model": "nvme-4tb", "count": 1}],
        }
    ],
    "campaign.axes.workload": ["nano"],
    "campaign.axes.batch": [1],
    "campaign.axes.precision": ["fp32"],
    "campaign.configurations": [{"devices_per_host": [1], "storage": ["local", "nvme"]}],
}
READ: dict[str, Any] = {**NVME, "campaign.axes.options": {"input": ["resident", "storage"]}}
SLOW = {"nvme": {"path": "/nvme", "emulated_gb_per_s": 0.1}, "local": {"path": "/scratch"}}


def test_a_campaign_that_reads_where_nothing_is_names_what_to_add(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"'nano'.*storage 'nvme'.*system 'bench'.*add `storage: \{nvme: \{path:"
    ) as caught:
        expand_matrix(load(tmp_path, {**READ, "system.storage": {"local": {"path": "/scratch"}}}))
    assert "campaign.yaml" in str(caught.value)
    assert len(expand_matrix(load(tmp_path, {**READ, "system.storage": SLOW})).cells) == 4


def test_cells_that_are_left_out_need_no_storage(tmp_path: Path) -> None:
    rule = [{"when": 'input == "storage"', "why": "none here"}]
    assert len(expand_matrix(load(tmp_path, {**READ, "campaign.exclude": rule})).cells) == 2


def test_the_axis_stands_over_the_workload_s_own_value(tmp_path: Path) -> None:
    own = {**NVME, "workloads.nano.options": {"seq_len": 16, "input": "storage"}}
    with pytest.raises(ConfigError, match="input: storage"):
        expand_matrix(load(tmp_path, own))
    assert len(expand_matrix(load(tmp_path, {**own, "campaign.axes.options": {"input": ["resident"]}})).cells) == 2


def test_an_emulated_rate_makes_new_cells_of_those_that_read_and_of_no_others(tmp_path: Path) -> None:
    faster = {**SLOW, "nvme": {"path": "/nvme", "emulated_gb_per_s": 0.2}}
    moved = {"nvme": {"path": "/elsewhere", "emulated_gb_per_s": 0.1}, "local": {"path": "/elsewhere"}}
    before = ids(tmp_path, {**READ, "system.storage": SLOW})
    assert len(before - ids(tmp_path, {**READ, "system.storage": faster})) == 1
    assert ids(tmp_path, {**READ, "system.storage": moved}) == before
    assert ids(tmp_path, NVME) == ids(tmp_path, {**NVME, "system.storage": SLOW}) <= before


def test_a_real_rate_limits_emulated_storage_by_the_scale_and_nothing_else(tmp_path: Path) -> None:
    emulated = {
        **READ,
        "system.emulation": {"scale": 0.008},
        "system.links": {"fabric": {"gb_per_s": 12.0}},
        "system.devices": {"cpu-rank": {"runs_on": "cpu"}},
    }
    places: dict[str, dict[str, Any]] = {
        "real": {"gb_per_s": 3.2, "source": "a data sheet"},
        "scaled": {"emulated_gb_per_s": 0.0256},
        "unknown": {},
    }
    storage = {
        name: {"system.storage": {"local": {"path": "/scratch"}, "nvme": {"path": "/nvme", **place}}}
        for name, place in places.items()
    }
    of_scaled = ids(tmp_path / "a", {**emulated, **storage["scaled"]})
    assert ids(tmp_path / "b", {**emulated, **storage["real"]}) == of_scaled
    assert ids(tmp_path / "c", {**emulated, **storage["unknown"]}) != of_scaled
    # Without emulation a real rate is the storage's own, and is only told of.
    of_unknown = ids(tmp_path / "d", {**READ, **storage["unknown"]})
    assert ids(tmp_path / "e", {**READ, **storage["real"]}) == of_unknown
    assert ids(tmp_path / "f", {**READ, **storage["scaled"]}) != of_unknown
    system = load(tmp_path / "g", {**emulated, **storage["real"]}).system
    assert system.get_storage_limit_gb_per_s("nvme") == 0.0256
    assert system.get_storage_limit_gb_per_s("local") is None
    both = {"system.storage": {"nvme": {"path": "/nvme", "gb_per_s": 3.2, "emulated_gb_per_s": 1.0}}}
    with pytest.raises(ConfigError, match="keep gb_per_s"):
        load(tmp_path / "h", {**READ, **both})


def test_a_cell_s_id_is_the_hash_of_its_specification(tmp_path: Path) -> None:
    campaign = load(tmp_path, {**READ, "system.storage": SLOW})
    for cell in expand_matrix(campaign).cells:
        assert hash_specification(build_specification(campaign, cell)) == cell.id
