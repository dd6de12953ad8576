"""All tables of a campaign together: in memory, and as the files of a directory `tables/`.

runs, cells: frames of `campaign.tables.build`. telemetry: what was sampled over time (`campaign.tables.time_series`).
leases, links and
context: documents, JSON-serialisable. What is right of the tables (figures, report, comparison, recommendation, queries) reads
these alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from campaign.errors import RecordError
from campaign.tables.build import write_tables

DOCUMENTS = ("leases", "links", "context")


@dataclass(frozen=True)
class Tables:
    """See the module."""

    runs: pd.DataFrame
    cells: pd.DataFrame
    leases: Sequence[Mapping[str, Any]]
    links: Sequence[Mapping[str, Any]]
    context: Mapping[str, Any]
    telemetry: pd.DataFrame = field(default_factory=pd.DataFrame)

    @property
    def name(self) -> str:
        """The campaign's."""
        return str(self.context["campaign"]["name"])


def write(tables: Tables, directory: Path) -> None:
    """Write all tables; RecordError or OSError when that is not possible."""
    write_tables(directory, tables.runs, tables.cells)
    tables.telemetry.to_parquet(directory / "telemetry.parquet", engine="pyarrow", compression="zstd", index=False)
    for name in DOCUMENTS:
        text = json.dumps(getattr(tables, name), indent=1, sort_keys=True, ensure_ascii=False)
        (directory / f"{name}.json").write_text(text + "\n", encoding="utf-8")


def read(directory: Path) -> Tables:
    """The tables in a directory; RecordError names what cannot be read."""
    try:
        runs, cells = (pd.read_parquet(directory / f"{name}.parquet") for name in ("runs", "cells"))
        leases, links, context = (json.loads((directory / f"{name}.json").read_bytes()) for name in DOCUMENTS)
        sampled = directory / "telemetry.parquet"
        telemetry = pd.read_parquet(sampled) if sampled.exists() else pd.DataFrame()
    except (OSError, ValueError) as error:
        raise RecordError(f"{directory}: the tables cannot be read ({error}); delete them and run again") from error
    return Tables(runs, cells, leases, links, context, telemetry)
