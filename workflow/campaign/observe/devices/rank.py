"""One process on one device: `python -m campaign.observe.devices.rank`, or forked by `campaign.workloads.trainer.forkserver`.

Environment: as of a rank of the trainer; CAMPAIGN_SPEC is the path of a CheckSpec. Leaves its CheckedDevice in `rank<r>.json`.
Until it is done, what it has is in `rank<r>.partial`: a step that ends the process costs itself and those after it.
"""

from __future__ import annotations

import faulthandler
import pkgutil
import time
from collections.abc import Mapping
from typing import NoReturn

from pydantic import ValidationError

from campaign.errors import ConfigError
from campaign.files import read_bytes, write_atomic
from campaign.observe.devices.document import CheckSpec, StepName, StepResult
from campaign.workloads.trainer.rank_interface import RankEnvironment, live, result_path

STEPS: Mapping[StepName, str] = {
    "state": "state:measure",
    "timers": "timers:measure",
    "products": "products:measure",
    "memory": "copies:measure_memory",
    "host link": "copies:measure_host_link",
    "precision": "precision_in_force:measure",
    "telemetry": "counters:measure",
    "repeatability": "repeatability:measure",
    "memory full": "full_memory:measure",
    "clean": "state:clean",
}
"""Step -> module here and its function, which takes a `bench.Bench` and gives a StepResult; they need torch."""


def main() -> NoReturn:
    """Run this process as one rank and end it."""
    live(_run)


def _run(environment: Mapping[str, str]) -> int:
    place = RankEnvironment.from_environment(environment)
    try:
        spec = CheckSpec.model_validate_json(read_bytes(place.spec))
    except (OSError, ValidationError) as error:
        raise ConfigError(f"{place.spec}: {error}") from error
    faulthandler.enable()
    from campaign.observe.devices.bench import open_bench

    whole, device = result_path(place.out, place.rank), spec.devices[place.rank]
    for name in spec.steps:
        started_s = time.perf_counter()
        try:
            bench = open_bench(spec, place)
            device = device.model_copy(update=bench.identity)
            found: StepResult = pkgutil.resolve_name(f"campaign.observe.devices.{STEPS[name]}")(bench)
        except Exception as error:  # a device that cannot do a step has failed it, and may do the others
            found = StepResult(step=name, faults=(f"{type(error).__name__}: {str(error).strip()[:300]}",))
        found = found.model_copy(update={"took_s": round(time.perf_counter() - started_s, 3)})
        device = device.model_copy(update={"steps": (*device.steps, found)})
        write_atomic(whole.with_suffix(".partial"), device.model_dump_json())
    whole.with_suffix(".partial").rename(whole)
    return 0


if __name__ == "__main__":
    main()
