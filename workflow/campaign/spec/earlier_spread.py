"""How much compositions differed in earlier campaigns on the same system: what cells borrow that were composed once.

A campaign's results keep it in plan/earlier_spread.json (`earlier-spread/1`), so that its page needs nothing from elsewhere.
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
    """How much compositions differed, over the cells of one workload in one campaign.

    variance: that of the logarithm of a cell's mean on one composition, with its degrees of freedom. per_run: mean of one
    over the number of these runs. metric: what was measured.
    """

    campaign: str
    workload: str
    metric: str
    variance: float
    freedom: float
    per_run: float

    @property
    def usable(self) -> bool:
        return all(map(math.isfinite, (self.variance, self.freedom, self.per_run))) and self.freedom > 0


def parse_spreads(rows: Any) -> tuple[EarlierSpread, ...]:
    """Parse spreads from JSON; damaged rows give none, which only makes statements more careful."""
    try:
        all_spreads = tuple(EarlierSpread(**row) for row in rows)
        return tuple(spread for spread in all_spreads if spread.usable)
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
