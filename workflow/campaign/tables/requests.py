"""The table of requests: every request of every run of a service."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import pandas as pd

from campaign.tables.columns import REQUESTS, types
from campaign.tables.io import typed

if TYPE_CHECKING:
    from campaign.documents.record import Record

COLUMNS = types(REQUESTS)


def requests_table(records: Iterable[Record]) -> pd.DataFrame:
    """One row a request, by intended start inside of each run; also of invalid runs, in which too many failed."""
    columns: dict[str, list[Any]] = {name: [] for name in COLUMNS}
    for record in records:
        if record.requests is None:
            continue
        found = {name: getattr(record.requests, name) for name in type(record.requests).model_fields}
        count = len(record.requests.intended_s)
        found |= {"cell_id": [record.cell_id] * count, "repetition": [record.repetition] * count}
        for name, values in columns.items():
            values.extend(found[name])
    return pd.DataFrame({name: typed(columns[name], kind) for name, kind in COLUMNS.items()})
