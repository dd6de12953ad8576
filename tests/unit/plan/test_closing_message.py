"""The last words of an invocation: what kept runs from being measured in it, and nothing of earlier ones."""

from __future__ import annotations

import os
from pathlib import Path

from campaign.common.files import write_json
from campaign.common.paths import Results
from campaign.plan.closing_message import list_causes


def put_manifest(results: Results, lease: str, missing: int, reason: str, time_s: float = 1000.0) -> None:
    path = results.manifest_file(lease)
    write_json(path, {"lease": lease, "runs": 4, "missing": [["cell", n] for n in range(missing)], "reason": reason})
    os.utime(path, (time_s, time_s))


def test_causes_are_grouped_and_those_of_earlier_invocations_are_left_out(tmp_path: Path) -> None:
    results = Results(tmp_path, "c")
    put_manifest(results, "1x8.c1", 1, "no host fits")
    for number in range(4):
        put_manifest(results, f"1x{number}.c1", 2, "HTTP 500")
    put_manifest(results, "2x1.c1", 4, "HTTP 400", time_s=900.0)
    put_manifest(results, "2x2.c1", 0, "")
    assert list(list_causes(results, ["lab"], "now", 950.0)) == [
        "planned runs without a record: 9; run the same command again to measure them. Reasons:",
        "  1x0.c1, 1x1.c1, 1x2.c1 and 1 more: HTTP 500",
        "  1x8.c1: no host fits",
    ]


def test_what_stops_all_leases_of_a_system_is_named_with_it(tmp_path: Path) -> None:
    results = Results(tmp_path, "c")
    write_json(results.site_check_file("lab"), {"invocation": "now", "stops": ["answer: HTTP 400"]})
    write_json(results.site_check_file("hall"), {"invocation": "earlier", "stops": ["answer: HTTP 500"]})
    expected = ["error: system lab: no lease can be measured: answer: HTTP 400"]
    assert list(list_causes(results, ["lab", "hall"], "now", 0.0)) == expected
    assert not list(list_causes(results, ["hall"], "now", 0.0))
