"""The parent of ranks (`campaign.workloads.trainer.forkserver`), whose ranks measure blocks of our steps and of a bare
loop's by turns.

All before the window is as ever. A rank leaves `blocks<r>.json` beside its result: {"ours", "bare"}, step times of each block in
seconds. The number of blocks is in the environment, their length is the specification's number of measured steps.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

from campaign.workloads.trainer import forkserver

BLOCKS = "BENCHMARK_BLOCKS"


def by_turns(original: Callable[..., Any]) -> Callable[..., Any]:
    """Measures as `original` does, many times, and a bare loop of the same training between."""

    def measure(step: Callable[[], Any], steps: int, clock: Any, barrier: Callable[[], None], **more: Any) -> Any:
        from campaign.workloads.trainer.rank_interface import RankEnvironment
        from campaign.workloads.trainer.timed_steps import CpuClock
        from tests.benchmarks.bare import Bare

        place = RankEnvironment.from_environment(os.environ)
        training = step.__self__  # type: ignore[attr-defined]
        # On the very same weights: where a copy of them lies in memory makes a difference of a percent.
        bare = Bare(
            training.model,
            training.strategy.optimizer,
            training.feed(),
            training.spec.precision,
        )

        def ours_s() -> list[float]:
            return list(original(step, steps, CpuClock(), barrier, **more).step_times_s)

        def bare_s() -> list[float]:
            barrier()
            times_s = bare.step_times_s(steps)
            barrier()
            return times_s

        blocks: dict[str, list[list[float]]] = {"ours": [], "bare": []}
        for block in range(int(os.environ[BLOCKS])):
            pair = [("ours", ours_s), ("bare", bare_s)]
            for name, measured_s in pair if block % 2 else pair[::-1]:
                blocks[name].append(measured_s())
        (place.results_directory / f"blocks{place.rank}.json").write_text(json.dumps(blocks))
        return original(step, steps, clock, barrier, **more)

    return measure


def main() -> int:
    """See `campaign.workloads.trainer.forkserver`."""
    from campaign.workloads.trainer import training_session

    training_session.measure_steps = by_turns(training_session.measure_steps)  # type: ignore[assignment]
    return forkserver.main()


if __name__ == "__main__":
    sys.exit(main())
