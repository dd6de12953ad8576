"""A campaign on emulated hosts, from its system file to what its report says of the links: with the tools for it, and without."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from campaign.emulators.hosts.emulation_plan import NOT_EMULATED
from campaign.emulators.hosts.network import check_availability
from campaign.spec.record import RecordStore
from tests.workflow.checkout_twin import Project

# Sums what one TCP stream from the last rank to the first moves.
STREAM = """\
import os, socket, time
place = os.environ['MASTER_ADDR'], int(os.environ['MASTER_PORT'])
if os.environ['RANK'] == '0':
    stream, _ = socket.create_server(place).accept()
    started, size = time.monotonic(), 0
    while part := stream.recv(1 << 16):
        size += len(part)
    print('rate:', size / (time.monotonic() - started), flush=True)
else:
    for _ in range(200):
        try:
            stream = socket.create_connection(place, 5)
        except OSError:
            time.sleep(0.02)
        else:
            break
    stream.sendall(bytes(4_000_000))
    stream.close()
"""


def emulated_campaign(project: Project) -> None:
    project.system(pool=4)
    document = {
        "name": "bench",
        "launcher": "local",
        "fabric": {"kind": "simulated"},
        "hosts": [{"name": "host[1-2]", "devices": [{"kind": "gpu", "model": "cpu-rank", "count": 2}]}],
        "pool": [{"kind": "gpu", "model": "cpu-rank", "count": 2}],
        "devices": {"cpu-rank": {"runs_on": "cpu"}},
        "links": {"fabric": {"gb_per_s": 10.0}, "network": {"gb_per_s": 20.0}},
        "emulation": {"scale": 0.001},
    }
    project.write("systems/bench.yaml", document)
    project.write(
        "workloads/stream.yaml",
        {
            "name": "stream",
            "kind": "command",
            "launch": "per_rank",
            "command": ["python3", "-c", STREAM.replace("{", "{{").replace("}", "}}")],
            "precisions": ["fp32"],
            "parsers": [{"metric": "throughput_per_s", "regex": r"rate: (\S+)"}],
        },
    )
    shapes = [{"devices_per_host": 2, "attach": ["local", "fabric"]}, {"hosts": 2, "devices_per_host": 1}]
    axes = {"workload": "stream", "batch": 1}
    protocol = {"repetitions": 1, "compositions": 1, "telemetry_s": None}
    project.write(
        "c.yaml",
        {"name": "c", "system": "bench", "configurations": shapes, "axes": axes, "protocol": protocol},
    )


def notes(project: Project) -> list[str]:
    context: dict[str, Any] = json.loads((project.results().directory / "tables" / "context.json").read_text())
    return [note for note in context["notes"] if note.startswith("Links are")]


def gbit_per_s(project: Project) -> dict[str, float]:
    return {r.cell.configuration: (r.throughput_per_s or 0.0) * 8e-9 for r in project.records()}


def test_runs_meet_the_links_of_their_composition_and_the_report_says_how(project: Project) -> None:
    if reason := check_availability().reason:
        pytest.skip(reason)
    emulated_campaign(project)
    project.write_tables()
    rates = gbit_per_s(project)
    assert rates["1x2-local"] > 2 * rates["2x1-local"]
    assert rates["2x1-local"] == pytest.approx(0.16, rel=0.4)
    assert rates["1x2-fabric"] == pytest.approx(0.08, rel=0.4)
    (said,) = notes(project)
    assert "its host 0.08 Gbit/s" in said
    store = RecordStore(project.results().directory)
    for record in store:
        assert store.read_shared_document(record.composition)["links"]["emulated"] == check_availability().mode
        assert NOT_EMULATED not in record.flags
    project.await_quiet()


def test_where_hosts_cannot_be_emulated_the_runs_are_made_and_say_so(project: Project, tmp_path: Path) -> None:
    emulated_campaign(project)
    broken = tmp_path / "bin"
    broken.mkdir()
    (broken / "tc").write_text("#!/bin/sh\necho 'Error: Specified qdisc kind is unknown.' >&2\nexit 2\n")
    (broken / "tc").chmod(0o755)
    project.environment["PATH"] = f"{broken}:{project.environment['PATH']}"
    said = project.write_tables()
    assert "links are not emulated" in said
    records = project.records()
    assert [record.status for record in records] == ["ok"] * 3
    assert all(NOT_EMULATED in record.flags for record in records)
    assert all(rate > 0.5 for rate in gbit_per_s(project).values())
    (note,) = notes(project)
    assert "Links are not emulated" in note
    context = (project.results().directory / "tables" / "context.json").read_text()
    assert "all ranks shared one loopback" in context
