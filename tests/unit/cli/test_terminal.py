from __future__ import annotations

from pathlib import Path

import pytest

from campaign.cli.terminal import (
    MAX_TERMINAL_ROWS,
    TextTable,
    print_rows,
    print_tables,
    print_text,
    print_warnings,
    show_log_status,
)


def test_a_table_shows_text_as_it_is_and_numbers_short(capsys: pytest.CaptureFixture[str]) -> None:
    print_tables(TextTable("Devices", ["name", "rate"], [("[red]a[/red]", 1 / 3), ("b", None)], ["rate"]))
    assert [line.rstrip() for line in capsys.readouterr().out.splitlines()] == [
        "Devices",
        "name              rate",
        "[red]a[/red]  0.333333",
        "b",
        "",
    ]


def test_a_long_table_says_how_many_rows_are_not_shown(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [(number,) for number in range(MAX_TERMINAL_ROWS + 5)]
    print_tables(TextTable("", ["n"], rows))
    assert "... and 5 more" in capsys.readouterr().out
    print_tables(TextTable("", ["n"], rows), max_rows=None)
    assert f"{MAX_TERMINAL_ROWS + 4}" in capsys.readouterr().out


def test_what_a_device_calls_itself_cannot_move_the_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    name = "gpu\x1b[2J\r\x9b\u202e\tµé–GPU"
    print_tables(TextTable("", ["device"], [(name,)]))
    print_text(name)
    print_warnings([name])
    said = capsys.readouterr()
    assert said.out.count("gpu\\x1b[2J\\r\\x9b\\u202e") == 2
    assert said.err == "warning: gpu\\x1b[2J\\r\\x9b\\u202e\tµé–GPU\n"


def test_an_empty_table_is_left_out_or_named(capsys: pytest.CaptureFixture[str]) -> None:
    print_tables(TextTable("Left out", ["rule"], []))
    assert capsys.readouterr().out == ""
    print_rows("Events", [])
    print_rows("Readings", [{"port": "a", "state": "up"}])
    assert capsys.readouterr().out.startswith("Events: (none)\nReadings")


def test_a_long_line_is_never_cut(capsys: pytest.CaptureFixture[str]) -> None:
    print_text("x" * 500)
    assert capsys.readouterr().out == "x" * 500 + "\n"


def test_nothing_is_shown_of_a_run_where_there_is_no_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with show_log_status("steps", tmp_path / "log"):
        pass
    assert capsys.readouterr() == ("", "")
