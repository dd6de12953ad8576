"""Every adapter against its control plane gone mad.

Whatever it answers, there is an error that says so, an end, and no lease believed that the hardware does not have.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from campaign.common.errors import CampaignError, FabricError
from campaign.emulators.catalog import build_connection_options, list_emulated_kinds, open_emulator
from campaign.emulators.control_planes.hardware import Rack
from campaign.emulators.control_planes.server import ControlPlaneServer, Emulator, HttpRequest, Reply
from campaign.fabrics import open_fabric
from campaign.fabrics.http import client as http_client
from campaign.fabrics.http.client import HttpClient
from campaign.fabrics.protocol import Fabric, LeaseRequest, Selection
from campaign.spec.hardware import Composition
from tests.contract.fabric_fixtures import SYSTEMS, System

LEASE = "demo.c.1"
REQUESTS_MAX = 2000
"""In one sequence of operations; an honest one takes less than a hundred."""

_ODD: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    10**30,
    1.5,
    "",
    "x",
    "/",
    "null",
    "/redfish/v1/x",
    [],
    {},
    [None],
    [[]],
    [{}],
    ["x"],
)
_ODD += (
    {"": None},
    {"error": 5},
    {"error": {"code": [], "message": {}, "@Message.ExtendedInfo": [5]}},
    "a\x00\ud83d\ude00" * 9,
)
_STATUSES = (200, 200, 200, 201, 202, 204, 304, 400, 401, 403, 404, 409, 410, 418, 500, 503)


def mutated(value: Any, chance: random.Random, rate: float) -> Any:
    """A JSON value, in which parts are replaced by others of any kind, keys are dropped, and lists are cut, doubled or mixed."""
    if chance.random() < rate:
        return copy.deepcopy(chance.choice(_ODD))
    if isinstance(value, dict):
        kept = {name: one for name, one in value.items() if chance.random() >= rate}
        return {name: mutated(one, chance, rate) for name, one in kept.items()}
    if isinstance(value, list):
        found = [mutated(one, chance, rate) for one in value if chance.random() >= rate]
        return found + found[:1] if chance.random() < rate else found
    return value


class Mad:
    """An emulator that does what it is asked, and answers something else. rate: of the parts of an answer; 1: all made up."""

    def __init__(self, emulator: Emulator, seed: int, rate: float) -> None:
        self.emulator = emulator
        self.rack: Rack = emulator.rack
        self.honest = False
        self.asked = 0
        self._chance = random.Random(seed)
        self._rate = rate

    def answer(self, asked: HttpRequest) -> Reply:
        self.asked += 1
        told = self.emulator.answer(asked)
        if self.honest:
            return told
        chance = self._chance
        if self._rate == 1:
            return Reply(chance.choice(_STATUSES), chance.choice((*_ODD, "<html>", "{", told.body)), told.headers)
        if chance.random() < self._rate:
            told = replace(told, status=chance.choice(_STATUSES))
        if chance.random() < self._rate:
            told = replace(
                told, headers={"Location": chance.choice(("", "/", "x", "http://[", "/redfish/v1/Systems/none"))}
            )
        if isinstance(told.body, str):  # JSON that is sent as text
            return replace(told, body=json.dumps(mutated(json.loads(told.body), chance, self._rate)))
        return replace(told, body=mutated(told.body, chance, self._rate))


@pytest.fixture(params=list_emulated_kinds())
def kind(request: pytest.FixtureRequest) -> str:
    """What there is of adapters with an emulated control plane to them."""
    return str(request.param)


@pytest.fixture
def server(kind: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[ControlPlaneServer]:
    """Serves whatever emulator is put into it; its clients do not really wait, though the time of their operations goes by."""

    def sleep(client: HttpClient, seconds: float) -> None:
        if client.compute_remaining_s() <= seconds or client._state.deadline_s is None:
            raise FabricError("not done in time")
        client._state.deadline_s -= seconds

    monkeypatch.setattr(HttpClient, "sleep", sleep)
    monkeypatch.setattr(http_client, "RETRY_DELAYS_S", ())
    with ControlPlaneServer(_honest(kind), tls=False) as served:
        yield served


def _site(kind: str) -> System:
    """The example of a kind, with more devices than a lease asks for."""
    system = SYSTEMS[kind]
    return replace(system, pool=tuple(s.model_copy(update={"count": 4}) if s.kind == "gpu" else s for s in system.pool))


def _honest(kind: str) -> Emulator:
    site = _site(kind)
    return open_emulator(site.fabric, site.rack(), **site.variant)


def _open(kind: str, server: ControlPlaneServer, state_dir: Path) -> Fabric:
    system = _site(kind)
    own = {**build_connection_options(system.fabric, server), "operation_s": 60.0, "request_s": 20.0}
    return open_fabric(system.fabric, {**system.options, **own}, system.hosts, system.pool, state_dir)


def _tried(action: Callable[[], Any]) -> Any:
    """What an action gives, or None for an error that a person can be told."""
    try:
        return action()
    except CampaignError as error:
        told = str(error)
    assert told.replace("\n", " ").isprintable(), repr(told)
    return None


def _believed(fabric: Fabric, request: LeaseRequest, composition: Composition | None) -> bool:
    """What makes a lease ready: all that was asked for, and seen by the hosts."""
    if composition is None or composition.list_shortfalls(request.configuration):
        return False
    seen = _tried(lambda: fabric.find_visible_devices(composition)) or frozenset()
    return {device.fabric_id for device in composition.devices} <= seen


def _has(hardware: Rack, composition: Composition) -> bool:
    """True when each device of a composition is attached to its host, as many as it says."""
    for host in composition.hosts:
        if len(hardware.list_attached_devices(host.name)) < len(
            {device.fabric_id for device in (*host.devices, *host.storage)}
        ):
            return False
    return True


def _use(fabric: Fabric, mad: Mad, selected: Selection, *, to_the_end: bool) -> bool:
    """What a lease does with a fabric; `selected` where nothing can be selected by what it shows.

    True when a release was lied to: before and after it, all was shown as free. Nothing can be done against that.
    """
    request = selected.request
    inventory = _tried(fabric.read_inventory)
    selection = (inventory and _tried(lambda: fabric.select_devices(request, inventory))) or selected
    for _ in range(2):
        _tried(lambda: fabric.compose(selection))
        composition = _tried(lambda: fabric.read_back(LEASE))
        if _believed(fabric, request, composition):
            assert _has(mad.rack, composition), composition
    _tried(fabric.list_lease_tags)
    released = _tried(lambda: fabric.release(LEASE)) if to_the_end else None
    return released == () and _attached(mad) != []


def _attached(mad: Mad) -> list[str]:
    return [device.name for device in mad.rack.devices.values() if device.attached_to]


def _give_back(fabric: Fabric, mad: Mad, *, lied_to: bool) -> None:
    """The control plane has come to its senses: what it says is true, and what is released is released."""
    composition = fabric.read_back(LEASE)
    assert composition is None or _has(mad.rack, composition)
    for _ in range(3):
        with suppress(FabricError):
            fabric.release(LEASE)
    assert fabric.release(LEASE) == ()
    assert lied_to or _attached(mad) == []
    assert {host.holder for host in fabric.read_inventory().hosts} == {None}


def run(kind: str, server: ControlPlaneServer, state_dir: Path, seed: int, rate: float) -> None:
    """A lease with a control plane that is mad, and then, in another process, with one that is not."""
    mad = Mad(_honest(kind), seed, rate)
    server.emulator = mad
    server.log.clear()
    with closing(_open(kind, server, state_dir)) as sane:
        mad.honest = True
        selected = sane.select_devices(SYSTEMS[kind].request(LEASE), sane.read_inventory())
    with closing(_open(kind, server, state_dir)) as fabric:
        mad.honest = False
        lied_to = _use(fabric, mad, selected, to_the_end=seed % 2 == 0)
    assert mad.asked < REQUESTS_MAX
    with closing(_open(kind, server, state_dir)) as sane:
        mad.honest = True
        _give_back(sane, mad, lied_to=lied_to)


@settings(
    max_examples=8,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(seed=st.integers(0, 2**32), rate=st.sampled_from([0.003, 0.01, 0.05, 0.2, 1]))
def test_a_mad_control_plane_is_survived_and_not_believed(
    kind: str, server: ControlPlaneServer, tmp_path_factory: pytest.TempPathFactory, seed: int, rate: float
) -> None:
    run(kind, server, tmp_path_factory.mktemp("state"), seed, rate)
