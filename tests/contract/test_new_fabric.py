"""Adding a fabric: the example of the documentation, brought by another package, passes the contract suite as it is."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from campaign.fabrics import load_fabric_kind, registry
from campaign.fabrics.errors import PartialFailure
from campaign.fabrics.protocol import LeaseRequest
from campaign.fabrics.registry import ENTRY_POINTS, Example

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "docs/examples/patch_panel.py"


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A directory for the module search path with the fabric, as pip would install it."""
    information = tmp_path / "patch_panel-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: patch-panel\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(f"[{ENTRY_POINTS}]\npatch-panel = patch_panel\n")
    (tmp_path / "patch_panel.py").write_text(SOURCE.read_text())
    return tmp_path


def test_the_example_passes_the_contract_suite(site: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "0"]
    done = subprocess.run(
        [*command, "tests/contract/test_fabric.py", "-k", "patch-panel"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        check=False,
    )
    passed = re.search(r"(\d+) passed", done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert passed is not None
    assert int(passed[1]) > 20, done.stdout


def test_a_device_that_cannot_be_attached_is_itemised_and_released(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setitem(registry.FABRICS, "patch-panel", "patch_panel")
    script = tmp_path / "panel"
    script.write_text(f"#!/bin/sh\necho $@ >> {tmp_path}/log\ntest $2 != pool/slot2\n")
    script.chmod(0o755)
    example: Example = load_fabric_kind("patch-panel").example
    fabric = registry.open_fabric("patch-panel", {"script": str(script)}, example.hosts, example.pool, tmp_path)
    selection = fabric.select_devices(LeaseRequest("one", "demo", "me", example.configuration), fabric.read_inventory())
    with pytest.raises(PartialFailure) as caught:
        fabric.compose(selection)
    assert (caught.value.completed_ids, caught.value.failed_ids) == (("pool/slot1", "pool/slot3"), ("pool/slot2",))
    assert fabric.release("one") == ("pool/slot2",)
    assert set(fabric.list_lease_tags()["one"].devices) == {"pool/slot2"}
    script.write_text("#!/bin/sh\n")
    assert fabric.release("one") == ()
    assert not fabric.list_lease_tags()
