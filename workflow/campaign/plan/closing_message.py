"""Message at the end of a Snakemake invocation whose leases failed. It lists the causes after Snakemake's own messages."""

from __future__ import annotations

import atexit
import os
import sys
import time
from collections.abc import Collection, Iterator

from campaign.common.files import read_json
from campaign.common.paths import Results
from campaign.common.processes.marked import INVOCATION_VARIABLE
from campaign.common.wording import escape_control_characters, pluralize, shorten_names

_MAX_CAUSES = 3


def print_causes_at_exit(results: Results, systems: Collection[str]) -> None:
    """Register a handler that explains at exit why runs have no record, if leases fail from now on."""
    atexit.register(_print_causes, results, systems, time.time())


def _print_causes(results: Results, systems: Collection[str], since_s: float) -> None:
    for line in list_causes(results, systems, os.environ.get(INVOCATION_VARIABLE, ""), since_s):
        print(escape_control_characters(line), file=sys.stderr)


def list_causes(results: Results, systems: Collection[str], invocation: str, since_s: float) -> Iterator[str]:
    """Yield the lines of the message, with one line per cause and the most frequent cause first.

    Args:
        results: results directory.
        systems: names of the campaign's systems.
        invocation: token of the Snakemake process that starts leases.
        since_s: Unix time; older manifests do not belong to this invocation.
    """
    checks = {name: read_json(results.site_check_file(name)) for name in systems}
    stops = {name: check["stops"] for name, check in checks.items() if check.get("invocation") == invocation}
    for name, words in stops.items():
        if words:
            yield f"error: system {name}: no lease can be measured: {'; '.join(words)}"
    missing, leases = 0, dict[str, list[str]]()
    for path in sorted(results.manifests.rglob("*.json")):
        if path.stat().st_mtime >= since_s and (manifest := read_json(path)).get("missing"):
            missing += len(manifest["missing"])
            leases.setdefault(manifest["reason"] or "the driver did not get to them", []).append(manifest["lease"])
    if not leases:
        return
    yield f"planned runs without a record: {missing:,}; run the same command again to measure them. Reasons:"
    causes = sorted(leases.items(), key=lambda cause: -len(cause[1]))
    for reason, names in causes[:_MAX_CAUSES]:
        yield f"  {shorten_names(names)}: {reason}"
    if len(causes) > _MAX_CAUSES:
        yield f"  and {pluralize(len(causes) - _MAX_CAUSES, 'other reason')}; 'campaign status' lists them"
