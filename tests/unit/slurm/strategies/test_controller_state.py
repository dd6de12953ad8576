"""What Slurm answers of hosts, jobs and reservations; the samples are of Slurm 22.05.8."""

from __future__ import annotations

import pytest

from campaign.slurm.strategies.controller import (
    NODES_COMMAND,
    HostJob,
    Reservation,
    count_gres,
    parse_jobs,
    parse_nodes,
    parse_reservations,
)

_WIDTHS = [int(part.rpartition(":")[2]) for part in NODES_COMMAND[-1].partition("=")[2].split(",")]
RESERVED = (
    "ReservationName=night.4x1.0a StartTime=2026-11-21T10:39:57 EndTime=2027-11-21T10:39:57 Duration=365-00:00:00 "
    "Nodes=dyn[1-2] NodeCnt=2 CoreCnt=32 Features=(null) PartitionName=(null) Flags=IGNORE_JOBS,SPEC_NODES TRES=cpu=32 "
    "Users=root Groups=(null) Accounts=(null) Licenses=(null) State=ACTIVE BurstBuffer=(null) Watts=n/a MaxStartDelay=(null)\n"
    "ReservationName=course StartTime=2026-11-22T08:00:00 EndTime=2026-11-22T12:00:00 Duration=04:00:00 Nodes=(null) "
    "NodeCnt=0 CoreCnt=0 Flags=ANY_NODES State=INACTIVE\n"
)


def line(*cells: str) -> str:
    return "".join(f"{cell:{width}}" for cell, width in zip(cells, _WIDTHS, strict=True)) + "\n"


@pytest.mark.parametrize(
    ("text", "gres", "count"),
    [
        ("gpu:4", "gpu", 4),
        ("gpu:a100:2(S:0-1),nvme:1", "gpu", 2),
        ("gpu:a100:2,gpu:v100:3", "gpu", 5),
        ("gpu:a100:2,gpu:v100:3", "gpu:v100", 3),
        ("gpu:2", "gpu:a100", 0),
        ("gpu:a100", "gpu", 1),
        ("nvme:4", "gpu", 0),
        ("gpu_fast:4", "gpu", 0),
        ("", "gpu", 0),
    ],
)
def test_devices_are_counted_by_name_and_type(text: str, gres: str, count: int) -> None:
    assert count_gres(text, gres) == count


@pytest.mark.parametrize(
    ("state", "drained", "serves", "broken"),
    [
        ("idle", False, True, False),
        ("IDLE+DYNAMIC_NORM+RESERVED", False, True, False),
        ("mixed+completing", False, True, False),
        ("idle+drain", True, True, True),
        ("idle+not_responding", False, False, True),
        ("down", False, False, True),
        ("unknown", False, False, False),
        ("unknown+not_responding", False, False, False),
        ("down+drain+invalid_reg", True, False, True),
        ("idle+cloud+powered_down", False, False, False),
        ("idle+cloud+powering_up", False, False, False),
        ("mixed+cloud+not_responding+powering_up", False, False, False),
        ("down+cloud+powering_up", False, False, True),
    ],
)
def test_a_state_says_what_can_be_expected_of_a_host(state: str, drained: bool, serves: bool, broken: bool) -> None:
    node = parse_nodes(line("host1", state, "gpu:4", "none"))["host1"]
    assert (node.is_drained, node.is_serving, node.is_broken) == (drained, serves, broken)


def test_a_reason_may_have_anything_in_it_and_warnings_are_not_hosts() -> None:
    text = "sinfo: warning: something\n" + line("host1", "idle", "(null)", "none")
    text += 2 * line("host2", "down+drain", "gpu:a:2(S:0)", "fan | broken, 2nd time")
    found = parse_nodes(text)
    assert set(found) == {"host1", "host2"}
    assert (found["host1"].gres, found["host1"].reason) == ("", "")
    assert found["host2"].reason == "fan | broken, 2nd time"
    assert found["host2"].description == "down+drain, Gres gpu:a:2(S:0), fan | broken, 2nd time"


def test_jobs_are_told_with_their_reservation() -> None:
    text = "17|root|night.4x1.0a|RUNNING\nslurm_load_jobs: a warning\n18|nobody|(null)|COMPLETING\n"
    assert parse_jobs(text) == (
        HostJob("17", "root", "night.4x1.0a", "RUNNING"),
        HostJob("18", "nobody", "", "COMPLETING"),
    )


def test_reservations_are_told_with_their_hosts() -> None:
    assert parse_reservations(RESERVED) == {
        "night.4x1.0a": Reservation("night.4x1.0a", frozenset({"dyn1", "dyn2"}), "2026-11-21T10:39:57", True),
        "course": Reservation("course", frozenset(), "2026-11-22T08:00:00", False),
    }
    assert parse_reservations("No reservations in the system\n") == {}
