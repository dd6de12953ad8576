"""The local launcher on real emulated hosts, as root and as nobody: where ranks stand, how slow links are, and what is left."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

_REPOSITORY = Path(__file__).resolve().parents[2]
Person = tuple[list[str], str]

pytestmark = pytest.mark.usefixtures("hosts_can_be_emulated")


def asked(person: Person, what: str) -> dict[str, Any]:
    """What the probe prints when that person starts it."""
    become, python = person
    done = subprocess.run(
        [*become, python, "-m", "tests.cluster.launcher_probe", what],
        capture_output=True,
        text=True,
        cwd=_REPOSITORY,
        check=False,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert answer["emulated"] == ("root" if answer["user"] == 0 else "user namespace")
    return answer


def test_ranks_stand_on_their_hosts(person: Person) -> None:
    answer = asked(person, "places")
    assert answer["codes"] == [0, 0, 0, 0]
    first, second, fabric, other = answer["spaces"]
    assert first == second
    assert len({first, fabric, other, answer["own"]}) == 4


def test_ranks_meet_links_at_the_rates_of_the_system_file(person: Person) -> None:
    answer = asked(person, "rates")
    assert answer["network"] == pytest.approx(0.16, rel=0.3)
    assert answer["fabric"] == pytest.approx(0.08, rel=0.3)
    assert answer["local"] > 0.5


@pytest.mark.slow
def test_forked_ranks_train_across_hosts_and_end_at_their_limits(person: Person) -> None:
    answer = asked(person, "training")
    assert answer["codes"] == [0, 0, 0]
    assert answer["statuses"] == ["ok", "ok", "ok"]
    assert answer["stopped"] == [True, -9, -9, -9]
    assert answer["hungry"] is True
    assert answer["left"] == []


def test_what_cannot_be_started_and_hosts_that_go_away_are_the_apparatus_failure(person: Person) -> None:
    answer = asked(person, "failing")
    assert answer["absent"].startswith("no-such-program: could not be started")
    assert answer["forbidden"].startswith("/etc/passwd: could not be started")
    assert answer["stopped"] == [True, -9, -9]
    assert answer["left"] == []
    assert answer["gone"].startswith("true: could not be started")
