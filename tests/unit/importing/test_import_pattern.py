"""What a path says of its log, and how the cells that were found are told from the others."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from campaign.common.errors import ConfigError
from campaign.importing.campaign_files import find_absent_combinations
from campaign.importing.log_facts import LogImportError
from campaign.importing.map_file import compile_pattern, compile_plain_pattern
from campaign.spec.expression import parse_expression

NAMES = ("configuration", "workload", "batch", "precision", "repetition")


@pytest.mark.parametrize(
    ("text", "path", "said"),
    [
        (
            "{configuration}/{workload}-b{batch}.log",
            "a/x-y-b8.log",
            {"configuration": "a", "workload": "x-y", "batch": "8"},
        ),
        ("**/{workload}.{batch}.txt", "x/y/z.16.txt", {"workload": "z", "batch": "16"}),
        ("**/{workload}.{batch}.txt", "z.16.txt", {"workload": "z", "batch": "16"}),
        ("run*/{workload}.log", "run-7/a.log", {"workload": "a"}),
        ("{workload}/{workload}-{batch}.log", "a/a-1.log", {"workload": "a", "batch": "1"}),
        ("{workload}/{workload}-{batch}.log", "a/b-1.log", None),
        ("{workload}-b{batch}.log", "a-bx.log", None),
        ("{workload}.log", "a/b.log", None),
        ("{workload}.log", "aXlog", None),
        ("{{x}}-{workload}", "{x}-a", {"workload": "a"}),
    ],
)
def test_a_pattern_gives_what_a_path_says(text: str, path: str, said: dict[str, str] | None) -> None:
    assert compile_pattern(text, NAMES, {}, "map").match(path) == said


def test_words_that_are_known_decide_between_two_readings() -> None:
    made = compile_pattern(
        "{workload}-{precision}", NAMES, {"workload": ["bert-large"], "precision": ["fp16-o2", "o2"]}, "map"
    )
    assert made.match("bert-large-fp16-o2") == {"workload": "bert-large", "precision": "fp16-o2"}
    # A word that is not known is given too: whoever reads it can say that it is none.
    assert made.match("other-fp16-o2") is not None


@pytest.mark.parametrize(
    ("text", "path"),
    [("{host}-{lease}.log", "a-b-c.log"), ("{batch}{repetition}", "128"), ("*{host}.log", "node1.log")],
)
def test_a_path_that_can_be_read_in_several_ways_is_refused(text: str, path: str) -> None:
    made = compile_pattern(text, ("host", "lease", "batch", "repetition"), {}, "map")
    with pytest.raises(LogImportError, match=r"can be read in several ways, such as \{.*, or \{.*'words'"):
        made.match(path)


def test_words_that_are_listed_make_a_path_unambiguous() -> None:
    made = compile_pattern("{host}-{lease}", ("host", "lease"), {"host": ["a-b"]}, "map")
    assert made.match("a-b-c") == {"host": "a-b", "lease": "c"}
    with pytest.raises(LogImportError):
        compile_pattern("{host}-{lease}", ("host", "lease"), {"host": ["a-b", "a"]}, "map").match("a-b-c")


def test_a_pattern_names_what_it_cannot_give() -> None:
    with pytest.raises(ConfigError, match=r"map:3: '\{bacth\}' is not a name .* 'batch'"):
        compile_pattern("{bacth}.log", NAMES, {}, "map:3")
    with pytest.raises(ConfigError, match="literal braces"):
        compile_pattern("{batch.log", NAMES, {}, "map:3")


def test_a_plain_pattern_takes_braces_as_they_are() -> None:
    assert compile_plain_pattern("**/{a}*.md").fullmatch("x/{a}b.md")
    assert not compile_plain_pattern("*.md").fullmatch("x/a.md")


_CELLS = st.sets(st.tuples(st.sampled_from("ab"), st.sampled_from("xyz"), st.sampled_from([1, 2, 4])), min_size=1)


@given(_CELLS)
@settings(max_examples=60, deadline=None)
def test_rules_hold_for_exactly_the_cells_that_were_not_found(cells: set[tuple[str, str, int]]) -> None:
    names = ("configuration", "workload", "batch")
    values = [sorted({cell[level] for cell in cells}) for level in range(3)]
    rules = [parse_expression(rule, names) for rule in find_absent_combinations(names, values, cells)]
    for cell in itertools.product(*values):
        excluded = [rule for rule in rules if rule(dict(zip(names, cell, strict=True)))]
        assert len(excluded) == (cell not in cells)


def test_many_cells_make_few_short_rules() -> None:
    values = [[f"configuration-{n}" for n in range(200)], [8, 16, 32]]
    cells = [(name, batch) for n, name in enumerate(values[0]) for batch in (8, 16, 32) if batch < 32 or n % 2]
    rules = list(find_absent_combinations(("configuration", "batch"), values, cells))
    assert len(rules) <= 10
    assert max(map(len, rules)) < 1000
