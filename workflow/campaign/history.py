"""Times of earlier runs and compositions: what a plan's estimates rest on."""

from __future__ import annotations

import json
import math
import statistics
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeGuard

from campaign.paths import Results

ASSUMED_RUN_S = 10.0
ASSUMED_COMPOSE_S = 5.0


@dataclass(frozen=True)
class History:
    """Times of earlier runs and compositions, from manifests: what an estimate rests on."""

    run_s: Mapping[tuple[str, str], float] = field(default_factory=dict)
    """Median wall time of a run by (workload, lease)."""
    compose_s: Mapping[str, float] = field(default_factory=dict)
    """Time to compose and release by lease."""

    def run(self, workload: str, lease: str) -> tuple[float, str]:
        """Expected wall time of a run, and what that rests on."""
        if (workload, lease) in self.run_s:
            return self.run_s[workload, lease], "earlier runs of this workload here"
        if workload in self._run_median_s:
            return self._run_median_s[workload], "earlier runs of this workload elsewhere"
        return ASSUMED_RUN_S, f"assumed {ASSUMED_RUN_S:g} s a run"

    def compose(self, lease: str, needs_fabric: bool) -> float:
        if not needs_fabric:
            return 0.0
        if lease in self.compose_s:
            return self.compose_s[lease]
        return self._compose_median_s

    # Once for all leases: a plan may have as many leases as cells.
    @cached_property
    def _run_median_s(self) -> dict[str, float]:
        by_workload: dict[str, list[float]] = defaultdict(list)
        for (workload, _), seconds in self.run_s.items():
            by_workload[workload].append(seconds)
        return {workload: statistics.median(seconds) for workload, seconds in by_workload.items()}

    @cached_property
    def _compose_median_s(self) -> float:
        return statistics.median(self.compose_s.values()) if self.compose_s else ASSUMED_COMPOSE_S


def read_history(results: Results) -> History:
    """Times of earlier runs and compositions; damaged files only make estimates coarser."""
    run_s: dict[tuple[str, str], float] = {}
    compose_s: dict[str, float] = {}
    for path in sorted(results.manifests.glob("*/*.json"), key=lambda path: path.name):
        document = document_of(path)
        walls = document.get("run_wall_median_s")
        for workload, seconds in walls.items() if isinstance(walls, dict) else ():
            if _is_number(seconds):
                run_s[workload, document["lease"]] = seconds
    for path in sorted(results.leases.glob("*.json")):
        document = document_of(path)
        ready, requested = document.get("ready_s"), document.get("requested_s")
        if _is_number(ready) and _is_number(requested):
            compose_s[document["lease"]] = ready - requested
    return History(run_s, compose_s)


def document_of(path: Path) -> dict[str, Any]:
    """A manifest or lease document; empty for a file that is neither."""
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) and isinstance(document.get("lease"), str) else {}


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and math.isfinite(value)
