"""Native, virtual, mixed, remote and partial devices as configurations of one campaign, from its files to what a report says."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from typing import Any

from campaign.spec.record import RecordStore
from tests.launch_client import LEND, asked, install
from tests.workflow.checkout_twin import Project

SAY = 'echo "devices: ${LENT_DEVICES-0}"; echo "part: ${LENT_PART-1}"; echo "threads: ${THREADS-100}"; echo rate: 10'


def remote_campaign(project: Project) -> None:
    layer = {"device": "virtual", "prefix": list(LEND)}
    project.write(
        "systems/bench.yaml",
        {
            "name": "bench",
            "launcher": "local",
            "fabric": {
                "kind": "prefix",
                "launch": [
                    {**layer, "where": "local", "of": "native"},
                    {**layer, "where": "pool"},
                    {"device": "quarter", "of": "virtual", "fraction": "5/20", "prefix": list(LEND)},
                    {"device": "shared", "fraction": "1/2", "environment": {"THREADS": "{percent}"}},
                ],
            },
            "hosts": [
                {"name": "host1", "devices": [{"model": m, "count": n} for m, n in (("native", 2), ("virtual", 2), ("shared", 1))]},
                {"name": "host2"},
            ],
            "pool": [{"model": model, "count": 2, "drawer": "host2"} for model in ("virtual", "quarter")],
            "devices": {model: {"runs_on": "cpu"} for model in ("native", "virtual", "quarter", "shared")},
        },
    )  # fmt: skip
    parsers = [
        {"metric": "throughput_per_s", "regex": r"rate: (\S+)"},
        {"metric": "given_count", "regex": r"devices: (\S+)"},
        {"metric": "part_count", "regex": r"part: (\S+)"},
        {"metric": "threads_pct", "regex": r"threads: (\S+)"},
    ]
    project.write(
        "workloads/ranks.yaml",
        {"name": "ranks", "kind": "command", "launch": "per_rank", "precisions": ["fp32"], "parsers": parsers,
         "command": ["sh", "-c", SAY.replace("{", "{{").replace("}", "}}")]},
    )  # fmt: skip
    project.write(
        "c.yaml",
        {
            "name": "c",
            "system": "bench",
            "configurations": [
                {"name": "N2", "device": "native", "devices_per_host": 2},
                {"name": "L1R1", "device": "virtual", "devices_per_host": 2, "attach": "hybrid"},
                {"name": "5of20", "device": "quarter", "devices_per_host": 2, "attach": "fabric"},
                {"name": "half", "device": "shared", "devices_per_host": 2},
            ],
            "axes": {"workload": "ranks", "batch": 1},
            "protocol": {"repetitions": 1},
        },
    )


def test_local_remote_and_partial_devices_are_configurations_like_any_other(project: Project) -> None:
    log = install(project.directory)
    project.environment["PATH"] = f"{log.parent / 'bin'}{os.pathsep}{project.environment['PATH']}"
    remote_campaign(project)
    project.write_tables()
    records = project.records()
    assert [record.status for record in records] == ["ok"] * 4, [record.failure for record in records]
    given = {
        record.cell.configuration: tuple(record.metrics[name] for name in ("given_count", "part_count", "threads_pct"))
        for record in records
    }
    assert given == {
        "N2": (0, 1, 100), "L1R1": (1, 1, 100), "5of20": (1, 0.25, 100), "half": (0, 1, 50),
    }  # fmt: skip

    # Every rank behind the layer has asked it for its one device.
    starts: defaultdict[str, list[str]] = defaultdict(list)
    for line in asked(log):
        starts[line["run"].split("/")[1]].append(line["asked"])
    whole, quarter = "1 1", "1 0.25"
    assert starts == {"L1R1.c1": [whole] * 2, "5of20.c1": [quarter] * 2}

    # A record says what was used, and how.
    store = RecordStore(project.results().directory)
    used = {
        record.cell.configuration: store.read_shared_document(record.composition)["hosts"][0]["devices"]
        for record in records
    }
    assert [[device.get("launch", {}).get("device") for device in used[name]] for name in ("N2", "L1R1")] == [
        [None, None], ["host1/gpu0", "host2/gpu0"],
    ]  # fmt: skip
    parts: list[dict[str, Any]] = [device["launch"] for device in used["5of20"]]
    assert [(part["device"], part["fraction"], part["prefix"]) for part in parts] == [
        ("host2/gpu0", "1/4", list(LEND))
    ] * 2
    assert [lease["mismatches"] for lease in project.leases()] == [[]] * 4

    notes = json.loads((project.results().directory / "tables" / "context.json").read_text())["notes"]
    said = "Remote devices of model 'quarter' are used through a prefix and variables: `lend {devices} {fraction}"
    assert any(note.startswith(said) and "each is 5/20 of a device, 4 share one" in note for note in notes)
    project.await_quiet()
