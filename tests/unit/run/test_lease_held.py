"""A run counts only if its lease was held from before its start to after its end: otherwise it has no record."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from campaign.common.errors import LaunchError
from campaign.common.paths import Results
from campaign.lease.journal import Journal
from campaign.run import run_loop
from campaign.run.driver import Driver
from campaign.run.launchers import open_launcher
from campaign.spec.driver_messages import DriverRequest, DriverResult
from campaign.spec.hardware import ComposedHost, Composition
from campaign.spec.record import RecordStore
from tests.campaign_files import load
from tests.planned_leases import written_plan

CHANGES: dict[str, Any] = {
    "campaign.axes.workload": ["steps"],
    "campaign.axes.batch": [4],
    "campaign.axes.precision": ["fp32"],
    "campaign.configurations": [{"name": "one"}],
    "campaign.protocol": {"repetitions": 2, "compositions": 1, "telemetry_s": None, "measured_steps": 2},
}
COMPOSE = ("RESERVED", "COMPOSING", "FABRIC_OK", "HOST_VISIBLE", "READY", "IN_USE")
RELEASE = ("DRAINING", "DETACHING", "FABRIC_FREE", "RELEASED")
ADOPT = ("UNKNOWN", "FABRIC_OK", "HOST_VISIBLE", "READY", "IN_USE")
AGAIN = ("UNKNOWN", "ABORTING", "FABRIC_FREE", *COMPOSE)


class Site:
    """A campaign with one lease and its journal, measured in this process."""

    def __init__(self, directory: Path) -> None:
        campaign = load(directory / "files", CHANGES)
        self.results = Results(directory / "results", campaign.name)
        self.results.directory.mkdir(parents=True)
        self.store = RecordStore(self.results.directory)
        self.plan = written_plan(campaign, self.results, "one.c1")
        self.journals = self.results.journals_directory(campaign.system.name)
        self.advance("PLANNED", *COMPOSE)

    def advance(self, *states: Any) -> None:
        for state in states:
            number = len(self.journal().read_entries())
            self.journal().enter_state(state, **({"token": f"t{number}"} if state == "RESERVED" else {}))

    def journal(self) -> Journal:
        return Journal(self.journals, "l")

    def request(self) -> DriverRequest:
        hosts = Composition((ComposedHost("host1", 4, 8.0, ()),)).document()
        root, name = str(self.results.root), self.results.campaign
        return DriverRequest(str(self.plan), root, name, "one.c1", "l.1", hosts, (), "a1", self.journal().holding_token)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setattr("campaign.run.driver._detach_from_terminal", lambda: None)
    return Site(tmp_path)


@pytest.mark.parametrize("states", [RELEASE, ("DRAINING",), (*RELEASE, "PLANNED", *COMPOSE), AGAIN])
def test_a_driver_whose_lease_was_given_back_starts_no_run(
    site: Site, states: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    request = site.request()
    site.advance(*states)
    monkeypatch.setattr(run_loop, "open_launcher", _that(lambda: pytest.fail("a run was started")))
    ended = DriverResult.from_document(Driver(request)())
    assert isinstance(ended.error, LaunchError)
    assert "l.1: this composition is no longer held" in str(ended.error)
    assert list(site.store) == []


@pytest.mark.parametrize("states", [("DRAINING",), RELEASE, AGAIN])
def test_a_run_during_which_its_lease_was_given_back_has_no_record(
    site: Site, states: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_loop, "open_launcher", _that(lambda: site.advance(*states)))
    ended = DriverResult.from_document(Driver(site.request())())
    assert "l.1: this composition is no longer held" in str(ended.error)
    assert list(site.store) == []


def test_a_lease_that_is_taken_over_meanwhile_stays_held(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_loop, "open_launcher", _that(lambda: site.advance(*ADOPT)))
    ended = DriverResult.from_document(Driver(site.request())())
    assert ended.error is None
    assert [record.status for record in site.store] == ["ok", "ok"]


def _that(happens: Any) -> Any:
    """`open_launcher`, of a launcher during whose runs something happens."""

    def opened(*arguments: Any) -> Any:
        launcher = open_launcher(*arguments)
        real = launcher.run

        def run(*step: Any) -> Any:
            happens()
            return real(*step)

        launcher.run = run  # type: ignore[method-assign]
        return launcher

    return opened
