from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from campaign.common.errors import ConfigError
from campaign.spec import yaml_file
from campaign.spec.yaml_file import MAX_DEPTH, parse_yaml, read_yaml

FILE = Path("some.yaml")
BOMB = "x: &x [1,1,1,1,1,1,1,1,1]\n" + "".join(
    f"{name}: &{name} [{','.join(['*' + before] * 9)}]\n" for before, name in zip("xabcdefgh", "abcdefghi", strict=True)
)


def test_every_key_and_item_has_its_line() -> None:
    file = parse_yaml("a: 1\nb:\n  - x\n  - {c: 2,\n     d: 3}\n", FILE)
    assert file.data == {"a": 1, "b": ["x", {"c": 2, "d": 3}]}
    assert [file.find_line(at) for at in ((), ("b",), ("b", 0), ("b", 1, "d"), ("b", 1, "absent"))] == [1, 2, 3, 5, 4]
    assert file.format_location("b", 1, "d") == "some.yaml:5: b.1.d"
    assert file.format_location() == "some.yaml:1"


def test_a_document_that_is_no_file_has_places_without_lines() -> None:
    assert yaml_file.YamlFile(Path("demo"), {"a": 1}, {}).format_location("a") == "demo: a"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3", "some.yaml:3: the key 'a' appears twice; remove one"),
        ("a:\n  b: 1\n  b: 2", "some.yaml:3: the key 'b' appears twice; remove one"),
        ("a: 1\n\tb: 2", "some.yaml:2: not valid YAML: this line is indented by a tab, .*; replace the tab by spaces"),
        ("a:\n  \tb: 2", "some.yaml:2: not valid YAML: this line is indented by a tab"),
        ("a:\n  - b:\n\t- 1", "some.yaml:3: not valid YAML: this line is indented by a tab"),
        ("a: 1\nb: @c", "some.yaml:2: not valid YAML: a value cannot begin with @; put it in quotes"),
        (
            "a: !!python/object/apply:os.system ['true']",
            "some.yaml:1: .*only plain YAML values without tags are allowed",
        ),
        ("a: 1\nb: !mine 2", "some.yaml:2: .*only plain YAML values without tags are allowed"),
        ("a: !!binary aGVsbG8=", "is not a plain YAML value"),
        ("a: !!set {b, c}", "is not a plain YAML value"),
        (BOMB, "after expansion of aliases"),
        ("a: &a [*a]", "nested deeper"),
        ("a: " + "[" * 1_000_000, f"nested deeper than {MAX_DEPTH} levels"),
        (
            "\n".join(" " * depth + "a:" for depth in range(60)),
            f"some.yaml:{MAX_DEPTH + 1}: the document is nested deeper",
        ),
        ("- 1\n- 2", "the top level of the file must be a mapping of keys to values"),
        ("just words", "the top level of the file must be a mapping of keys to values"),
        ("", "the top level of the file must be a mapping of keys to values"),
        ("a: [1, 2", "some.yaml:2: not valid YAML"),
        ("a: 1\n\tb: 2", "some.yaml:2: not valid YAML"),
        ("a: b: c", "some.yaml:1: not valid YAML"),
        ("a: *nowhere", "not valid YAML: found undefined alias"),
        ("a: 1\n---\nb: 2", "not valid YAML"),
        ("? [1, 2]\n: a", "a key must be a plain string"),
        ("a: \x00", "control characters are not allowed"),
        ("a: 2020-13-45", "not a valid document: month must be in 1..12"),
        ("a: " + "1" * 5000, "not a valid document: Exceeds the limit"),
    ],
    ids=range(26),
)
def test_what_is_not_plain_yaml_is_one_message_with_its_line(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        parse_yaml(text, FILE)
    assert str(caught.value).startswith("some.yaml")
    assert "\n" not in str(caught.value)


def test_a_tag_never_runs_anything(tmp_path: Path) -> None:
    made = tmp_path / "made"
    with pytest.raises(ConfigError):
        parse_yaml(f"a: !!python/object/apply:pathlib.Path.touch [!!python/object/apply:pathlib.Path ['{made}']]", FILE)
    assert not made.exists()


def test_keys_are_texts_and_dates_are_what_was_written() -> None:
    assert parse_yaml("7: a\ntrue: b\nc: 2024-05-06", FILE).data == {"7": "a", "true": "b", "c": "2024-05-06"}


def test_a_long_text_that_is_repeated_by_aliases_is_refused_before_it_takes_memory() -> None:
    text = "a: &a " + "x" * 95_000 + "\nb: [" + ", ".join(["*a"] * 23_000) + "]\n"
    with pytest.raises(
        ConfigError, match=f"more than {yaml_file.MAX_CHARACTERS} characters after expansion of aliases"
    ):
        parse_yaml(text, FILE)


def test_aliases_and_merges_within_reason_are_plain_yaml() -> None:
    text = "a: &a {x: 1}\nb: *a\nc:\n  <<: *a\n  y: 2"
    assert parse_yaml(text, FILE).data == {"a": {"x": 1}, "b": {"x": 1}, "c": {"x": 1, "y": 2}}


PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**9), 10**9)
    | st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"])),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("abcdef_", min_size=1, max_size=4), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.text("abcdef_", min_size=1, max_size=4), PLAIN, max_size=4))
def test_reading_gives_what_was_written(data: dict[str, object]) -> None:
    assert parse_yaml(yaml.safe_dump(data, allow_unicode=True), FILE).data == data


TOKENS = ["a", ":", " ", "\n", "- ", "[", "]", "{", "}", "&x ", "*x", "!!str ", "'", "|", "<<: "]


@given(st.text(max_size=60) | st.lists(st.sampled_from(TOKENS), max_size=25).map("".join))
def test_any_text_is_a_mapping_or_a_config_error(text: str) -> None:
    try:
        outcome: object = parse_yaml(text, FILE).data
    except ConfigError as error:
        outcome = str(error).startswith("some.yaml")
    assert outcome is True or isinstance(outcome, dict)


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    bytes_ = tmp_path / "latin.yaml"
    bytes_.write_bytes("a: caf\u00e9".encode("latin-1"))
    pipe = tmp_path / "pipe.yaml"
    os.mkfifo(pipe)
    huge = tmp_path / "huge.yaml"
    huge.write_bytes(b"# " + b"x" * yaml_file.MAX_BYTES)
    for path, message in (
        (tmp_path / "absent.yaml", "no such file"),
        (bytes_, "is not UTF-8 text \\(byte 6\\); save it in UTF-8"),
        (tmp_path, "instead of a regular file"),
        (pipe, "instead of a regular file"),
        (huge, f"at most {yaml_file.MAX_BYTES} are allowed"),
        (Path("with\0nul"), "cannot be read|no such file"),
    ):
        with pytest.raises(ConfigError, match=message):
            read_yaml(path)
