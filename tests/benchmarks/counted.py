"""A program of its own: drives a lease in this process and prints what that took in operations, as JSON.

Arguments: campaign file, results directory. Counts are per event: processes started, files forced to disk, files opened for
each purpose; `loaded` are the modules that a driver could do without.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from campaign.common.paths import Results
from campaign.plan.campaign.resolve import load_campaign
from campaign.run.driver import Driver
from campaign.spec.driver_messages import DriverRequest, DriverResult
from campaign.spec.hardware import ComposedHost, Composition
from tests.planned_leases import plans_of, written_plan

DISPENSABLE = ("pandas", "pyarrow", "scipy", "matplotlib", "torch", "snakemake")


def main(campaign_path: Path, root: Path) -> None:
    """Measure the campaign's only configuration, counting."""
    campaign = load_campaign(campaign_path)
    results = Results(root.resolve(), campaign.name)
    (lease,) = plans_of(campaign)
    plan = str(written_plan(campaign, results, lease))
    composition = Composition((ComposedHost("host1", 8, 64, devices=(), storage=()),))
    driver = Driver(
        DriverRequest(plan, str(results.root), campaign.name, lease, "counted.1", composition.document(), (), "a1")
    )
    results.progress_file.parent.mkdir(parents=True, exist_ok=True)
    counts: Counter[str] = Counter()
    forced = os.fsync

    def fsync(descriptor: int) -> None:
        counts["forced"] += 1
        forced(descriptor)

    def count(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "subprocess.Popen":
            counts["processes"] += 1
        elif event == "open" and str(arguments[0]).startswith("/proc/") and str(arguments[0]).endswith("environ"):
            counts["environments read"] += 1
        elif event == "open":
            counts["opened"] += 1

    os.fsync = fsync
    sys.addaudithook(count)
    error = DriverResult.from_document(driver()).error
    sys.stdout.write(json.dumps({"error": str(error or ""), "counts": counts, "loaded": loaded()}) + "\n")


def loaded() -> list[str]:
    """Dispensable modules that this process has loaded."""
    return [name for name in DISPENSABLE if name in sys.modules]


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
