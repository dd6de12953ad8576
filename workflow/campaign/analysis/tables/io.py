"""Tables of a campaign, in memory (`Tables`) and as the files of a directory `tables/`.

All later stages (figures, report, comparison, recommendation, queries) read only these tables. Columns of frames have a fixed
order and type, also in empty frames, so that equal tables give identical files.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, islice
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
from campaign.spec.kept_lease import validate_lease
from campaign.spec.metric import read_primary_metric

# Kinds of columns: text without missing values, whole numbers, numbers that may be missing (nan), and yes or no.
TEXT, COUNT, NUMBER, FLAG = "text", "count", "number", "flag"
_BATCH_ROWS = 1000


def build_frame(
    rows: Iterable[Mapping[str, Any]], fixed: Mapping[str, str], computed_columns: Mapping[str, Any]
) -> pd.DataFrame:
    """Build a typed frame, even without rows: fixed columns in order, then options, then others by name.

    Args:
        rows: rows of the frame.
        fixed: kind of each fixed column.
        computed_columns: values of columns that replace those of the rows.
    """
    values_by_column: dict[str, list[Any]] = {name: [] for name in fixed}
    count, remaining_rows = 0, iter(rows)
    # Rows are processed in batches. All rows as mappings are much larger than their columns, and single rows take twice as long.
    while batch := list(islice(remaining_rows, _BATCH_ROWS)):
        for name in dict.fromkeys(chain.from_iterable(batch)):
            column = values_by_column.setdefault(name, [])
            column.extend([None] * (count - len(column)))
            column.extend([row.get(name) for row in batch])
        count += len(batch)
    for column in values_by_column.values():
        column.extend([None] * (count - len(column)))
    options = sorted(name for name in values_by_column if name.startswith("option_"))
    columns: dict[str, Any] = {}
    for name, kind in fixed.items():
        values = values_by_column.pop(name)
        columns[name] = build_column(computed_columns.get(name, values), kind)
        if name == "precision":
            columns.update({option: _build_option_column(values_by_column.pop(option)) for option in options})
    columns.update({name: build_column(values_by_column.pop(name), NUMBER) for name in sorted(values_by_column)})
    return pd.DataFrame(columns)


def build_column(values: Any, kind: str) -> pd.Series[Any]:
    """Build a column of one kind from values; None becomes an empty text or nan."""
    if kind == TEXT:
        return pd.Series(["" if value is None else str(value) for value in values], dtype="str")
    if kind == COUNT:
        return pd.Series(values, dtype="int64")
    return pd.Series(values, dtype="bool" if kind == FLAG else "float64")


def _build_option_column(values: list[Any]) -> pd.Series[Any]:
    """Build the column of an option; numbers stay numbers, and mixed or missing values become text."""
    kinds = {type(value) for value in values}
    return build_column(values, COUNT if kinds == {int} else NUMBER if kinds <= {int, float} else TEXT)


DOCUMENT_NAMES = ("leases", "links", "context")
_KEY_COLUMNS = ("cell_id", "configuration", "workload", "batch", "precision")
SERIES_NAMES = ("telemetry", "steps", "reference")
"""Tables without a CSV file: those with many rows per run, and the runs of the reference."""


@dataclass(frozen=True)
class Tables:
    """Tables of a campaign, with the columns described in `campaign.analysis.tables.columns`."""

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
        return comparisons.build_campaign_design(self.runs, self.context.get("campaign", {}), self.reference)

    def summarize_composition_spread(self, system: str = "") -> tuple[EarlierSpread, ...]:
        """Summarize the spread of compositions by workload, for later campaigns on the system.

        Args:
            system: name of the system, if the campaign has several.
        """
        campaign, runs = self.context["campaign"], self.runs
        design = comparisons.build_design(
            runs[runs["system"] == system] if system else runs,
            higher_is_better=read_primary_metric(self.context).is_higher_better,
        )
        return design.summarize_composition_spread(str(campaign["name"]), read_primary_metric(self.context).name)

    @property
    def name(self) -> str:
        """Name of the campaign."""
        return str(self.context["campaign"]["name"])


def write_all_tables(tables: Tables, directory: Path, written_series: Collection[str] = ()) -> None:
    """Write all tables to a directory. Raises RecordError or OSError if this fails.

    Args:
        tables: the tables.
        directory: directory to write to.
        written_series: names of tables that were written with `write_series_table` and are not in `tables`.
    """
    write_runs_and_cells(directory, tables.runs, tables.cells)
    for name in SERIES_NAMES:
        if name not in written_series:
            write_series_table(directory, name, getattr(tables, name))
    for name in DOCUMENT_NAMES:
        text = json.dumps(getattr(tables, name), indent=1, sort_keys=True, ensure_ascii=False)
        (directory / f"{name}.json").write_text(text + "\n", encoding="utf-8")


def write_series_table(directory: Path, name: str, table: pd.DataFrame) -> None:
    """Write a table that has no CSV form as Parquet. Raises RecordError if this fails."""
    with _convert_os_error(directory):
        make_directory(directory)
        _write_parquet(directory, name, table)


def read_tables(directory: Path) -> Tables:
    """Read the tables from a directory. Raises RecordError, which names the file, if one is unreadable."""
    with reject_damaged_document(directory, "the tables are damaged; delete them and run the command again"):
        runs, cells = (_read_parquet(directory / f"{name}.parquet") for name in ("runs", "cells"))
        leases, links, context = (load_json(directory / f"{name}.json") for name in DOCUMENT_NAMES)
        # A site of campaigns keeps only the reference among these.
        paths = [directory / f"{name}.parquet" for name in SERIES_NAMES]
        # As text, the ids of cells would be most of the steps, which have by far the most rows.
        series = [
            _read_parquet(path, ["cell_id"] if path.stem == "steps" else []) if path.exists() else pd.DataFrame()
            for path in paths
        ]
        runs[[*_KEY_COLUMNS, "status"]], cells[[*_KEY_COLUMNS, "state"]]
        leases = [validate_lease(document) for document in leases]
        links = [{**document, "document": dict(document["document"])} for document in links]
        ReportContext.model_validate(context)
        if context.get("prediction"):
            raise RecordError(
                f"{directory}: the tables hold predictions of an earlier version, which are no longer supported"
            )
    return Tables(runs, cells, leases, links, context, *series)


def _read_parquet(path: Path, category_columns: Sequence[str] = ()) -> pd.DataFrame:
    with open_regular(path) as file:
        return pd.read_parquet(file, read_dictionary=list(category_columns))


class _CampaignSection(BaseModel):
    """Section of the context on the campaign."""

    name: str
    baseline: str | None = None
    protocol: dict[str, Any] = {}
    metric: dict[str, Any] = {}


class ReportContext(BaseModel):
    """Validated part of the report's context that is used outside the page, with the same types."""

    campaign: _CampaignSection
    campaign_yaml: str = ""
    conditions: list[str] = []
    assumptions: dict[str, str] = {}
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


def write_csv(table: pd.DataFrame, target: Path | BinaryIO) -> None:
    """Write a table as CSV with quoted texts. Uses Arrow, which takes a fifth of the time of pandas."""
    text_columns = {
        str(name): table[name].map(str, na_action="ignore") for name in table if table[name].dtype == object
    }
    safe = neutralize_formulas(table.assign(**text_columns))
    pyarrow.csv.write_csv(pa.Table.from_pandas(safe, preserve_index=False), target)


def neutralize_formulas(table: pd.DataFrame) -> pd.DataFrame:
    """Return the table with an apostrophe before each text that a spreadsheet would run as a formula. Numbers stay numbers."""
    safe = {}
    for name in table.columns:
        if not pd.api.types.is_numeric_dtype(table[name].dtype):
            texts = [value for value in table[name].dropna().unique() if isinstance(value, str)]
            if formulas := {text: safe_text for text in texts if (safe_text := neutralize_formula(text)) != text}:
                safe[str(name)] = table[name].map(lambda value, formulas=formulas: formulas.get(value, value))
    return table.assign(**safe)


def write_runs_and_cells(directory: Path, runs: pd.DataFrame, cells: pd.DataFrame) -> None:
    """Write runs and cells as Parquet (keeps types) and CSV (for people). Raises RecordError if this fails."""
    with _convert_os_error(directory):
        make_directory(directory)
        for name, table in (("runs", runs), ("cells", cells)):
            _write_parquet(directory, name, table)
            write_csv(table, directory / f"{name}.csv")


def _write_parquet(directory: Path, name: str, table: pd.DataFrame) -> None:
    table.to_parquet(directory / f"{name}.parquet", engine="pyarrow", compression="zstd", index=False)


@contextmanager
def _convert_os_error(directory: Path) -> Iterator[None]:
    """Convert an OSError raised inside the context into a RecordError."""
    try:
        yield
    except OSError as error:
        raise RecordError(f"{directory}: the tables could not be written ({error.strerror or error})") from error
