"""Spread between compositions in earlier campaigns on the same system, used for cells that were composed only once.

The results of a campaign contain it in plan/earlier_spread.json (`earlier-spread/1`), so that its report needs no other results.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from campaign.common.files import read_json, write_json

SCHEMA = "earlier-spread/1"


@dataclass(frozen=True, slots=True)
class EarlierSpread:
    """Spread between compositions over the cells of one workload in one campaign.

    Attributes:
        metric: measured metric.
        variance: variance of the logarithm of a cell's mean on one composition.
        freedom: degrees of freedom of the variance.
        per_run: mean of 1 / (number of runs behind such a mean).
    """

    campaign: str
    workload: str
    metric: str
    variance: float
    freedom: float
    per_run: float

    @property
    def is_usable(self) -> bool:
        return all(map(math.isfinite, (self.variance, self.freedom, self.per_run))) and self.freedom > 0


def parse_spreads(rows: Any) -> tuple[EarlierSpread, ...]:
    """Parse spreads from JSON. Returns no spreads if any row is damaged, which only makes conclusions more cautious."""
    try:
        all_spreads = tuple(EarlierSpread(**row) for row in rows)
        return tuple(spread for spread in all_spreads if spread.is_usable)
    except TypeError:
        return ()


def write_spreads(path: Path, system: str, spreads_to_write: Iterable[EarlierSpread]) -> None:
    """Write the spreads of a system to a file, or remove the file if there are none."""
    if rows := [asdict(spread) for spread in spreads_to_write]:
        write_json(path, {"schema_version": SCHEMA, "system": system, "spreads": rows}, indent=1)
    else:
        path.unlink(missing_ok=True)


def read_spreads(path: Path) -> Sequence[EarlierSpread]:
    """Read the spreads of earlier campaigns from a file."""
    document = read_json(path)
    return parse_spreads(document.get("spreads")) if document.get("schema_version") == SCHEMA else ()
