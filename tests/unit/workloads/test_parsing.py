from __future__ import annotations

import math
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from campaign.workloads.log_reader import Log
from campaign.workloads.parsers import RunContext
from campaign.workloads.parsers.expressions import Parser, collect_hints, find_literal, read_expressions, run_parsers

LOG = """\
warming up {not json}
\x1b[32mrate: 10.0\x1b[0m samples/s
{"step": 1, "time": {"s": 0.5}, "ok": true}
rate: 30 samples/s
  50%|#####     | loss: 2.5\r100%|##########| loss: 1.5\r
info {"step": 2, "time": {"s": 0.25}}
rate: fast samples/s
rate: 20.0 samples/s
"""


def numbers(log: str = LOG, ranks: int = 1, **parser: Any) -> dict[str, float]:
    return run_parsers([Parser(metric="x", **parser)], Log.from_text(log), ranks).numbers


@pytest.mark.parametrize(
    ("take", "expected"), [("last", 20.0), ("first", 10.0), ("min", 10.0), ("max", 30.0), ("mean", 20.0), ("sum", 60.0)]
)
def test_one_of_several_matches_counts(take: Any, expected: float) -> None:
    assert numbers(regex=r"rate: (\S+)", take=take) == {"x": expected}


def test_all_matches_are_a_series_in_order() -> None:
    parsed = run_parsers(
        [Parser(metric="step_time_s", regex=r"rate: (\S+)", take="all", scale=0.1)], Log.from_text(LOG), 1
    )
    assert (parsed.numbers, parsed.problem) == ({}, ("ok", ""))
    assert parsed.series["step_time_s"] == pytest.approx([1.0, 3.0, 2.0])


def test_progress_bars_and_colours_do_not_hide_a_number() -> None:
    assert numbers(regex=r"loss: (\S+)$") == {"x": 1.5}
    assert numbers(regex=r"^rate: (\S+)", take="first") == {"x": 10.0}


def test_json_lines_are_read_by_key_with_and_without_a_prefix() -> None:
    assert numbers(json_key="time.s", take="sum") == {"x": 0.75}
    assert numbers(json_key="step") == {"x": 2.0}


@pytest.mark.parametrize("key", ["ok", "time", "absent", "step.deeper", "time.ms"])
def test_what_is_no_number_is_not_found(key: str) -> None:
    parsed = run_parsers([Parser(metric="x", json_key=key)], Log.from_text(LOG), 1)
    assert parsed.numbers == {}
    if key in ("ok", "time"):
        assert parsed.unreadable[0].startswith(f"x ({key}) matched '")
    else:
        assert parsed.missing == (f"x ({key})",)


def test_what_matched_and_is_no_number_is_told_apart_from_what_was_not_found() -> None:
    parsers = [Parser(metric="a", regex=r"rate: (\S+) MB/s"), Parser(metric="b", regex=r"speed: (\S+)")]
    found = read_expressions(parsers, Log.from_text("rate: 1,234.5 MB/s\n"), RunContext())
    assert (found.status, found.problem) == (
        "incomplete",
        r"the output has no match for b (speed: (\S+)); a match is not a number: a (rate: (\S+) MB/s) matched '1,234.5'",
    )


@pytest.mark.parametrize("take", ["last", "first", "min", "max", "mean", "sum", "all", "only"])
@pytest.mark.parametrize("required", [True, False])
@pytest.mark.parametrize(
    ("lines", "options", "unread"),
    [
        (["980", "990", "1,020"], {}, "1,020"),
        (["1,010", "990"], {}, "1,010"),
        (["1100 MB/s", "1.2 GiB/s"], {"units": {"MB/s": 1e-3}}, "1.2 GiB/s"),
        (["1100 MB/s", "1200"], {"units": {"MB/s": 1e-3}}, "1200"),
        (["1,010", "1.020,5"], {"thousands": ","}, "1.020,5"),
    ],
)
def test_a_run_of_which_one_number_cannot_be_read_has_no_result(
    lines: list[str], options: dict[str, Any], unread: str, required: bool, take: Any
) -> None:
    log = Log.from_text("".join(f"rate: {line}\n" for line in lines))
    parser = Parser(metric="x", regex="rate: (.*)", take=take, required=required, **options)
    found = read_expressions([parser], log, RunContext())
    assert (found.status, found.metrics) == ("incomplete", {})
    assert found.problem == f"a match is not a number: x (rate: (.*)) matched '{unread}'"


def test_a_string_of_json_that_cannot_be_read_leaves_no_result() -> None:
    found = read_expressions(
        [Parser(metric="x", json_key="rate")], Log.from_text('{"rate": 9}\n{"rate": "1,020"}\n'), RunContext()
    )
    assert found.problem == "a match is not a number: x (rate) matched '1,020'"


def test_words_beside_numbers_are_left_out_and_named() -> None:
    found = read_expressions([Parser(metric="x", regex=r"rate: (\S+)")], Log.from_text(LOG), RunContext())
    assert (found.status, found.metrics) == ("ok", {"x": 20.0})
    assert found.flags[0] == "x: matches left out because they are not numbers: 1, such as 'fast'"


@pytest.mark.parametrize("regex", [r"rate: ([\d.]+)", r"([\d.]+) samples"])
def test_a_number_is_not_cut_at_its_groups_of_digits(regex: str) -> None:
    found = read_expressions(
        [Parser(metric="x", regex=regex)], Log.from_text("rate: 990 samples\nrate: 1,020 samples\n"), RunContext()
    )
    assert (found.status, found.metrics) == ("incomplete", {})
    assert found.problem.endswith("matched '1,020'")
    assert numbers("rate: 1,020 samples\n", regex=regex, thousands=",") == {"x": 1020.0}
    assert numbers("rate: 5 samples,1234 samples,1.5\n", regex=r"rate: (\d+)") == {"x": 5.0}
    assert numbers("rate: 1,200,3\n", regex=r"rate: (\d+)") == {"x": 1.0}


def test_two_matches_where_one_was_expected_are_told() -> None:
    parser = Parser(metric="x_s", regex=r"took (\S+) s", take="only")
    assert read_expressions([parser], Log.from_text("took 1.5 s\n"), RunContext()).metrics == {"x_s": 1.5}
    twice = read_expressions([parser], Log.from_text("took 1.5 s\ntook 2.5 s\n"), RunContext())
    assert (twice.status, twice.problem) == (
        "invalid",
        r"'take: only' allows one match, but there are several: x_s (took (\S+) s) matched 2 times",
    )


@pytest.mark.parametrize(
    ("thousands", "text", "number"),
    [
        (None, "1,234.5", None),
        (None, "1.234", 1.234),
        (",", "1,234.5", 1234.5),
        (",", "12,345,678", 12345678.0),
        (",", "1,23", None),
        (",", "1.234", 1.234),
        (",", "-1,234.5", -1234.5),
        (".", "1.234", 1234.0),
        (".", "1.234,5", 1234.5),
        (".", "12,5", 12.5),
        (".", "1.5", None),
        (" ", "1 234 567.8", 1234567.8),
        (" ", "1\u202f234", 1234.0),
        ("'", "1'234.5", 1234.5),
        (",", "1.5e3", 1500.0),
    ],
)
def test_groups_of_digits_are_read_as_the_file_says_and_never_guessed(
    thousands: Any, text: str, number: float | None
) -> None:
    found = numbers(f"rate: {text};\n", regex=r"rate: ([^;]*)", thousands=thousands)
    assert found == ({} if number is None else {"x": pytest.approx(number)})


@pytest.mark.parametrize(
    ("text", "number"),
    [("1,234.5 MB/s", 1.2345), ("2.5 GB/s", 2.5), ("7kB/s", None), ("3", None), ("4 MiB/s", 0.004194304)],
)
def test_units_behind_a_number_are_those_of_the_file(text: str, number: float | None) -> None:
    units = {"MB/s": 1e-3, "GB/s": 1.0, "B/s": 1e-9, "MiB/s": 2**20 / 1e9}
    found = numbers(f"rate: {text}\n", regex=r"rate: (.*)", thousands=",", units=units)
    assert found == ({} if number is None else {"x": pytest.approx(number)})


PRETTY = """\
starting {
info: {"step": 1}
{
  "jobs": [
    {
      "read": {"bw": 10.5, "percentile": {"99.000000": 7}},
      "name": "a [{ of braces"
    },
    {
      "read": {
        "bw": 20.5
      }
    }
  ],
  "text": "rate"
}
"""


@pytest.mark.parametrize("label", ["", "0: ", "[1,0]<stdout>:"])
@pytest.mark.parametrize(
    ("key", "take", "number"),
    [
        ("jobs.0.read.bw", "only", 10.5),
        ("jobs.1.read.bw", "only", 20.5),
        ("jobs.*.read.bw", "sum", 31.0),
        ("jobs.0.read.percentile.99.000000", "only", 7.0),
        ("step", "only", 1.0),
        ("jobs.2.read.bw", "only", None),
        ("text", "only", None),
    ],
)
def test_documents_of_many_lines_are_read_by_place(label: str, key: str, take: Any, number: float | None) -> None:
    log = "".join(f"{label}{line}\n" for line in PRETTY.splitlines())
    found = numbers(log, json_key=key, take=take)
    assert found == ({} if number is None else {"x": number})


def test_a_document_without_its_end_is_none_and_hides_none_behind_it() -> None:
    cut = PRETTY[: PRETTY.index('"name"')]
    assert numbers(cut, json_key="jobs.0.read.bw") == {}
    assert numbers(cut + PRETTY, json_key="jobs.0.read.bw", take="only") == {"x": 10.5}
    assert numbers('[\n  {"bw": 1},\n  {"bw": 2}\n]\n', json_key="*.bw", take="all") == {}
    assert run_parsers(
        [Parser(metric="x", json_key="1.bw")], Log.from_text('[\n  {"bw": 1},\n  {"bw": 2}\n]\n'), 1
    ).numbers == {"x": 2.0}


def test_a_number_that_is_not_required_may_be_absent() -> None:
    parsed = run_parsers([Parser(metric="x", regex="none: (.)", required=False)], Log.from_text(LOG), 1)
    assert (parsed.numbers, parsed.series, parsed.problem) == ({}, {}, ("ok", ""))


def test_rates_per_device_are_multiplied_by_the_ranks_and_units_are_scaled() -> None:
    assert numbers(ranks=4, regex=r"rate: (\S+)", scope="per_device", scale=0.5) == {"x": 40.0}
    assert numbers(ranks=4, regex=r"rate: (\S+)", scope="total") == {"x": 20.0}


@pytest.mark.parametrize("take", ["mean", "sum"])
def test_infinities_that_cancel_are_not_a_number(take: Any) -> None:
    assert math.isnan(numbers("v: inf\nv: -inf\n", regex=r"v: (\S+)", take=take)["x"])


def test_numbers_beyond_floats_and_bottomless_json_are_passed_over() -> None:
    log = f'{{"x": 1{"0" * 400}}}\n{{"x": {"[" * 100_000}\n{{"x": 3}}\n'
    assert numbers(log, json_key="x", take="sum") == {"x": 3.0}


@given(st.text(max_size=200), st.sampled_from(["last", "first", "min", "max", "mean", "sum", "all"]))
def test_any_output_is_read(log: str, take: Any) -> None:
    parsers = [Parser(metric="a", regex=r"(\d+)", take=take), Parser(metric="b", json_key="b", take=take)]
    parsed = run_parsers(parsers, Log.from_text(log), 2)
    missing = (*parsed.missing, *parsed.unreadable)
    assert {*parsed.numbers, *parsed.series, *(name.split()[0] for name in missing)} == {"a", "b"}


@pytest.mark.parametrize(
    ("regex", "expected"),
    [
        (r"rate: (\S+)", "rate: "),
        (r"^(\d+) img/sec total$", " img/sec total"),
        (r"a+bc?d (\d+)", "d "),
        (r"x{3}loss=(\S+)", "loss="),
        (r"\[rank\] v(\d)", "rank"),
        (r"[rate: ]+(\d+)", ""),
        (r"(?i)rate: (\d+)", ""),
        (r"rate: (\d+)|speed: 1", ""),
        (r"(?:rate: )?(\d+)", ""),
        (r"(\d+)", ""),
    ],
)
def test_what_every_match_holds_is_found_in_a_regular_expression(regex: str, expected: str) -> None:
    assert find_literal(Parser(metric="x", regex=regex)) == expected


@given(
    st.text('ra: 0.5\nte{}"x,1', max_size=80), st.sampled_from([r"ra?te: (\d)", r"ra*: ?(\S+)", r"t+e(.)", r"(\d)x"])
)
def test_lines_that_are_passed_over_have_no_match(log: str, regex: str) -> None:
    parser = Parser(metric="x", regex=regex, take="all", required=False)
    found = [match[1] for line in log.split("\n") for match in re.finditer(regex, line)]
    values = [float(text) for text in found if re.fullmatch(r"\d*\.?\d+|\d+\.?", text)]
    assert list(run_parsers([parser], Log.from_text(log), 1).series.get("x", ())) == values


@given(st.lists(st.floats(-1e12, 1e12), min_size=1, max_size=60))
def test_sums_and_means_lose_nothing_on_the_way(values: list[float]) -> None:
    log = "".join(f"v: {value!r}\n" for value in values)
    scale = max(map(abs, values)) + 1
    assert numbers(log, regex=r"v: (\S+)", take="sum")["x"] == pytest.approx(math.fsum(values), abs=1e-15 * scale)
    mean = math.fsum(values) / len(values)
    assert numbers(log, regex=r"v: (\S+)", take="mean")["x"] == pytest.approx(mean, abs=1e-15 * scale)


STEPS = "".join(f"step {number} took {10.0 if number <= 10 else 1.0} s\n" for number in range(1, 111))


def read_steps(log: str = STEPS, steps: int | None = None, **parser: Any) -> Any:
    parsers = [Parser(metric="step_time_s", regex=r"took (\S+) s", take="all", **parser)]
    return read_expressions(parsers, Log.from_text(log), RunContext(batch_global=8, measured_steps=steps))


def test_matches_at_the_beginning_are_left_out_as_warm_up() -> None:
    assert read_steps().throughput_per_s == pytest.approx(8 * 110 / 200)
    found = read_steps(skip=10)
    assert (found.throughput_per_s, found.step_times_s) == (pytest.approx(8.0), ((1.0,) * 100,))


@pytest.mark.parametrize(
    ("take", "expected"),
    [("last", 20.0), ("first", 30.0), ("min", 20.0), ("max", 30.0), ("mean", 25.0), ("sum", 50.0)],
)
def test_what_is_left_out_counts_in_no_way(take: Any, expected: float) -> None:
    """LOG has the matches 10, 30, fast and 20; the first may be unreadable."""
    assert numbers(regex=r"rate: (\S+)", take=take, skip=1) == {"x": expected}
    log = LOG.replace("rate: 10.0", "rate: 1,010")
    parsed = run_parsers([Parser(metric="x", regex=r"rate: (\S+)", take=take, skip=1)], Log.from_text(log), 1)
    assert (parsed.numbers, parsed.problem) == ({"x": expected}, ("ok", ""))


def test_skip_works_before_only_and_in_documents_and_names_what_it_leaves_nothing_of() -> None:
    assert numbers(json_key="step", take="only", skip=1) == {"x": 2.0}
    assert read_expressions(
        [Parser(metric="x", json_key="step", take="only", skip=1)], Log.from_text(LOG), RunContext()
    ).metrics == {"x": 2.0}
    found = read_steps(skip=110)
    assert (found.status, found.problem) == (
        "incomplete",
        r"the output has no match for step_time_s (took (\S+) s) after the first 110 matches, which 'skip' leaves out "
        "(the output has 110)",
    )


def test_more_steps_than_were_to_be_measured_are_flagged() -> None:
    skip = "set 'skip: 10' in the parser"
    flag = f"the log has 110 steps instead of the 100 to measure; if the first steps are warm-up, {skip}"
    assert flag in read_steps(steps=100).flags
    assert not any("to measure" in one for steps in (None, 110, 200) for one in read_steps(steps=steps).flags)
    assert not any("to measure" in one for one in read_steps(steps=100, skip=10).flags)
    assert any("set 'skip: 10' in" in one for one in read_steps(steps=100, skip=5).flags)


CSV = """\
loading step_s, loss
epoch,step_s,"val, loss",note
1,0.5,2.5,warm
2,0.25,,x

done, thanks
3,0.75,1.5,step_s
epoch,step_s,"val, loss",note
4,0.5,"1,5",y
"""


@pytest.mark.parametrize("label", ["", "0: ", "[1,0]<stdout>:"])
@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_a_column_of_a_table_is_read_by_its_name(label: str, separator: str) -> None:
    table = [("epoch", "step_s", "loss"), ("1", "0.5", "2.5"), ("2", "0.25", ""), ("3", "0.75", "1.5")]
    log = "starting\n" + "".join(f"{label}{separator.join(row)}\n" for row in table) + "done\n"
    assert numbers(log, csv_column="step_s", take="sum") == {"x": 1.5}
    assert numbers(log, csv_column="step_s", take="mean", skip=1) == {"x": 0.5}
    assert numbers(log, csv_column="loss", take="sum") == {"x": 4.0}
    assert numbers(log, csv_column="step", take="sum") == {}


def test_a_table_has_quoted_cells_a_second_header_and_lines_of_others_between_its_rows() -> None:
    parsed = run_parsers([Parser(metric="x", csv_column="step_s", take="sum")], Log.from_text(CSV), 1)
    assert parsed.numbers == {"x": 2.0}
    assert parsed.flags == (
        "x: 1 line left out because the number of cells differs from the header, such as 'done, thanks'",
    )
    assert numbers(CSV, csv_column="val, loss", take="first") == {"x": 2.5}
    found = read_expressions(
        [Parser(metric="x", csv_column="val, loss", take="first")], Log.from_text(CSV), RunContext()
    )
    assert found.problem == "a match is not a number: x (val, loss) matched '1,5'"


def test_of_two_columns_with_one_name_none_is_read() -> None:
    found = read_expressions([Parser(metric="x", csv_column="t")], Log.from_text("t,t\n1,2\n"), RunContext())
    assert (found.status, found.problem) == ("incomplete", "a match is not a number: x (t) matched '1 | 2'")


def test_the_header_may_stand_alone_and_one_column_is_a_table() -> None:
    assert numbers("t\n1\n2.5\n", csv_column="t", take="sum") == {"x": 3.5}
    found = read_expressions([Parser(metric="x", csv_column="t")], Log.from_text("a,t\n"), RunContext())
    assert found.problem == "the output has no match for x (t)"
    (told, line) = collect_hints(Log.from_text("a,t\n"), None, [Parser(metric="x", csv_column="s")])
    assert (told, line) == ("lines with cells (the header must have the cell 's'):", "  a,t")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1:02:03.5", 3723.5),
        ("02:03", 123.0),
        ("75:00", 4500.0),
        ("100:00:00", 360000.0),
        ("2-03:00:00", 183600.0),
        ("12.5", None),
        ("1:75:00", None),
        ("1:2:3", None),
        ("1:02:03,5", None),
        ("1:02:03:04", None),
        ("2-03:00", None),
    ],
)
def test_durations_are_read_in_seconds(text: str, seconds: float | None) -> None:
    expected = {} if seconds is None else {"x": seconds}
    for parser in ({"regex": r"^took (.*)"}, {"json_key": "took"}, {"csv_column": "took"}):
        log = f'took {text}\n{{"took": "{text}"}}\nno,took\n1,"{text}"\n'
        parsed = run_parsers(
            [Parser.model_validate({"metric": "x", "form": "duration", **parser})], Log.from_text(log), 1
        )
        assert parsed.numbers == expected
        if seconds is None:
            assert parsed.problem[0] == "incomplete"
            assert parsed.problem[1].endswith(f"matched '{text}' (a duration is written h:mm:ss)")


def test_a_duration_is_not_cut_by_its_expression_and_scales() -> None:
    assert numbers("took 1:02:03.5 s\n", regex=r"(\d+:\d\d)", form="duration", take="first") == {"x": 3723.5}
    assert numbers("took 1:02:03 s\n", regex=r"took (\S+)", form="duration", scale=0.001) == {"x": pytest.approx(3.723)}
    found = read_expressions(
        [Parser(metric="x", json_key="t", form="duration")], Log.from_text('{"t": 90}\n'), RunContext()
    )
    assert found.problem == "a match is not a number: x (t) matched '90' (a duration is written h:mm:ss)"


def test_a_number_of_json_without_its_unit_leaves_no_result() -> None:
    parser = Parser(metric="x", json_key="rate", units={"MB/s": 1.0})
    found = read_expressions([parser], Log.from_text('{"rate": "5 MB/s"}\n{"rate": 7}\n'), RunContext())
    assert found.problem == "a match is not a number: x (rate) matched '7'"


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"regex": "(.)", "csv_column": "t"}, "give exactly one of 'regex', 'json_key' and 'csv_column'"),
        ({}, "give exactly one of 'regex', 'json_key' and 'csv_column'"),
        ({"csv_column": ""}, "at least 1 character"),
        ({"regex": "(.)", "skip": -1}, "greater than or equal to 0"),
        (
            {"regex": "(.)", "form": "duration", "thousands": ","},
            "cannot be combined with 'thousands'; remove 'thousands'",
        ),
        ({"regex": "(.)", "form": "duration", "units": {"s": 1.0}}, "cannot be combined with 'units'; remove 'units'"),
        ({"regex": "(.)", "form": "h:mm:ss"}, "'number' or 'duration'"),
    ],
)
def test_what_a_parser_cannot_be_is_told(document: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=re.escape(words)):
        Parser.model_validate({"metric": "x", **document})


def test_new_keys_are_no_part_of_a_parser_that_does_not_use_them() -> None:
    parser = Parser(metric="x", regex="(.)")
    assert parser.model_dump(mode="json", exclude_defaults=True) == {"metric": "x", "regex": "(.)"}
