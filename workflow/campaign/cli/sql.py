"""`campaign sql`: queries over the tables of campaigns."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from campaign.cli.options import CAMPAIGN_FILE, cells_option, format_option, results_option
from campaign.errors import ConfigError

if TYPE_CHECKING:
    from campaign.tables.sql import Answer

_TEXTS = ("VARCHAR", "BOOLEAN")  # types that are not aligned to the right


@click.command()
@click.argument("query", required=False)
@click.argument("sources", nargs=-1, type=click.Path(path_type=Path), metavar="[SOURCE]...")
@results_option
@cells_option
@format_option("table", "csv", "json", says="Output format; csv and json hold all rows.")
@click.option(
    "--tables", is_flag=True, help="List tables and columns with their types and meaning, instead of a QUERY."
)
def sql(
    query: str | None, sources: tuple[Path, ...], results: Path, where: str | None, style: str, tables: bool
) -> None:
    """Run one QUERY (DuckDB's SQL) over the tables runs, cells, leases, links and telemetry.

    SOURCE is a campaign file, an archive, or a campaign's results directory. Default: config/campaign.yaml. With several sources,
    the column 'campaign' tells their rows apart. A query cannot change tables, read files or use the network.

    \b
    campaign sql "select workload, batch, median, cv_pct from cells where state = 'measured' order by median desc"
    campaign sql "select status, count(*) as runs from runs group by status" study.zip
    campaign sql "select a.workload, a.batch, b.median / a.median as ratio
                  from cells a join cells b using (workload, batch, precision, ranks)
                  where a.attach = 'local' and b.attach = 'fabric'" --format csv
    campaign sql "select campaign, avg(compose_s) from leases group by campaign" before.zip after.zip
    campaign sql --tables
    """
    from campaign.archive.open_results import tables_from
    from campaign.tables.sql import Database, no_tables

    if tables and query is not None:
        sources = (Path(query), *sources)
    elif not tables and not query:
        raise ConfigError('give a query, such as "select status, count(*) from runs group by status"; or --tables')
    named = sources or (() if tables else (CAMPAIGN_FILE,))
    known = [(source, tables_from(source, results, where)) for source in named]
    database = Database(known or [(CAMPAIGN_FILE, no_tables())])
    try:
        if tables:
            _print(_rows(list(database.described())), style, whole=True)
        else:
            _print(database.answer(str(query)), style)
    finally:
        database.close()
    for source, of in known:
        if of.runs.empty:
            click.echo(f"{source}: there are no records yet{_of_which(where)}, so that runs is empty", err=True)


def _of_which(where: str | None) -> str:
    return f" of cells where {where}" if where else ""


def _rows(rows: list[dict[str, str]]) -> Answer:
    from campaign.tables.sql import Answer

    names = tuple(rows[0])
    return Answer(names, ("VARCHAR",) * len(names), [tuple(row.values()) for row in rows])


def _print(answer: Answer, style: str, whole: bool = False) -> None:
    """whole: on a terminal too, where long answers end early."""
    if style == "json":
        if len(set(answer.columns)) < len(answer.columns):
            raise ConfigError("two columns have one name, and JSON keeps only one of them; name them with AS")
        rows = [dict(zip(answer.columns, map(_plain, row), strict=True)) for row in answer.rows]
        click.echo(json.dumps(rows, indent=1, ensure_ascii=False, default=str))
    elif style == "csv":
        import csv

        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(answer.columns)
        writer.writerows(answer.rows)
    else:
        from campaign.cli.terminal import MANY, Table, say, show

        numbers = [name for name, kind in zip(answer.columns, answer.types, strict=True) if kind not in _TEXTS]
        show(Table("", answer.columns, answer.rows, numbers), most=None if whole else MANY)
        say(f"{len(answer.rows)} row{'s' * (len(answer.rows) != 1)}")


def _plain(value: Any) -> Any:
    from decimal import Decimal

    value = float(value) if isinstance(value, Decimal) else value
    return None if isinstance(value, float) and not math.isfinite(value) else value
