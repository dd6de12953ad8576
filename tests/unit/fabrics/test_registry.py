"""The table of fabrics, and those that other packages bring."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from campaign.common.errors import ConfigError
from campaign.fabrics import FABRICS, list_fabric_modules, open_fabric, registry
from campaign.fabrics.registry import ENTRY_POINTS
from campaign.plan.campaign.load import load_named
from campaign.spec.site_hardware import HostSpec
from campaign.spec.system_file import SystemFile
from tests.campaign_files import write_files

MODULE = """
from dataclasses import replace
from campaign.fabrics.registry import NoOptions
from campaign.fabrics.static import FABRIC, StaticFabric

class Options(NoOptions):
    colour: str = "blue"

def open_fabric(options, hosts, pool, state_dir):
    return StaticFabric(hosts, (), state_dir)

FABRIC = replace(FABRIC, options=Options, open=open_fabric)
"""


@pytest.fixture
def another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another package brings `theirs`, a broken one, and one that calls itself as one of ours."""
    (tmp_path / "their_fabric.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "their_fabric", raising=False)
    brought = [
        EntryPoint("theirs", "their_fabric", ENTRY_POINTS),
        EntryPoint("broken", "no_such_module", ENTRY_POINTS),
        EntryPoint("static", "their_fabric", ENTRY_POINTS),
    ]
    monkeypatch.setattr(registry, "entry_points", lambda group: brought if group == ENTRY_POINTS else [])


@pytest.mark.usefixtures("another")
def test_another_package_can_bring_a_fabric(tmp_path: Path) -> None:
    path = write_files(tmp_path, {"system.fabric": {"kind": "theirs", "colour": "red"}, "system.pool": []})
    assert load_named(SystemFile, "bench", path).model.fabric["kind"] == "theirs"
    fabric = open_fabric("theirs", {"colour": "red"}, (HostSpec(name="host1", cores=8, memory_gib=32.0),), (), tmp_path)
    assert [host.name for host in fabric.read_inventory().hosts] == ["host1"]
    write_files(tmp_path, {"system.fabric": {"kind": "theirs", "flavour": "red"}, "system.pool": []})
    with pytest.raises(ConfigError, match="flavour"):
        load_named(SystemFile, "bench", path)


@pytest.mark.usefixtures("another")
def test_a_name_of_ours_cannot_be_taken_over() -> None:
    assert list_fabric_modules()["static"] == FABRICS["static"]


@pytest.mark.usefixtures("another")
def test_what_cannot_be_imported_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="fabric 'broken': the module no_such_module cannot be imported"):
        open_fabric("broken", {}, (), (), tmp_path)
    with pytest.raises(ConfigError, match="theirs"):
        open_fabric("unheard", {}, (), (), tmp_path)
