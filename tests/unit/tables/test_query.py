"""`campaign sql`, as a person types it: every table of a campaign, and nothing else of the machine."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from campaign.cli.main import main
from campaign.tables import columns
from campaign.tables.collect import gather, tables_of
from campaign.tables.io import Tables, read, write
from campaign.tables.sql import Database, QueryError
from tests.campaign_files import load
from tests.campaign_records import fill
from tests.unit.observe.links.links_data import links_document


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the small campaign and its results; tests only read there."""
    directory = tmp_path_factory.mktemp("campaigns")
    campaign = load(directory)
    results = directory / "results" / "small"
    fill(campaign, results, share=0.75)
    for path in (results / "leases").glob("*.json"):
        path.write_text(json.dumps({**json.loads(path.read_text()), "state": "released"}))
    write(tables_of(gather(campaign, results)), results / "tables")
    return directory


@pytest.fixture(scope="module")
def made(place: Path) -> Tables:
    """The campaign's tables."""
    return read(place / "results" / "small" / "tables")


@pytest.fixture(scope="module")
def database(made: Tables) -> Iterator[Database]:
    opened = Database([(Path("x"), made)])
    yield opened
    opened.close()


@pytest.fixture(autouse=True)
def here(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)


def sql(*words: str) -> Result:
    result = CliRunner().invoke(main, ["sql", *words])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def rows(*words: str) -> list[dict[str, Any]]:
    result = sql(*words, "--format", "json")
    assert result.exit_code == 0, result.output
    found: list[dict[str, Any]] = json.loads(result.stdout)
    return found


def test_a_query_sees_what_the_tables_say(made: Tables) -> None:
    (found,) = rows(
        "select count(*) as n, max(throughput_per_s) as most from runs where status = 'ok'", "results/small"
    )
    assert found == {"n": len(made.runs), "most": made.runs["throughput_per_s"].max()}
    states = rows("select state, count(*) as n from cells group by state order by state", "results/small")
    assert {each["state"]: each["n"] for each in states} == made.cells["state"].value_counts().to_dict()


def test_a_campaign_file_and_its_results_give_the_same(made: Tables) -> None:
    query = "select cell_id, median, n_missing from cells order by cell_id"
    assert rows(query, "campaign.yaml") == rows(query, "results/small")


def test_what_is_missing_is_null(made: Tables) -> None:
    missing = int(made.cells["median"].isna().sum())
    assert missing
    assert rows("select count(*) as n from cells where median is null", "results/small") == [{"n": missing}]


def test_rows_of_several_sources_say_whose_they_are(made: Tables) -> None:
    """Also where one of them has a column that the other does not have."""
    context = {**made.context, "campaign": {**made.context["campaign"], "name": "other"}}
    others = made.runs.assign(option_extra=7).drop(columns="log")
    other = Tables(others, made.cells, made.leases, made.links, context, made.telemetry)
    opened = Database([(Path("x"), made), (Path("y"), other)])
    query = "select campaign, count(*), count(option_extra), count(log) from runs group by 1 order by 1"
    runs = len(made.runs)
    assert opened.answer(query).rows == [("other", runs, runs, 0), ("small", runs, 0, runs)]
    opened.close()
    twice = rows("select distinct campaign from cells", "results/small", "campaign.yaml")
    assert {each["campaign"] for each in twice} == {"small (results/small)", "small (campaign.yaml)"}


def test_csv_is_whole_and_a_table_says_how_many_rows(made: Tables) -> None:
    answer = sql("select r1.cell_id, null as nothing from runs r1, runs r2", "results/small", "--format", "csv")
    read = list(csv.reader(io.StringIO(answer.stdout)))
    assert read[0] == ["cell_id", "nothing"]
    assert len(read) - 1 == len(made.runs) ** 2
    assert read[1][1] == ""
    shown = sql("select r1.cell_id from runs r1, runs r2", "results/small").stdout
    assert f"{len(made.runs) ** 2} rows" in shown
    assert "more" in shown


def test_times_can_be_asked_for(made: Tables) -> None:
    (found,) = rows(
        "select to_timestamp(min(started)) as began, avg(batch)::decimal(6, 2) as mean from runs -- x", "results/small"
    )
    assert found["began"].startswith("1970-01-01")
    assert isinstance(found["mean"], float)


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("select * from 'campaign.yaml'", "campaign.yaml"),
        ("select * from read_text('campaign.yaml')", "sees the tables"),
        ("select * from glob('*')", "sees the tables"),
        ("select * from read_parquet('results/small/tables/runs.parquet')", "sees the tables"),
        ("copy runs to 'stolen.csv'", "COPY changes something"),
        ("export database 'stolen'", "EXPORT changes something"),
        ("attach 'stolen.db'", "ATTACH changes something"),
        ("install httpfs", "LOAD changes something"),
        ("set enable_external_access = true", "SET changes something"),
        ("create table x as select 1", "CREATE changes something"),
        ("drop table runs", "DROP changes something"),
        ("insert into runs select * from runs", "INSERT changes something"),
        ("select * from tables", "Table with name tables does not exist"),  # a variable of this program
        ("select foo from runs", '"foo" not found'),
        ("selct", "syntax error"),
        ("select 1; select 2", "there are 2"),
        ("   ", "there are 0"),
    ],
)
def test_a_query_reaches_nothing_else_and_is_told_what_is_wrong(database: Database, query: str, words: str) -> None:
    before = sorted(Path().rglob("*"))
    with pytest.raises(QueryError) as told:
        database.answer(query)
    assert words in str(told.value)
    assert sorted(Path().rglob("*")) == before


def test_what_is_wrong_is_one_message_for_the_person(made: Tables) -> None:
    result = sql("drop table runs", "results/small")
    assert result.exit_code == 1
    assert result.output.startswith("error: DROP changes something")


def test_a_query_or_tables_has_to_be_asked_for(made: Tables) -> None:
    assert sql().exit_code == 1
    assert "give a query" in sql().output
    assert "is not a source of measurements" in sql("select 1", "nowhere").output


def test_links_are_rows(made: Tables) -> None:
    document = links_document((1, 1))
    links = [{"lease_id": "a.1", "configuration": "a", "when": "before", "document": document}]
    given = Tables(made.runs, made.cells, made.leases, links, made.context, made.telemetry)
    database = Database([(Path("x"), given)])
    devices = [device["name"] for device in document["devices"]]
    one = document["matrices"]["unidirectional_gb_per_s"][0][1]
    query = "select value from links where quantity = 'unidirectional_gb_per_s' and source = '{}' and target = '{}'"
    query = query.format(*devices)
    assert database.answer(query).rows == [(one,)]
    size, busbw = document["allreduce"]["size_bytes"][-1], document["allreduce"]["busbw_gb_per_s"][-1]
    query = f"select value from links where quantity = 'allreduce_busbw_gb_per_s' and size_bytes = {size}"
    assert database.answer(query).rows == [(busbw,)]
    assert database.answer("select count(*) from links where source = target and source <> ''").rows == [(0,)]
    database.close()


def test_every_column_of_the_tables_has_a_meaning(database: Database) -> None:
    """`columns.py` and the tables name the same columns; options and metrics are told by their names."""
    there: dict[str, set[str]] = {table: set() for table in columns.COLUMNS}
    for row in database.described():
        if not row["column"].startswith("option_"):
            there[row["table"]].add(row["column"])
    assert there == {table: set(known) for table, known in columns.COLUMNS.items()}


def test_columns_that_campaigns_bring_are_told_by_their_names(made: Tables) -> None:
    assert columns.meaning("runs", "option_seq_len") == "option 'seq_len' of the workload"
    assert "(joules)" in columns.meaning("runs", "energy_j")
    assert "(1e9 bytes per second)" in columns.meaning("runs", "metric_pcie_rx_gb_per_s")
    listed = rows("--tables", "results/small")
    assert {"table": "runs", "column": "batch", "type": "BIGINT", "meaning": columns.COLUMNS["runs"]["batch"]} in listed
    compose = {
        "table": "leases",
        "column": "compose_s",
        "type": "DOUBLE",
        "meaning": columns.COLUMNS["leases"]["compose_s"],
    }
    assert compose in rows("--tables")


def test_a_terminal_lists_every_table_with_types() -> None:
    shown = sql("--tables").stdout
    assert "quantity" in shown
    assert sum(line.startswith("telemetry ") for line in shown.splitlines()) >= len(columns.TELEMETRY)
    assert "more" not in shown.splitlines()[-2]


def test_a_campaign_without_records_is_said_to_have_none(made: Tables, tmp_path: Path) -> None:
    (tmp_path / "tables").mkdir()
    write(Tables(made.runs.iloc[:0], made.cells, [], [], made.context), tmp_path / "tables")
    result = sql("select status from runs", str(tmp_path))
    assert result.exit_code == 0
    assert "there are no records yet" in result.stderr
    assert "no records" not in sql("select status from runs where false", "results/small").stderr
