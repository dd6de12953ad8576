"""What a driver makes of its composition, and of a run that telemetry has seen."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from campaign.observe.telemetry.run_telemetry import TelemetrySummary
from campaign.run.run_loop import DriverSession, invalidate_if_devices_idle
from campaign.spec.hardware import ComposedHost, Composition
from campaign.spec.record import Status
from campaign.spec.system_file import SystemFile
from campaign.workloads.protocol import Outcome


@pytest.mark.parametrize(
    ("status", "unused", "expected"),
    [("ok", ("gpu:1 on h was never busy",), "invalid"), ("ok", (), "ok"), ("crashed", ("gpu:1",), "crashed")],
)
def test_a_run_whose_devices_did_nothing_is_invalid(status: Status, unused: tuple[str, ...], expected: Status) -> None:
    found = invalidate_if_devices_idle(
        Outcome(status, throughput_per_s=5.0), TelemetrySummary(unused_device_messages=unused)
    )
    assert found.status == expected
    if expected == "invalid":
        assert found.failure is not None
        assert found.failure.evidence == unused[0]
        assert found.throughput_per_s == 5.0, "kept, and not believed"


@pytest.mark.parametrize(("placement", "host"), [("scheduler", "host9"), ("pinned", "host1")])
def test_a_driver_uses_the_host_that_slurm_chose_unless_hosts_are_pinned(
    placement: str, host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_NODELIST", "host9")
    monkeypatch.setattr("campaign.slurm.verify_devices.verify_devices_of_hosts", lambda *_: None)
    composition = Composition((ComposedHost("host1", 4, 8.0, ()),)).document()
    document = {"name": "site", "launcher": "slurm", "fabric": {"kind": "static"}, "hosts": [{"name": "host[1-9]"}]}
    system = SystemFile.model_validate({**document, "slurm": {"placement": placement}})
    session: Any = SimpleNamespace(
        request=SimpleNamespace(use="lease.1", composition=composition, mismatches=(), holding=""),
        campaign=SimpleNamespace(system=system),
        uses_slurm=True,
        work=tmp_path,
    )
    assert [each.name for each in DriverSession.obtain_composition(session).composition.hosts] == [host]
