"""Tables of a campaign, in memory (`Tables`) and as the files of a directory `tables/`.

Everything after the tables (figures, report, comparison, recommendation, queries) reads these alone. Frames have a fixed order
and type of columns, also if they are empty, so that files are equal byte for byte.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import pandas as pd
import pyarrow as pa
import pyarrow.csv
from pydantic import BaseModel

from campaign.analysis.statistics import comparisons
from campaign.analysis.statistics.comparisons import Design
from campaign.common.errors import RecordError
from campaign.common.files import load_json, make_directory, open_regular, reject_damaged_document
from campaign.common.wording import neutralize_formula
from campaign.spec.earlier_spread import EarlierSpread
from campaign.spec.kept_lease import checked_lease
from campaign.spec.metric import metric_of

# Kinds of columns: text without missing values, whole numbers, numbers that may be missing (nan), and yes or no.
TEXT, COUNT, NUMBER, FLAG = "text", "count", "number", "flag"
_ROWS_TOGETHER = 1000


def frame(rows: Iterable[Mapping[str, Any]], fixed: Mapping[str, str], computed: Mapping[str, Any]) -> pd.DataFrame:
    """Build a frame with the fixed columns in their order, then options, then all others by name; typed, also if empty.

    Args:
        rows: rows of the frame.
        fixed: kind of each fixed column.
        computed: values of columns that replace those of the rows.
    """
    found: dict[str, list[Any]] = {name: [] for name in fixed}
    count, rest = 0, iter(rows)
    # Rows are processed in batches. All rows as mappings are much larger than their columns, and single rows take twice as long.
    while some := list(islice(rest, _ROWS_TOGETHER)):
        for name in dict.fromkeys(name for row in some for name in row):
            column = found.setdefault(name, [])
            column.extend([None] * (count - len(column)))
            column.extend([row.get(name) for row in some])
        count += len(some)
    for column in found.values():
        column.extend([None] * (count - len(column)))
    options = sorted(name for name in found if name.startswith("option_"))
    columns: dict[str, Any] = {}
    for name, kind in fixed.items():
        values = found.pop(name)
        columns[name] = typed(computed.get(name, values), kind)
        if name == "precision":
            columns.update({option: _option(found.pop(option)) for option in options})
    columns.update({name: typed(found.pop(name), NUMBER) for name in sorted(found)})
    return pd.DataFrame(columns)


def typed(values: Any, kind: str) -> pd.Series[Any]:
    """Build a column of one kind from values; None becomes empty text, or nan."""
    if kind == TEXT:
        return pd.Series(["" if value is None else str(value) for value in values], dtype="str")
    if kind == COUNT:
        return pd.Series(values, dtype="int64")
    return pd.Series(values, dtype="bool" if kind == FLAG else "float64")


def _option(values: list[Any]) -> pd.Series[Any]:
    """Build the column of an option; numbers stay numbers, and mixed or missing values become text."""
    kinds = {type(value) for value in values}
    return typed(values, COUNT if kinds == {int} else NUMBER if kinds <= {int, float} else TEXT)


DOCUMENTS = ("leases", "links", "context")
_KEYS = ("cell_id", "configuration", "workload", "batch", "precision")
SERIES = ("telemetry", "steps", "reference")
"""Tables that are not for people to read: those with many rows per run, and the runs of the reference."""


@dataclass(frozen=True)
class Tables:
    """Tables of a campaign. `campaign.analysis.tables.columns` describes their columns."""

    runs: pd.DataFrame
    cells: pd.DataFrame
    leases: Sequence[Mapping[str, Any]]
    links: Sequence[Mapping[str, Any]]
    context: Mapping[str, Any]
    telemetry: pd.DataFrame = field(default_factory=pd.DataFrame)
    steps: pd.DataFrame = field(default_factory=pd.DataFrame)
    reference: pd.DataFrame = field(default_factory=pd.DataFrame)

    @cached_property
    def design(self) -> Design:
        """Experiment design of the campaign, which all comparisons use."""
        return comparisons.of_campaign(self.runs, self.context.get("campaign", {}), self.reference)

    def spread_of_compositions(self, system: str = "") -> tuple[EarlierSpread, ...]:
        """Summarize the spread of compositions by workload, for later campaigns on the system.

        Args:
            system: name of the system, if the campaign has several.
        """
        about, runs = self.context["campaign"], self.runs
        by = comparisons.design(
            runs[runs["system"] == system] if system else runs, higher=metric_of(self.context).higher
        )
        return by.spread_of_compositions(str(about["name"]), metric_of(self.context).name)

    @property
    def name(self) -> str:
        """Name of the campaign."""
        return str(self.context["campaign"]["name"])


def write(tables: Tables, directory: Path) -> None:
    """Write all tables to a directory. Raises RecordError or OSError if that is not possible."""
    write_tables(directory, tables.runs, tables.cells)
    for name in SERIES:
        table: pd.DataFrame = getattr(tables, name)
        table.to_parquet(directory / f"{name}.parquet", engine="pyarrow", compression="zstd", index=False)
    for name in DOCUMENTS:
        text = json.dumps(getattr(tables, name), indent=1, sort_keys=True, ensure_ascii=False)
        (directory / f"{name}.json").write_text(text + "\n", encoding="utf-8")


def read(directory: Path) -> Tables:
    """Read the tables from a directory. Raises RecordError with the name of an unreadable file."""
    with reject_damaged_document(directory, "its tables are damaged; delete them and run again"):
        runs, cells = (_read_parquet(directory / f"{name}.parquet") for name in ("runs", "cells"))
        leases, links, context = (load_json(directory / f"{name}.json") for name in DOCUMENTS)
        # A site of campaigns keeps only the reference among these.
        paths = [directory / f"{name}.parquet" for name in SERIES]
        series = [_read_parquet(path) if path.exists() else pd.DataFrame() for path in paths]
        runs[[*_KEYS, "status"]], cells[[*_KEYS, "state"]]
        leases = [checked_lease(each) for each in leases]
        links = [{**each, "document": dict(each["document"])} for each in links]
        Context.model_validate(context)
        if context.get("prediction"):
            raise RecordError(f"{directory}: its numbers are predictions of an earlier version, which are not shown")
    return Tables(runs, cells, leases, links, context, *series)


def _read_parquet(path: Path) -> pd.DataFrame:
    with open_regular(path) as file:
        return pd.read_parquet(file)


class _CampaignContext(BaseModel):
    """Section of the context on the campaign."""

    name: str
    baseline: str | None = None
    protocol: dict[str, Any] = {}
    metric: dict[str, Any] = {}


class Context(BaseModel):
    """Validated part of the report's context that other readers than the page use, with the same types as on the page."""

    campaign: _CampaignContext
    campaign_yaml: str = ""
    conditions: list[str] = []
    environments: dict[str, dict[str, Any]] = {}
    excluded: list[dict[str, Any]] = []
    flags: dict[str, str] = {}
    forecast: list[dict[str, Any]] = []
    hosts_left_out: list[dict[str, Any]] = []
    launchers: dict[str, int] = {}
    notes: list[str] = []
    references: list[dict[str, Any]] = []
    schema_versions: dict[str, str] = {}
    software: list[dict[str, Any]] = []
    system: dict[str, Any] = {}


def write_csv(table: pd.DataFrame, to: Path | BinaryIO) -> None:
    """Write a table as CSV with quoted texts. Arrow takes a fifth of the time of pandas."""
    mixed = {str(name): table[name].map(str, na_action="ignore") for name in table if table[name].dtype == object}
    safe = neutralize_formulas(table.assign(**mixed))
    pyarrow.csv.write_csv(pa.Table.from_pandas(safe, preserve_index=False), to)


def neutralize_formulas(table: pd.DataFrame) -> pd.DataFrame:
    """Return the table with an apostrophe before each text that a spreadsheet would run as a formula. Numbers stay numbers."""
    safe = {}
    for name in table.columns:
        if not pd.api.types.is_numeric_dtype(table[name].dtype):
            texts = [value for value in table[name].dropna().unique() if isinstance(value, str)]
            if formulas := {text: safe_text for text in texts if (safe_text := neutralize_formula(text)) != text}:
                safe[str(name)] = table[name].map(lambda value, formulas=formulas: formulas.get(value, value))
    return table.assign(**safe)


def write_tables(directory: Path, runs: pd.DataFrame, cells: pd.DataFrame) -> None:
    """Write runs and cells as Parquet (types kept) and CSV (for people). Raises RecordError if that is not possible."""
    try:
        make_directory(directory)
        for name, table in (("runs", runs), ("cells", cells)):
            table.to_parquet(directory / f"{name}.parquet", engine="pyarrow", compression="zstd", index=False)
            write_csv(table, directory / f"{name}.csv")
    except OSError as error:
        raise RecordError(f"{directory}: tables could not be written ({error.strerror or error})") from error
