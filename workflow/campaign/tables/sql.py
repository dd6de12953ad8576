"""SQL over the tables of campaigns: DuckDB in memory, which can neither read nor write a file, nor reach anything else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from campaign.errors import CampaignError, needs_extra
from campaign.tables.cells import cells_table
from campaign.tables.columns import COLUMNS, LINKS, REFERENCE, STEPS, TELEMETRY, meaning, types
from campaign.tables.io import frame
from campaign.tables.leases import leases_table, operations_table
from campaign.tables.runs import runs_table

if TYPE_CHECKING:
    import duckdb

    from campaign.tables.io import Tables

# What a query may be: none of the others could do harm, but none does what it says either.
_ALLOWED = ("SELECT", "EXPLAIN", "PRAGMA")
_SETTINGS = (
    "SET enable_external_access = false",
    "SET autoinstall_known_extensions = false",
    "SET autoload_known_extensions = false",
    "SET python_enable_replacements = false",
    "SET lock_configuration = true",
)


class QueryError(CampaignError):
    """A query that cannot be answered."""


def no_tables() -> Tables:
    """Tables without rows: the columns that every campaign has."""
    from campaign.tables.io import Tables

    runs = runs_table([])
    return Tables(runs, cells_table([], runs), [], [], {"campaign": {"name": ""}})


@dataclass(frozen=True)
class QueryResult:
    """Rows of a query. types: DuckDB's, one a column; missing values are None."""

    columns: tuple[str, ...]
    types: tuple[str, ...]
    rows: list[tuple[Any, ...]]


class Database:
    """Tables of one or several sources, each row with the `campaign` that it is of. Close it after use."""

    def __init__(self, sources: Sequence[tuple[Path, Tables]]) -> None:
        with needs_extra("sql"):
            import duckdb

        self.connection: duckdb.DuckDBPyConnection = duckdb.connect(":memory:")
        names = _names(sources)
        for table in COLUMNS:
            frames = [
                _with_campaign(_frame(table, tables), name) for name, (_, tables) in zip(names, sources, strict=True)
            ]
            self._add(table, frames)
        for setting in _SETTINGS:
            self.connection.execute(setting)

    def _add(self, table: str, frames: Sequence[pd.DataFrame]) -> None:
        """One table of all sources; a column that a source does not have is null there."""
        loaded = []
        for number, each in enumerate(frames):
            name = f"_{table}_{number}"
            self.connection.register(name, each)
            loaded.append(name)
        union = " UNION ALL BY NAME ".join(f"SELECT * FROM {name}" for name in loaded)
        self.connection.execute(f"CREATE TABLE {table} AS {union}")
        for name in loaded:
            self.connection.unregister(name)

    def answer(self, query: str) -> QueryResult:
        """The rows of one query; QueryError says what is wrong with it."""
        import duckdb

        try:
            statements = self.connection.extract_statements(query)
            if len(statements) != 1:
                raise QueryError(f"give one query; there are {len(statements)}")
            kind = statements[0].type.name
            if kind not in _ALLOWED:
                raise QueryError(f"{kind} changes something, and tables are only read here; write a SELECT")
            return self._rows(statements[0].query.strip().rstrip(";"))
        except duckdb.PermissionException as error:
            raise QueryError(
                f"{_first(error)}; a query sees the tables {', '.join(COLUMNS)} and no files ('campaign sql --tables')"
            ) from error
        except duckdb.Error as error:
            raise QueryError(f"{str(error).strip()}\n'campaign sql --tables' lists tables and columns") from error

    def _rows(self, query: str) -> QueryResult:
        """Rows of a checked query. Times with a zone come as texts: as objects they would take a further package."""
        result = self.connection.execute(query)
        described = result.description or []
        zoned = [_quoted(str(each[0])) for each in described if "TIME ZONE" in str(each[1])]
        if zoned:
            texts = ", ".join(f"CAST({name} AS VARCHAR) AS {name}" for name in zoned)
            result = self.connection.execute(f"SELECT * REPLACE ({texts}) FROM ({query}\n)")
        names, types = (tuple(str(each[place]) for each in described) for place in (0, 1))
        return QueryResult(names, types, result.fetchall())

    def described(self) -> Iterator[dict[str, str]]:
        """Every column: table, column, type, meaning."""
        for table in COLUMNS:
            for column, kind, *_ in self.connection.execute(f"DESCRIBE {table}").fetchall():
                yield {"table": table, "column": column, "type": kind, "meaning": meaning(table, column)}

    def close(self) -> None:
        self.connection.close()


def _quoted(name: str) -> str:
    doubled = name.replace('"', '""')
    return f'"{doubled}"'


def _first(error: Exception) -> str:
    return str(error).strip().splitlines()[0]


def _names(sources: Sequence[tuple[Path, Tables]]) -> list[str]:
    """Names of the campaigns; with their source where two have one name."""
    often = Counter(tables.name for _, tables in sources)
    return [tables.name if often[tables.name] == 1 else f"{tables.name} ({path})" for path, tables in sources]


def _with_campaign(table: pd.DataFrame, name: str) -> pd.DataFrame:
    front = pd.DataFrame({"campaign": pd.Series([name] * len(table), index=table.index, dtype="str")})
    return pd.concat([front, table], axis=1)


def _frame(table: str, tables: Tables) -> pd.DataFrame:
    match table:
        case "runs":
            return tables.runs
        case "cells":
            return tables.cells
        case "leases":
            return leases_table(tables.leases)
        case "operations":
            return operations_table(tables.leases)
        case "links":
            return links_table(tables.links)
    found: pd.DataFrame = getattr(tables, table)
    later = {"telemetry": TELEMETRY, "steps": STEPS, "reference": REFERENCE}
    return found if len(found.columns) else frame([], types(later[table]), {})


def links_table(links: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """One row a measured number of the links documents, in the columns LINKS; what is absent has no row."""
    rows = []
    for each in links:
        use = {"lease_id": each["lease_id"], "configuration": each["configuration"], "measured": each["when"]}
        rows += [{**use, **row} for row in _link_rows(each["document"])]
    return frame(rows, types(LINKS), {})


def _link_rows(document: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    devices = [device["name"] for device in document["devices"]]
    matrices = document.get("matrices") or {}
    size = document.get("matrix_size_bytes") or 0
    for quantity in ("unidirectional_gb_per_s", "bidirectional_gb_per_s", "latency_us"):
        of_message = min(document["settings"].get("sizes_bytes") or [size]) if quantity == "latency_us" else size
        for source, line in zip(devices, matrices.get(quantity) or (), strict=False):
            for target, value in zip(devices, line, strict=False):
                if value is not None:
                    kind = document["kinds"][devices.index(source)][devices.index(target)]
                    yield _row(quantity, source, target, kind, of_message, value)
    copies = document.get("host_device") or {}
    for quantity in ("h2d_gb_per_s", "d2h_gb_per_s"):
        for device, value in zip(devices, copies.get(quantity) or (), strict=False):
            if value is not None:
                source, target = ("host", device) if quantity.startswith("h2d") else (device, "host")
                yield _row(quantity, source, target, copies["what"], copies["size_bytes"], value)
    curve = document.get("allreduce") or {}
    for quantity in ("busbw_gb_per_s", "algbw_gb_per_s", "time_s"):
        for size_bytes, value in zip(curve.get("size_bytes") or (), curve.get(quantity) or (), strict=False):
            yield _row(f"allreduce_{quantity}", "", "", "", size_bytes, value)


def _row(quantity: str, source: str, target: str, kind: str | None, size_bytes: int, value: float) -> dict[str, Any]:
    ends = {"quantity": quantity, "source": source, "target": target, "kind": kind or ""}
    return {**ends, "size_bytes": size_bytes, "value": value}
