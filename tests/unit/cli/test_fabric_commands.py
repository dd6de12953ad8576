"""`campaign fabric` and `campaign compose --dry-run`, as a person types them, against emulated control planes over TLS."""

from __future__ import annotations

import getpass
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from campaign.cli.cluster import read_system_file
from campaign.cli.main import main
from campaign.emulators.catalog import list_emulated_kinds, open_emulator
from campaign.emulators.control_planes.hardware import build_rack
from campaign.emulators.control_planes.replay import open_replay_server
from campaign.emulators.control_planes.server import ControlPlaneServer, WireFault
from campaign.emulators.serve_control_plane import EmulatorRequest, build_system_document, serve_control_plane
from campaign.fabrics import load_fabric_kind
from campaign.fabrics.http import client
from campaign.lease import lifecycle
from campaign.lease.campaign_leases import Site
from campaign.lease.journal import Journal
from campaign.lease.record_site import walk_control_plane
from campaign.spec.operation_times import from_document, read_times
from tests.campaign_files import CAMPAIGN, WORKLOADS
from tests.contract.fabric_fixtures import QUICK

SECRET = "learn-2-compose"


class Place:
    """A system whose control plane is emulated, its files, and the command line in its directory."""

    def __init__(
        self,
        directory: Path,
        kind: str,
        devices: Sequence[tuple[str, str, int]] = (("gpu", "cpu-rank", 4),),
        *,
        tls: bool = True,
        **variant: Any,
    ) -> None:
        self.directory = directory
        self.rack = build_rack(["host1", "host2"], devices)
        self.server = ControlPlaneServer(open_emulator(kind, self.rack, **variant), directory / "tls", tls=tls)
        (directory / "tls").mkdir(exist_ok=True)
        (directory / "tls" / "credentials").write_text(f"campaign\n{SECRET}\n")
        (directory / "tls" / "credentials").chmod(0o600)
        self.path = directory / "systems" / "bench.yaml"
        self.path.parent.mkdir()
        self.document: dict[str, Any] = build_system_document("bench", kind, self.server, self.rack, "host[1-2]")
        self.write()
        (directory / "workloads").mkdir()
        (directory / "workloads" / "steps.yaml").write_text(yaml.safe_dump({"name": "steps", **WORKLOADS["steps"]}))
        configurations = [{"name": "pair", "devices_per_host": 2, "attach": "fabric"}]
        axes = {"workload": "steps", "batch": 1, "precision": "fp32"}
        campaign = {**CAMPAIGN, "configurations": configurations, "axes": axes}
        self.campaign = directory / "campaign.yaml"
        self.campaign.write_text(yaml.safe_dump(campaign))

    def write(self, **fabric: Any) -> None:
        document = {**self.document, "fabric": {**self.document["fabric"], **fabric}}
        self.path.write_text(yaml.safe_dump(document))

    def run(self, *words: str, answer: str | None = None) -> Result:
        results = ["--results", str(self.directory / "results")]
        return CliRunner().invoke(main, [*words, *results], input=answer)

    def fabric(self, verb: str, *words: str, answer: str | None = None) -> Result:
        return self.run("fabric", verb, str(self.path), *words, answer=answer)

    def compose(self, *words: str) -> Result:
        return self.run("compose", "pair", "--campaign", str(self.campaign), *words)


@contextmanager
def checked(directory: Path, devices: Sequence[tuple[str, str, int]], **changes: Any) -> Iterator[Place]:
    found = Place(directory, "redfish", devices, **changes)
    try:
        yield found
    finally:
        found.server.close()


@pytest.fixture(params=["redfish", "liqid"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    found = Place(tmp_path, request.param)
    yield found
    found.server.close()


def test_a_site_that_is_as_its_file_says_is_ready(place: Place) -> None:
    done = place.fabric("check", "--yes")
    assert done.exit_code == 0, done.output
    assert "4 cpu-rank, as in the system file" in done.output
    assert re.search(r"composed cpu-rank onto host\d: fabric \d", done.output)
    assert "everything was released" in done.output
    assert "unverified" in done.output
    assert done.output.rstrip().splitlines()[-1].startswith("Ready")
    assert len(place.rack.list_free_devices()) == 4
    assert place.rack.changes >= 2
    times = from_document(yaml.safe_load(place.fabric("times").output))
    assert min(len(times.select_seconds(each)) for each in ("request", "inventory", "rest")) >= 1
    kept = place.directory / "times.yaml"
    assert re.search(r"(?m)^request: \d+ times, median ", place.fabric("times", "--output", str(kept)).output)
    assert read_times(kept) == times


def test_nothing_is_composed_without_being_asked(place: Place) -> None:
    for done in (place.fabric("check", answer="n\n"), place.fabric("check", "--look-only")):
        assert done.exit_code == 0, done.output
        assert "nothing was composed" in done.output
    assert place.rack.changes == 0


def test_a_pool_that_differs_from_the_file_is_told(place: Place) -> None:
    place.document["pool"] = [{"kind": "gpu", "model": "cpu-rank", "count": 6}]
    place.write()
    done = place.fabric("check", "--yes")
    assert done.exit_code == 1
    assert "4 cpu-rank found, but the system file lists 6" in done.output
    assert "nothing was changed" in done.output
    assert place.rack.changes == 0


def test_a_control_plane_that_fails_at_any_request_is_never_called_ready(place: Place) -> None:
    place.server.log.clear()
    whole = place.run("check", str(place.path))
    assert whole.exit_code == 0, whole.output
    count = sum(asked.method == "GET" and not asked.path.startswith("/_hosts") for asked in place.server.log)
    assert count > 5
    for done in range(count):
        place.server.faults.add_fault(WireFault("status", "GET", "*", -1, after=done, status=500))
        result = place.run("check", str(place.path))
        place.server.faults.clear_faults()
        assert result.exit_code == 1, f"failed after {done} of {count} requests: {result.output}"
        assert "Not ready" in result.output


def test_who_cannot_sign_in_is_told_and_no_secret_is(place: Place, tmp_path: Path) -> None:
    path = tmp_path / "tls" / "credentials"
    path.write_text("campaign\nnot-the-password\n")
    done = place.fabric("check", "--yes")
    assert done.exit_code == 1
    assert "not-the-password" not in done.output
    assert "FAIL" in done.output
    path.chmod(0o644)
    done = place.fabric("check", "--yes")
    assert "chmod 600" in done.output


def test_a_certificate_that_nobody_vouches_for_is_refused(place: Place) -> None:
    place.write(ca_file=None)
    done = place.fabric("check", "--yes")
    assert done.exit_code == 1
    assert "ca_file" in done.output
    assert place.server.log == []
    place.write(ca_file=None, verify_tls=False)
    assert "not verified (verify_tls: false)" in place.fabric("check", "--look-only").output


def test_a_control_plane_that_is_not_there_is_told(place: Place) -> None:
    place.write(url="https://127.0.0.1:1")
    done = place.fabric("check", "--yes")
    assert done.exit_code == 1
    assert "cannot be reached" in done.output


def test_a_dry_run_prints_the_exact_requests_and_sends_none(place: Place) -> None:
    done = place.compose("--dry-run")
    assert done.exit_code == 0, done.output
    login = [asked for asked in place.server.list_changes() if not re.search("(?i)session|digest", asked.path)]
    assert login == []
    assert place.rack.changes == 0
    assert place.fabric("reconcile", "--grace", "0").output == "no lease was left behind\n"
    said = re.findall(r"^(POST|PATCH|PUT|DELETE) (\S+)", done.output, flags=re.MULTILINE)
    assert said
    # What is then really sent is what was printed, but for ids that only the fabric gives.
    before = len(place.server.log)
    assert place.compose().exit_code == 0
    done = place.run("release", "pair", "--campaign", str(place.campaign))
    assert done.exit_code == 0, done.output
    sent = [a for a in place.server.log[before:] if a.method not in ("GET", "HEAD")]
    sent = [a for a in sent if not re.search("(?i)session|digest", a.path)]
    assert [method for method, _ in said] == [asked.method for asked in sent]
    for (_, url), asked in zip(said, sent, strict=True):
        shape = re.sub(r"\d+|%3C.*?%3E|<.*?>", "#", url.removeprefix(place.server.url))
        assert shape.split("?")[0].rpartition("/")[0] == re.sub(r"\d+", "#", asked.path).rpartition("/")[0]


def test_what_was_left_behind_is_listed_and_released_when_told_so(place: Place) -> None:
    assert place.compose("--name", "old").exit_code == 0
    (journal,) = (place.directory / "results" / ".systems" / "bench" / "leases").glob("*.jsonl")
    journal.with_suffix(".kept").unlink()  # nobody owns it any more
    done = place.fabric("reconcile", "--grace", "0")
    assert "would release" in done.output
    assert len(place.rack.list_free_devices()) == 2
    assert "too young" in place.fabric("reconcile", "--release").output
    done = place.fabric("reconcile", "--grace", "0", "--release")
    assert done.exit_code == 0, done.output
    assert ": released: " in done.output
    assert len(place.rack.list_free_devices()) == 4
    assert Journal(journal.parent, journal.stem).state == "RELEASED"


@pytest.mark.parametrize("system", ["falcon-testbed", "liqid-pool"])
def test_a_check_of_what_cannot_be_opened_goes_on_with_the_rest(system: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["check", f"config/systems/{system}.yaml", "--results", str(tmp_path)])
    assert len(re.findall("FAIL  answer", done.output)) == 1
    assert "error:" not in done.output
    assert "results" in done.output


def test_a_host_that_cannot_be_asked_is_the_cause_until_it_is_mended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifecycle, "DEAD_LEASE_TIMEOUT_S", 0.0)
    monkeypatch.setattr(client, "RETRY_DELAYS_S", ())
    place = Place(tmp_path, "h3")
    agent, wrong = place.document["fabric"]["agent"], "http://127.0.0.1:1/{host}"
    try:
        place.write(poll_s=0, agent={**agent, "url": wrong})
        for _ in range(2):
            done = place.compose()
            assert done.exit_code == 1
            assert "http://127.0.0.1:1: the service cannot be reached" in done.output
        assert place.rack.changes == 0  # nothing is attached that could not be detached
        place.write(poll_s=0)
        assert place.compose().exit_code == 0
        place.write(poll_s=0, agent={**agent, "url": wrong})
        for done in (
            place.run("release", "pair", "--campaign", str(place.campaign)),
            place.fabric("reconcile", "--release", "--grace", "0"),
            place.compose("--name", "other"),  # it would need what is held
        ):
            assert done.exit_code == 1
            assert "http://127.0.0.1:1: the service cannot be reached" in done.output
        assert len(place.rack.list_free_devices()) == 2
        done = place.fabric("reconcile", "--release", "--grace", "0", "--force")
        assert done.exit_code == 0, done.output
        assert len(place.rack.list_free_devices()) == 4
    finally:
        place.server.close()


def test_a_fault_of_the_trial_is_told_and_leaves_nothing(place: Place) -> None:
    place.fabric("check", "--look-only")
    place.rack.devices["gpu1"].quirks.add("degraded_link")
    for method in ("POST", "PATCH"):
        place.server.faults.add_fault(WireFault("drop_after", method, after=1))
    done = place.fabric("check", "--yes")
    place.server.faults.clear_faults()
    place.fabric("reconcile", "--grace", "0", "--release")
    assert len(place.rack.list_free_devices()) == 4, done.output


def test_a_live_lease_of_other_results_is_released_only_by_the_name_of_its_owner(place: Place) -> None:
    assert place.compose("--name", "theirs").exit_code == 0
    journals = place.directory / "results" / ".systems"
    journals.rename(place.directory / "theirs")
    release = ("reconcile", "--grace", "0", "--release", "--unjournaled")
    done = place.fabric(*release)
    assert re.search(
        r"^\S+ of (\S+): other owner: .* may be in use; .* add --of \1 if it is not\)$", done.output, re.MULTILINE
    )
    assert len(place.rack.list_free_devices()) == 2
    done = place.fabric(*release[:-1], "--of", getpass.getuser())
    assert (done.exit_code, "add --unjournaled" in done.output) == (1, True)
    done = place.fabric(*release, "--of", getpass.getuser())
    assert (done.exit_code, len(place.rack.list_free_devices())) == (0, 4)


@pytest.mark.parametrize(
    ("kind", "option"), [("redfish", "powered_off=false times=h3 factor=0.01"), ("h3", "factor=0.001")]
)
def test_an_emulator_serves_a_person(kind: str, option: str, tmp_path: Path) -> None:
    end, said = threading.Event(), []
    directory = tmp_path / "learn"
    wanted = EmulatorRequest(
        kind, directory, 0, "host[1-2]", ("gpu:h100-sim:3",), ("html,POST,/nowhere",), option.split()
    )
    thread = threading.Thread(target=serve_control_plane, args=(wanted, said.append, end))
    thread.start()
    try:
        path = directory / "systems" / "learn.yaml"
        while not any("Ctrl-C" in line for line in said):
            assert thread.is_alive()
            time.sleep(0.01)
        words = ["fabric", "check", str(path), "--results", str(tmp_path / "results")]
        # Boxes are read twice before each order and after it, with pauses: their composing is tried elsewhere.
        done = CliRunner().invoke(main, [*words, "--yes"] if kind == "redfish" else words, input="n\n")
        assert done.exit_code == 0, done.output
        assert "3 h100-sim, as in the system file" in done.output
        if "times" in option:  # attaching took 5 s at least
            assert "take recorded times: logs" in path.read_text()
            (took,) = re.findall(r"composed h100-sim onto host\d: fabric ([\d.]+) s", done.output)
            assert float(took) >= 0.05
        with Site(read_system_file(str(path)), tmp_path).open_fabric() as fabric:
            assert len(fabric.read_inventory().devices) == 3
    finally:
        end.set()
        thread.join()
    assert str(path) in "".join(said)
    done = CliRunner().invoke(main, ["plan", str(directory / "campaign.yaml"), "--results", str(tmp_path / "results")])
    assert done.exit_code == 0, done.output  # the control plane has ended, and a plan does not need it


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["nothing"], "no emulator of kind 'nothing'; use one of"),
        (["liqid", "--device", "gpu:a100"], "use KIND:MODEL:COUNT"),
        (["liqid", "--fault", "explode,POST,/"], "KIND is one of drop_before"),
        (["liqid", "--option", "looks"], "use NAME=VALUE"),
        (["redfish", "--option", "colour=blue"], "redfish: 1 validation error"),
        (["liqid", "--option", "colour=blue"], "unexpected keyword argument 'colour'"),
        (
            ["pyproject.yaml"],
            "pyproject.yaml: No such file or directory; use a recording from 'campaign fabric record'",
        ),
    ],
)
def test_what_cannot_be_emulated_is_told(words: list[str], told: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["fabric", "emulate", *words, "--directory", str(tmp_path / "x")])
    assert done.exit_code == 1
    assert told in done.output


@pytest.mark.parametrize("kind", list_emulated_kinds())
def test_every_emulator_is_checked_without_a_complaint(kind: str, tmp_path: Path) -> None:
    place = Place(tmp_path, kind)
    place.write(**{name: value for name, value in QUICK.items() if name in load_fabric_kind(kind).options.model_fields})
    try:
        done = place.fabric("check", "--yes")
        assert done.exit_code == 0, done.output
        assert len(place.rack.list_free_devices()) == 4
    finally:
        place.server.close()


@pytest.mark.parametrize(
    ("kind", "variant"), [*((kind, {}) for kind in list_emulated_kinds()), ("h3", {"attached": "all"})]
)
def test_a_recording_names_nobody_and_replays_to_the_same_verdicts(
    kind: str, variant: dict[str, Any], tmp_path: Path
) -> None:
    place = Place(tmp_path, kind, **variant)
    place.write(**{name: value for name, value in QUICK.items() if name in load_fabric_kind(kind).options.model_fields})
    site, file = Site(read_system_file(str(place.path)), tmp_path / "results"), tmp_path / "recording.yaml"
    try:
        with site.open_fabric() as fabric:
            device = next(one.fabric_id for one in fabric.read_inventory().devices if one.state == "free")
        asked = ("--output", str(file), "--trial", device, "host1")
        done = place.fabric("record", *asked, answer="n\n")
        assert done.exit_code == 0, done.output
        assert not file.exists()
        assert "Replaced words:" in done.output
        done = place.fabric("record", *asked, "--yes")
        assert done.exit_code == 0, done.output
        assert "FAIL" not in done.output
        assert len(place.rack.list_free_devices()) == (0 if variant else 4)
    finally:
        place.server.close()
    text = file.read_text()
    identities = {word for one in place.rack.devices.values() for word in (one.uuid, one.serial)}
    for secret in (SECRET, getpass.getuser(), "host1", "127.0.0.1", *identities):
        assert secret not in text, secret
    recorded, ended = yaml.safe_load(text), threading.Event()
    assert [one["verdict"] for one in recorded["findings"]] == ["ok"] * 7
    ended.set()
    serve_control_plane(EmulatorRequest(str(file), tmp_path / "again", 0, ""), lambda line: None, ended)
    server, replay = open_replay_server(file)
    with server:
        system = tmp_path / "again" / "systems" / "again.yaml"
        system.write_text(yaml.safe_dump(replay.build_system_document("again", tmp_path / "again")))
        with Site(read_system_file(str(system)), tmp_path / "results2").open_fabric() as fabric:
            assert fabric.control_plane_access is not None
            fabric.control_plane_access.force = True  # nobody looks on the hosts of a recording
            found = [asdict(one) for one in walk_control_plane(fabric, tmp_path / "journals", tuple(recorded["trial"]))]
        assert found == recorded["findings"]


def test_a_site_where_it_fails_is_told_why_and_its_recording_has_no_names(place: Place) -> None:
    place.server.faults.add_fault(
        WireFault("status", "GET", "*", -1, status=500, body="cn17.site: power supply 7 of rack9b")
    )
    done = place.fabric("record", "--yes", "--output", str(place.directory / "recording.yaml"))
    assert done.exit_code == 1
    assert "FAIL  answer     FabricError" in done.output
    assert "cn17.site: power supply" in done.output
    recorded = (place.directory / "recording.yaml").read_text()
    assert "cn17" not in recorded
    assert "of name" in recorded


def test_a_trial_that_cannot_detach_says_how_to_and_does_not_replace_a_file_unasked(tmp_path: Path) -> None:
    place = Place(tmp_path, "h3")
    place.write(poll_s=0)
    try:
        with Site(read_system_file(str(place.path)), tmp_path / "results").open_fabric() as fabric:
            device = fabric.read_inventory().devices[0].fabric_id
        (tmp_path / "kept").write_text("mine")
        place.server.faults.add_fault(WireFault("status", "DELETE", "*", -1, status=500))
        done = place.fabric("record", "--trial", device, "host1", "--output", str(tmp_path / "kept"), answer="\n")
        assert (done.exit_code, (tmp_path / "kept").read_text()) == (1, "mine")
        assert f"Replace {tmp_path / 'kept'}?" in done.output
        assert "FAIL  detach     still attached: 'campaign fabric reconcile SYSTEM --release --grace 0'" in done.output
        place.server.faults.clear_faults()
        assert place.fabric("reconcile", "--release", "--grace", "0").exit_code == 0
        assert len(place.rack.list_free_devices()) == 4
    finally:
        place.server.close()


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda text: text[: text.index("status: 200")], "exchange 1 .* has neither a number as `status` nor `lost`"),
        (lambda text: text.partition("exchanges:")[0], "`exchanges` is missing"),
        (lambda text: text.replace("login: false", ""), "`login` is missing"),
        (lambda text: text.replace("status: 200", "status: fine", 1), "exchange 1 .* has neither a number as `status`"),
        (lambda text: text.replace("recording/1", "recording/9"), "cannot read `schema_version` 'recording/9'"),
        (lambda text: "[]", "`schema_version` is missing"),
    ],
)
def test_a_damaged_recording_is_not_replayed(damage: Callable[[str], str], told: str, tmp_path: Path) -> None:
    whole = Path("tests/data/fabrics/recordings/h3-falcon-4005.yaml").read_text()
    (tmp_path / "recording.yaml").write_text(damage(whole))
    words = ["fabric", "emulate", str(tmp_path / "recording.yaml"), "--directory", str(tmp_path / "x")]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 1
    assert re.search(told, done.output), done.output


def test_a_trial_names_what_is_free(place: Place) -> None:
    free_devices = "free devices: gpu1" if place.document["fabric"]["kind"] == "liqid" else "free devices:"
    for trial, told in ((("gpu9", "host1"), free_devices), (("gpu1", "host9"), "free hosts: host1, host2")):
        done = place.fabric("record", "--yes", "--trial", *trial)
        assert done.exit_code == 1
        assert told in done.output
    assert place.rack.changes == 0


def test_what_was_found_on_a_host_is_there_again_after_a_check_and_a_release_by_hand(tmp_path: Path) -> None:
    place = Place(tmp_path, "h3", attached="all")
    place.write(poll_s=0)
    before = {name: device.attached_to for name, device in place.rack.devices.items()}
    try:
        for act in (
            lambda: place.fabric("check", "--yes"),
            place.compose,
            lambda: place.run("release", "pair", "--campaign", str(place.campaign)),
        ):
            done = act()
            assert done.exit_code == 0, done.output
            moved = {name: device.attached_to for name, device in place.rack.devices.items()} != before
            assert moved == (act == place.compose)
    finally:
        place.server.close()


def test_a_model_that_the_file_does_not_know_is_offered_as_the_fabric_calls_it(tmp_path: Path) -> None:
    with checked(tmp_path, [("gpu", "NVIDIA A100-PCIE-40GB", 2), ("nvme", "NVIDIA A100-PCIE-40GB", 1)]) as place:
        place.document |= {"pool": [{"kind": "gpu", "model": "a100", "count": 2}], "devices": {}}
        place.write()
        told = place.fabric("check", "--look-only").output
        assert "0 a100 found, but the system file lists 2; the fabric has 'NVIDIA A100-PCIE-40GB'" in told
        place.write(models={"NVIDIA A100-PCIE-40GB": "a100"})
        told = place.fabric("check", "--look-only").output
        assert "2 a100, as in the system file" in told  # not three: the drive is no device, whatever its model
        assert "1 a100 (drive) that the system file does not list" in told


def test_a_service_that_composes_nothing_is_told_early(tmp_path: Path) -> None:
    with checked(tmp_path, [("gpu", "cpu-rank", 2)], composes=False) as place:
        done = place.fabric("check", "--yes")
        assert done.exit_code == 1
        assert "lists its blocks but cannot compose systems" in done.output
        assert "composing failed" not in done.output


def test_plain_http_is_refused_unless_the_file_says_that_it_is_a_tunnel(tmp_path: Path) -> None:
    with checked(tmp_path, [("gpu", "cpu-rank", 2)], tls=False) as place:
        plain = {
            "ca_file": None,
            "agent": {"kind": "none"},
            "credentials": {"file": str(tmp_path / "tls" / "credentials")},
        }
        place.write(**plain)
        done = place.fabric("check", "--look-only")
        assert done.exit_code == 1
        assert "anyone on the network can read the password" in done.output
        place.write(**plain, tunnel=True)
        done = place.fabric("check", "--look-only")
        assert done.exit_code == 0, done.output
        assert "the system file declares a tunnel" in done.output
