from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from campaign.common.errors import ConfigError
from campaign.spec.expression import MAX_LENGTH, parse_expression

AXES = {"workload": "bert-large", "batch": 8, "precision": "fp16", "hosts": 2, "attach": "fabric", "flag": True}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("workload == 'bert-large' and batch >= 8", True),
        ("batch == 8 or batch == 16", True),
        ("not (attach == 'local')", True),
        ("precision in ['fp16', 'bf16']", True),
        ("precision not in ('fp16', 'bf16')", False),
        ("1 < hosts <= 2", True),
        ("batch % 3 == 2 and batch // 3 == 2 and batch / 2 == 4", True),
        ("batch * hosts - 1 == 15 and batch + 1 == 9", True),
        ("-hosts == -2", True),
        ("flag == True", True),
        ("flag and hosts == 1", False),
        ("batch == 'eight'", False),
        ("  batch == 8\n", True),
    ],
)
def test_says_whether_axis_values_fulfil_it(text: str, expected: bool) -> None:
    assert parse_expression(text, AXES)(AXES) is expected


def test_knows_the_names_it_uses() -> None:
    assert parse_expression("batch > 1 and workload == 'x'", AXES).names == {"batch", "workload"}


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os')",
        "workload.upper()",
        "workload.__class__ == 1",
        "open('/etc/passwd')",
        "lambda: 1",
        "f'{batch}' == '8'",
        "[b for b in [1, 2]] == [1]",
        "{'a': 1} == 1",
        "batch if hosts else 1",
        "(batch := 9) == 9",
        "10**9 == 1",
        "1 << 99999 == 1",
        "batch[0] == 1",
        "b'8' == 8",
        "8j == 1",
        "... == 1",
        "batch is 8",
        "~batch == 1",
        "[*hosts] == []",
        "await batch",
        "yield",
    ],
)
def test_refuses_what_is_code(text: str) -> None:
    with pytest.raises(
        ConfigError,
        match=r"not allowed in an expression|contains '\w+', which is not an axis|is not a valid expression",
    ):
        parse_expression(text, AXES)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("worklod == 'x'", "did you mean 'workload'"),
        ("bert == 'x'", "known names: "),
        ("batch = 8", "is not a valid expression"),
        ("", "is not a valid expression"),
        ("batch == 'x", "is not a valid expression"),
        ("batch == 8 " + "+ 1" * MAX_LENGTH, f"at most {MAX_LENGTH}"),
        ("not " * 60 + "batch", "nested deeper"),
        ("(" * 300 + "batch" + ")" * 300, "expression|nested"),
        ("~" * 1500 + "batch", "not allowed"),
    ],
)
def test_message_names_place_and_remedy(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        parse_expression(text, AXES, "campaign.yaml:7: exclude.0.when")
    assert str(caught.value).startswith("campaign.yaml:7: exclude.0.when: ")
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    "text",
    [
        "batch < 'x'",
        "batch / 0 == 1",
        "batch % 0 == 1",
        "'a' * 1000000000 == 1",
        "workload + 1 == 2",
        "'%s' % batch == '8'",
        "1 in batch",
        f"1{'0' * 400} / 3 == 1",
        "-workload == 1",
    ],
)
def test_values_that_cannot_be_compared_are_a_clear_error(text: str) -> None:
    expression = parse_expression(text, AXES)
    with pytest.raises(ConfigError, match="cannot be evaluated"):
        expression(AXES)


TOKENS = [
    *AXES, "1", "0", "2.5", "'x'", "True", "(", ")", "[", "]", ",", "and", "or", "not", "in", "==", "!=", "<", "+", "-",
    "*", "/", "%", "//", "**", ".", "lambda", ":", "__import__", "if", "else", "f''", "~", ":=", "{", "}",
]  # fmt: skip


def _outcome(text: str) -> object:
    """The truth value, or the message of the ConfigError; anything else that is raised fails the test."""
    try:
        return parse_expression(text, AXES)(AXES)
    except ConfigError as error:
        return str(error)


@given(st.lists(st.sampled_from(TOKENS), max_size=12))
def test_any_tokens_give_a_truth_value_or_a_config_error(tokens: list[str]) -> None:
    assert isinstance(_outcome(" ".join(tokens)), bool | str)


@given(st.text(max_size=40))
def test_any_text_gives_a_truth_value_or_a_config_error(text: str) -> None:
    assert isinstance(_outcome(text), bool | str)


class _Trap:
    """Notices every attempt to reach into it."""

    touched: list[str] = []  # noqa: RUF012

    def __getattribute__(self, name: str) -> object:
        if name not in ("__class__", "__bool__"):
            _Trap.touched.append(name)
        return object.__getattribute__(self, name)

    def __call__(self) -> None:
        _Trap.touched.append("call")


@given(
    st.lists(st.sampled_from(["trap", ".", "x", "(", ")", "[", "0", "]", "==", "and", "not", "'a'", ","]), max_size=10)
)
def test_nothing_of_a_value_is_ever_called_or_reached_into(tokens: list[str]) -> None:
    _Trap.touched.clear()
    with contextlib.suppress(ConfigError):  # a refusal is as good
        parse_expression(" ".join(tokens), ["trap"])({"trap": _Trap()})
    assert [name for name in _Trap.touched if name in ("x", "call")] == []
