"""`campaign sql`: queries over the tables of campaigns."""

from __future__ import annotations

import csv
import json
import math
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import click

from campaign.archive.open_results import tables_from
from campaign.cli.options import CAMPAIGN_FILE, PATH, cells_option, format_option, results_option
from campaign.cli.terminal import MANY, TextTable, say, show
from campaign.errors import ConfigError
from campaign.tables.sql import Database, QueryResult, no_tables
from campaign.wording import plural

_TEXTS = ("VARCHAR", "BOOLEAN")  # types that are not aligned to the right


@click.command()
@click.argument("query", required=False)
@click.argument("sources", nargs=-1, type=PATH, metavar="[CAMPAIGN]...")
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

    CAMPAIGN is a campaign file, an archive, or a campaign's results directory. Default: config/campaign.yaml. With several, the
    column 'campaign' tells their rows apart. 'configuration' names the hardware. A query cannot change tables, read files or use
    the network.

    \b
    campaign sql "select workload, batch, median, cv_pct from cells where state = 'measured' order by median desc"
    campaign sql "select status, count(*) as runs from runs group by status" study.zip
    campaign sql "select a.configuration as local, b.configuration as fabric, workload, batch, b.median / a.median as ratio
                  from cells a join cells b using (workload, batch, precision, hosts, devices_per_host, devices_used, storage)
                  where a.attach = 'local' and b.attach = 'fabric'" --format csv
    campaign sql "select campaign, avg(compose_s) from leases group by campaign" before.zip after.zip
    campaign sql --tables
    """
    if tables and query is not None:
        sources = (Path(query), *sources)
    elif not tables and not query:
        raise ConfigError('give a query, such as "select status, count(*) from runs group by status"; or --tables')
    named = sources or (() if tables else (CAMPAIGN_FILE,))
    known = [(source, tables_from(source, results, where)) for source in named]
    database = Database(known or [(CAMPAIGN_FILE, no_tables())])
    try:
        if tables:
            rows = list(database.described())
            answer = QueryResult(tuple(rows[0]), ("VARCHAR",) * len(rows[0]), [tuple(row.values()) for row in rows])
        else:
            answer = database.answer(str(query))
        _print(answer, style, most=None if tables else MANY)
    finally:
        database.close()
    of_which = f" of cells where {where}" if where else ""
    for source, of in known:
        if of.runs.empty:
            click.echo(f"{source}: there are no records yet{of_which}, so that runs is empty", err=True)


def _print(answer: QueryResult, style: str, most: int | None) -> None:
    if style == "json":
        if len(set(answer.columns)) < len(answer.columns):
            raise ConfigError("two columns have one name, and JSON keeps only one of them; name them with AS")
        rows = [dict(zip(answer.columns, map(_plain, row), strict=True)) for row in answer.rows]
        click.echo(json.dumps(rows, indent=1, ensure_ascii=False, default=str))
    elif style == "csv":
        csv.writer(sys.stdout, lineterminator="\n").writerows([answer.columns, *answer.rows])
    else:
        numbers = [name for name, kind in zip(answer.columns, answer.types, strict=True) if kind not in _TEXTS]
        show(TextTable("", answer.columns, answer.rows, numbers), most=most)
        say(plural(len(answer.rows), "row"))


def _plain(value: Any) -> Any:
    value = float(value) if isinstance(value, Decimal) else value
    return None if isinstance(value, float) and not math.isfinite(value) else value
