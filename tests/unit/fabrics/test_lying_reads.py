"""Every adapter before a control plane that changes what it is asked to, and lies to whoever reads.

Whatever is read, a lease that counts as ready has its devices, and nothing of another lease is touched.
"""

from __future__ import annotations

import copy
import json
import os
import random
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import campaign.fabrics
from campaign.common.errors import CampaignError, FabricError
from campaign.emulators.catalog import build_connection_options, list_emulated_kinds, open_emulator
from campaign.emulators.control_planes.server import HOSTS_PATH, ControlPlaneServer, Emulator, HttpRequest, Reply
from campaign.fabrics import open_fabric
from campaign.fabrics.http import client as http_client
from campaign.fabrics.http.client import HttpClient
from campaign.fabrics.protocol import Fabric
from tests.contract.fabric_fixtures import SYSTEMS, System

OURS, OTHERS = "demo.c.1", "other.c.1"
ADAPTERS = Path(campaign.fabrics.__file__).parent
FIELDS_PER_ADDRESS = 2
ABOUT_MEMBERS = ("empty", "short", "doubled", "foreign", "swapped")
Lie = Callable[[Any], Any]
IDENTITIES = frozenset(
    [
        "name",
        "dev_id",
        "mach_id",
        "mach_name",
        "grp_id",
        "@odata.id",
        "Id",
        "Name",
        "UUID",
        "SerialNumber",
        "sid",
        "id",
        "guid",
        "slot",
        "serial",
        "uuid",
    ]
)
"""Keys that say which one a member of a list is."""


def _map_lists(value: Any, change: Callable[[list[Any]], list[Any]]) -> Any:
    """Change every list in a JSON value, from the inside out."""
    if isinstance(value, dict):
        return {name: _map_lists(one, change) for name, one in value.items()}
    if isinstance(value, list):
        return change([_map_lists(one, change) for one in value])
    return value


def _add_foreign(members: list[Any]) -> list[Any]:
    """Add a member that is like the last one, under a name that nobody knows."""
    if not members or not isinstance(members[-1], dict):
        return members
    foreign = copy.deepcopy(members[-1])
    for name in IDENTITIES:
        if isinstance(foreign.get(name), str):
            foreign[name] += "f"
    return [*members, foreign]


def _swap_identities(members: list[Any]) -> list[Any]:
    """Exchange what the first two members are called."""
    if len(members) < 2 or not all(isinstance(one, dict) for one in members[:2]):
        return members
    one, two = dict(members[0]), dict(members[1])
    for name in IDENTITIES:
        if name in one and name in two:
            one[name], two[name] = two[name], one[name]
    return [one, two, *members[2:]]


def _without(key: str) -> Lie:
    def drop(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: drop(one) for name, one in value.items() if name != key}
        return [drop(one) for one in value] if isinstance(value, list) else value

    return drop


LIES: dict[str, Lie] = {
    "empty": lambda body: _map_lists(body, lambda members: []),
    "short": lambda body: _map_lists(body, lambda members: members[1:]),
    "doubled": lambda body: _map_lists(body, lambda members: members + members[:1]),
    "foreign": lambda body: _map_lists(body, _add_foreign),
    "swapped": lambda body: _map_lists(body, _swap_identities),
    "html": lambda body: "<html><body>Welcome</body></html>",
    "cut": lambda body: json.dumps(body)[: len(json.dumps(body)) // 2],
    "nothing": lambda body: None,
}


def keys_of(value: Any) -> Iterator[str]:
    """Every key in a JSON value."""
    if isinstance(value, dict):
        yield from value
    for one in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from keys_of(one)


BELIEVED = {("h3", "no Host_Port#")}
"""No recording shows what a box says of a device that nobody has: it may leave this out."""


class Liar:
    """An emulator that does what it is asked, and lies where one address is read. stale: answer as the first time."""

    def __init__(self, emulator: Emulator) -> None:
        self.emulator, self.rack = emulator, emulator.rack
        self.path, self.lie = "", LIES["empty"]
        self.stale = False
        self.first: dict[str, Reply] = {}

    def answer(self, asked: HttpRequest) -> Reply | None:
        told = self.emulator.answer(asked)
        if told is None or asked.method != "GET" or asked.path.startswith(HOSTS_PATH) or told.status != 200:
            return told
        whole = json.loads(told.body) if isinstance(told.body, str) and told.body[:1] in "{[" else told.body
        first = self.first.setdefault(asked.path, replace(told, body=copy.deepcopy(whole)))
        if asked.path != self.path:
            return told
        return first if self.stale else replace(told, body=self.lie(copy.deepcopy(whole)))


@pytest.fixture(params=list_emulated_kinds())
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def _site(kind: str) -> System:
    """The example of a kind, with devices for two leases."""
    system = SYSTEMS[kind]
    return replace(system, pool=tuple(s.model_copy(update={"count": 3 * s.count}) for s in system.pool))


@pytest.fixture
def server(kind: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[ControlPlaneServer]:
    """Serves whatever emulator is put into it; its clients do not really wait, though the time of their operations goes by."""

    def sleep(client: HttpClient, seconds: float) -> None:
        if client.compute_remaining_s() <= seconds or client._state.deadline_s is None:
            raise FabricError("not done in time")
        client._state.deadline_s -= seconds

    monkeypatch.setattr(HttpClient, "sleep", sleep)
    monkeypatch.setattr(http_client, "RETRY_DELAYS_S", ())
    with ControlPlaneServer(_emulator(kind), tls=False) as served:
        yield served


def _emulator(kind: str) -> Emulator:
    site = _site(kind)
    return open_emulator(site.fabric, site.rack(), **site.variant)


def _open(kind: str, server: ControlPlaneServer, state_dir: Path) -> Fabric:
    system = _site(kind)
    own = {**build_connection_options(system.fabric, server), "operation_s": 60.0, "request_s": 20.0}
    return open_fabric(system.fabric, {**system.options, **own}, system.hosts, system.pool, state_dir)


def _attached(liar: Liar) -> dict[str, str]:
    return {device.name: device.attached_to for device in liar.rack.devices.values() if device.attached_to}


class Bench:
    """Another lease that is composed, and ours to come, on a control plane that does not lie yet."""

    def __init__(self, kind: str, server: ControlPlaneServer, directory: Path) -> None:
        self.kind, self.server, self.directory = kind, server, directory
        self.liar = Liar(_emulator(kind))
        server.emulator = self.liar
        server.log.clear()
        with closing(_open(kind, server, directory)) as fabric:
            request = SYSTEMS[kind].request(OTHERS)
            fabric.compose(fabric.select_devices(request, fabric.read_inventory()))
        self.others = _attached(self.liar)

    def compose(self) -> str:
        """Compose under lies; gives what came of it, for messages. A lease that counts as ready has its devices."""
        request = SYSTEMS[self.kind].request(OURS)
        with closing(_open(self.kind, self.server, self.directory)) as fabric:
            try:
                fabric.compose(fabric.select_devices(request, fabric.read_inventory()))
                composition = fabric.read_back(OURS)
                if composition is None or composition.list_shortfalls(request.configuration):
                    return "incomplete"
                wanted = {device.fabric_id for device in composition.devices}
                if not wanted <= (fabric.find_visible_devices(composition) or frozenset()):
                    return "not seen"
            except CampaignError as error:
                return f"refused: {error}"
        for host in composition.hosts:
            mine = {name for name, where in _attached(self.liar).items() if where == host.name}
            assert len(mine - set(self.others)) == len(
                {device.fabric_id for device in (*host.devices, *host.storage)}
            ), host
        return "ready"

    def release(self) -> tuple[str, ...] | str:
        with closing(_open(self.kind, self.server, self.directory)) as fabric:
            try:
                return fabric.release(OURS)
            except CampaignError as error:
                return f"refused: {error}"

    def check_others(self, words: str) -> None:
        now = _attached(self.liar)
        assert {name: now.get(name) for name in self.others} == self.others, words

    def give_back(self, words: str) -> None:
        """Release without lies: nothing of ours is left, and the other lease has all of its own."""
        self.liar.path = ""
        with closing(_open(self.kind, self.server, self.directory)) as fabric:
            for _ in range(3):
                with suppress(FabricError):
                    fabric.release(OURS)
            assert fabric.release(OURS) == (), words
            composition = fabric.read_back(OTHERS)
        assert _attached(self.liar) == self.others, words
        assert composition is not None, words


def lies_of(kind: str, server: ControlPlaneServer, directory: Path) -> list[tuple[str, str, Lie | None]]:
    """Addresses that are read while composing and releasing, one of each kind, with every lie; None: an old answer."""
    bench = Bench(kind, server, directory)
    assert bench.compose() == "ready"
    assert bench.release() == ()
    found: list[tuple[str, str, Lie | None]] = []
    kinds: set[frozenset[str]] = set()
    for path, reply in bench.liar.first.items():
        kind_of_answer = frozenset(keys_of(reply.body))
        if len(kinds) == len(kinds := kinds | {kind_of_answer}):
            continue  # one that is like an earlier one
        lies = LIES | {f"no {key}": _without(key) for key in dict.fromkeys(keys_of(reply.body))}
        found += [(path, name, lie) for name, lie in lies.items()] + [(path, "stale", None)]
    return found


def draw_lies(lies: list[tuple[str, str, Lie | None]], kind: str, moment: str) -> list[tuple[str, str, Lie | None]]:
    """Draw a few lies for each address; all with CAMPAIGN_EXPLORE=1. The draw depends on `kind` and `moment` only.

    Every address is lied to about the members of its lists, because adapters decide by them. Other lies rotate over the addresses.
    Fields that no adapter names come last, because nobody can miss them.
    """
    if "CAMPAIGN_EXPLORE" in os.environ:
        return lies
    sources = "".join(path.read_text(encoding="utf-8") for path in ADAPTERS.rglob("*.py"))
    drawn = []
    for number, address in enumerate(dict.fromkeys(path for path, _, _ in lies)):
        at_address = [lie for lie in lies if lie[0] == address]
        random.Random(f"{kind} {moment} {number}").shuffle(at_address)
        at_address.sort(key=lambda lie: lie[1].startswith("no ") and f'"{lie[1][3:]}"' not in sources)
        fields = [lie for lie in at_address if lie[1].startswith("no ")]
        rotating = {lie[1]: lie for lie in at_address if lie not in fields and lie[1] not in ABOUT_MEMBERS}
        names = [name for name in (*LIES, "stale") if name in rotating]
        first = (number + (moment == "release")) % len(names)
        drawn += [lie for lie in at_address if lie[1] in ABOUT_MEMBERS]
        drawn += [rotating[names[first]], *fields[:FIELDS_PER_ADDRESS]]
    return drawn


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["compose", "release"])
def test_a_lie_to_a_reader_makes_no_false_lease_and_touches_nothing_of_others(
    moment: str, kind: str, server: ControlPlaneServer, tmp_path: Path
) -> None:
    wrong = []
    lies = draw_lies(lies_of(kind, server, tmp_path / "honest"), kind, moment)
    for number, (path, name, lie) in enumerate(lies):
        if (kind, name) in BELIEVED:
            continue
        words = f"{name}: {path}"
        bench = Bench(kind, server, tmp_path / str(number))
        if moment == "release":
            assert bench.compose() == "ready"
        bench.liar.path, bench.liar.stale = path, lie is None
        bench.liar.lie = lie or LIES["empty"]
        try:
            if moment == "compose":
                bench.compose()
            elif bench.release() == ():
                left = set(_attached(bench.liar)) - set(bench.others)
                assert not left, f"{words}: released, and {left} stayed"
            bench.check_others(words)
            bench.give_back(words)
        except AssertionError as error:
            wrong.append(str(error).partition("\n")[0])
    assert wrong == []
