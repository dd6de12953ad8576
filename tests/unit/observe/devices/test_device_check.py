"""The whole check with real processes: by command, kept as the site's reference, and before the runs of a campaign."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

pytest.importorskip("torch")

from campaign.cli.main import main
from campaign.config.system_file import SystemFile
from campaign.errors import ConfigError
from campaign.launch.emulation.network import availability
from campaign.launch.local import LocalLauncher
from campaign.observe.devices.document import DevicesDocument
from campaign.observe.devices.stage import DeviceBench, check_devices, kept_of_site
from campaign.observe.devices.verdicts import judge
from campaign.paths import Results
from campaign.plan.request import PlanRequest
from campaign.run import acceptance
from campaign.tables.collect import gather
from campaign.tables.provenance import checks_of_devices
from tests import campaign_files
from tests.planned_leases import measured_here
from tests.unit.launch.compositions import composition, system

_PACE = {"emulation": {"pace": {"cpu-rank": {"fp32": 1.0}}}}
TWO = composition((2, 0))


def checked(of: SystemFile, directory: Path, form: Any = "short") -> DevicesDocument:
    """A check on two CPU processes of this machine."""
    # Without links: they would be emulated, and what is looked at here has none.
    launcher = LocalLauncher(of.model_copy(update={"emulation": None}), TWO)
    try:
        return check_devices(DeviceBench(launcher, TWO, directory, "check-test/", directory / "log"), of, form)
    finally:
        launcher.close()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> DevicesDocument:
    return checked(system(**_PACE), tmp_path_factory.mktemp("whole"), "full")


def test_every_step_is_measured_on_every_device_and_a_healthy_one_has_no_fault(whole: DevicesDocument) -> None:
    steps = [
        "state", "timers", "products", "memory", "host link", "precision", "telemetry", "memory full", "repeatability", "clean",
    ]  # fmt: skip
    assert [[step.step for step in device.steps] for device in whole.devices] == [steps, steps]
    assert all(device.reported and device.torch_version for device in whole.devices)
    assert whole.links.keys() == {"host1"}
    found = judge(whole, system(**_PACE))
    assert not [each for each in found if each.verdict == "failed"]
    assert {each.step for each in found} == {*steps, "between devices"}


def test_a_device_at_half_the_pace_of_the_system_file_is_named(whole: DevicesDocument) -> None:
    faster = system(emulation={"pace": {"cpu-rank": {"fp32": 2.0}}})
    found = [each for each in judge(whole, faster) if each.quantity == "fp32_gflops"]
    assert [each.device for each in found] == ["host1.gpu0", "host1.gpu1"]
    # A machine that cannot even hold the pace that the devices have says so, and nothing of the devices.
    assert all(each.verdict == "failed" or "too busy to judge" in each.words for each in found)


def test_what_a_stopped_process_has_not_done_is_a_fault_of_its_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("campaign.observe.devices.stage._START_LIMIT_S", 0.01)
    for device in checked(system(), tmp_path).devices:
        faults = [fault for step in device.steps for fault in step.faults]
        assert faults == ["stopped after 0.01 s"]
        assert all(step.skipped for step in device.steps if step.step == "clean")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A campaign and its system; checks are compared with the reference of its results directory."""
    directory = tmp_path_factory.mktemp("site")
    campaign_files.write_files(
        directory,
        {
            "campaign.protocol.check": "devices",
            "campaign.protocol.attempts": 1,
            "campaign.configurations": [{"devices_per_host": 1}],
            "system.pool": [{"model": "cpu-rank", "count": 1, "drawer": "falcon1/drawer1"}],
        },
    )
    return directory


def command(site: Path, *words: str) -> Any:
    file = str(site / "systems" / "bench.yaml")
    return CliRunner().invoke(main, ["check", file, "--devices", "--results", str(site / "results"), *words])


def test_the_first_good_run_becomes_the_reference_and_the_document_is_json(site: Path) -> None:
    done = command(site, "--short", "--host", "host1", "--keep", "--json")
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert document["not reached"] == []
    # Two of its own, one of the pool.
    assert [device["attach"] for device in document["devices"]] == ["local", "local", "fabric"]
    assert not [each for each in document["verdicts"] if each["verdict"] == "failed"]
    for what in ("last", "reference"):
        kept = json.loads(kept_of_site(site / "results", "bench", what).read_text())
        assert kept["started"] == document["started"]


def _measured(site: Path, factor: float) -> dict[str, Any]:
    """A lease of the campaign, against a reference of other rates of products."""
    path = kept_of_site(site / "results", "bench", "reference")
    before = path.read_text()
    document = json.loads(before)
    for device in document["devices"]:
        for step in device["steps"]:
            if step["step"] == "products":
                step["values"] = {name: value * factor for name, value in step["values"].items()}
    path.write_text(json.dumps(document))
    try:
        return measured_here(PlanRequest(site / "campaign.yaml", site / "results"), "1x1-local.c1")
    finally:
        path.write_text(before)


def test_a_campaign_measures_nothing_on_a_device_that_fails(site: Path) -> None:
    manifest = _measured(site, 3.0)
    assert len(manifest["missing"]) == manifest["runs"]
    assert (
        "`check: devices`: nothing is measured on this composition, because host1.gpu0: products" in manifest["reason"]
    )
    assert "expected" in manifest["reason"]
    (use,) = manifest["uses"]
    assert (Results(site / "results", "small").devices / f"{use}.devices.json").exists()


def test_a_campaign_measures_on_healthy_devices_and_its_report_says_what_was_checked(site: Path) -> None:
    manifest = _measured(site, 0.5)
    assert manifest["missing"] == []
    campaign = campaign_files.load(site, yaml.safe_load("{}"))
    collected = gather(campaign, site / "results" / "small")
    last, before = checks_of_devices({record.lease_id for record in collected.records}, collected.store)
    assert "short form, 3 devices" in last
    assert "short form, 1 device, compared with the site's reference: 0 faults" in before


def test_a_host_that_is_none_is_refused_with_the_nearest(site: Path) -> None:
    file = SystemFile.model_validate(campaign_files.SYSTEM)
    with pytest.raises(ConfigError, match="--host host7: did you mean"):
        acceptance.measure(file, site / "results", ["host7"], print)


def test_options_of_devices_are_refused_without_them(site: Path) -> None:
    done = CliRunner().invoke(main, ["check", str(site / "systems" / "bench.yaml"), "--keep"])
    assert done.exit_code == 2
    assert "belong to --devices" in done.output


@pytest.mark.skipif(bool(availability().reason), reason="hosts cannot be emulated here")
def test_emulated_links_at_half_their_rate_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("campaign.observe.devices.stage._STARTS", {"full": (("clean",),)})
    right, slow = (
        system(links={"fabric": {"gb_per_s": rate}, "network": {"gb_per_s": 20.0}}, emulation={"scale": 0.001})
        for rate in (10.0, 5.0)
    )
    pooled = composition((0, 2))
    launcher = LocalLauncher(slow, pooled)
    try:
        document = check_devices(DeviceBench(launcher, pooled, tmp_path, "check-test/", tmp_path / "log"), slow, "full")
    finally:
        launcher.close()
    (fault,) = (each for each in judge(document, right) if each.verdict == "failed")
    assert (fault.device, fault.step) == ("host1", "between devices")
    assert "under the 0.01 GB/s of emulated fabric links" in fault.words
    assert not [each for each in judge(document, slow) if each.verdict == "failed"]
