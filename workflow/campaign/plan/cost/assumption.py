"""Times that a person assumes where nothing was measured yet: '10 min a run', 'bert-large: 2 h a run, 30 s to compose'. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from campaign.errors import ConfigError

_SECONDS = {"s": 1.0, "min": 60.0, "h": 3600.0}
_PART = re.compile(
    r"\s*(?:(?P<workload>[\w.+-]+)\s*:)?\s*(?P<amount>\d+(?:\.\d*)?|\.\d+)\s*(?P<unit>s|min|h)\s+(?P<what>a run|to compose)\s*"
)


@dataclass(frozen=True)
class Assumption:
    """Seconds of a run, of all workloads or of one by its name, and of composing a lease; as it was written, empty for nothing."""

    text: str = ""
    run_s: float | None = None
    run_of_s: Mapping[str, float] = field(default_factory=dict)
    compose_s: float | None = None

    def __str__(self) -> str:
        return self.text

    def of_run(self, workload: str) -> float | None:
        return self.run_of_s.get(workload, self.run_s)


NOTHING_ASSUMED = Assumption()


def parse_assumption(text: str) -> Assumption:
    """ConfigError for what is no time of a run or of composing."""
    found: dict[tuple[str, str], float] = {}
    for part in text.split(","):
        match = _PART.fullmatch(part)
        if match is None or not float(match["amount"]) or (match["workload"] and match["what"] == "to compose"):
            raise ConfigError(
                f"--assume: '{part.strip()}' is no time; write '10 min a run', 'bert-large: 2 h a run' or '30 s to compose' "
                "(s, min or h), several with commas"
            )
        key = match["what"], match["workload"] or ""
        if key in found:
            raise ConfigError(f"--assume: '{text}' has two times: {' of '.join(filter(None, key))}; leave one out")
        found[key] = float(match["amount"]) * _SECONDS[match["unit"]]
    runs = {workload: seconds for (what, workload), seconds in found.items() if what == "a run"}
    written = ", ".join(part.strip() for part in text.split(","))
    return Assumption(written, runs.pop("", None), runs, found.get(("to compose", "")))
