"""Adding a fabric: the example of the documentation, brought by another package, passes the contract suite as it is."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from http.server import SimpleHTTPRequestHandler
from pathlib import Path
from socketserver import TCPServer

import pytest
import yaml
from click.testing import CliRunner, Result

from campaign.cli.main import main
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


SERVICE = """
import urllib.request
from campaign.common.errors import FabricError
from campaign.fabrics.registry import FabricKind, NoOptions
from campaign.fabrics.simple_fabric import SimpleFabric
from campaign.spec.hardware import list_pool_devices


class Options(NoOptions):
    url: str


class Service(SimpleFabric):
    kind = "service"

    def __init__(self, options, hosts, pool, state_dir):
        super().__init__(hosts, list_pool_devices(pool), state_dir)
        self.url = options.url

    def probe(self):
        try:
            with urllib.request.urlopen(self.url, timeout=5) as answer:
                return f"status {answer.status}"
        except OSError as error:
            raise FabricError(f"{self.url}: {error}") from error


FABRIC = FabricKind("a service", Options, Service)
"""


def test_a_site_with_an_adapter_of_ones_own_is_ready_when_it_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    information = tmp_path / "own_fabrics-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: own-fabrics\nVersion: 1.0\n")
    entries = "service = service_fabric\nsilent = silent_fabric\n"
    (information / "entry_points.txt").write_text(f"[{ENTRY_POINTS}]\n{entries}")
    (tmp_path / "service_fabric.py").write_text(SERVICE)
    (tmp_path / "silent_fabric.py").write_text(SERVICE.replace("def probe", "def unused"))
    monkeypatch.syspath_prepend(str(tmp_path))
    server = TCPServer(("127.0.0.1", 0), SimpleHTTPRequestHandler)
    address = f"http://127.0.0.1:{server.server_address[1]}/"
    system = {
        "name": "own",
        "launcher": "local",
        "fabric": {"kind": "service", "url": address},
        "hosts": [{"name": "host1"}],
        "pool": [{"model": "cpu-rank", "count": 6, "drawer": "rack/left"}, {"model": "cpu-rank", "count": 1}],
        "devices": {"cpu-rank": {"runs_on": "cpu"}},
    }

    def check(kind: str) -> Result:
        file = tmp_path / "own.yaml"
        file.write_text(yaml.safe_dump({**system, "fabric": {"kind": kind, "url": address}}))
        return CliRunner().invoke(main, ["check", str(file), "--results", str(tmp_path / "results")])

    with ThreadPoolExecutor(1) as threads:
        threads.submit(server.serve_forever)
        answered = check("service")
        silent = check("silent")
        server.shutdown()
    server.server_close()
    assert answered.exit_code == 0, answered.output
    assert re.search(r"ok +answer +status 200, in \d+ ms; 7 pool devices listed in the system file", answered.output)
    assert (
        "7 cpu-rank, as in the system file: rack/left/slot1, rack/left/slot2, rack/left/slot3, rack/left/slot4 and 3 more"
        in (" ".join(answered.output.split()))
    )
    assert re.search(rf"note +transport +{address}: not encrypted", answered.output)
    assert "tunnel" not in answered.output
    assert silent.exit_code == 0
    assert "note" in silent.output
    assert "nothing was asked, because the adapter has no method `probe`" in silent.output
    refused = check("service")
    assert refused.exit_code == 1, refused.output
    assert re.search(r"FAIL +answer .*refused", refused.output)


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
