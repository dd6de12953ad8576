"""Predicate language of `--where`, exclusions and overrides, which compares axis values.

An expression is parsed by Python's grammar and translated node by node. It is never evaluated as Python, so it cannot call or
import anything or access attributes. It may contain names of axes, numbers, strings, True/False, lists, `== != < <= > >= in
not in`, `and or not`, `+ - * / % //` and parentheses.
"""

from __future__ import annotations

import ast
import difflib
import operator
import warnings
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from campaign.common.errors import ConfigError

MAX_LENGTH = 2000  # A longer text is a mistake or an attack on the recursive parser.
MAX_DEPTH = 40

_Term = Callable[[Mapping[str, Any]], Any]

_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda left, right: left in right,
    ast.NotIn: lambda left, right: left not in right,
}
_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


@dataclass(frozen=True)
class Expression:
    """Parsed predicate, which is called with a mapping of axis values."""

    text: str
    names: frozenset[str]
    where: str
    """Location of the expression, for messages."""
    _evaluate: _Term

    def __call__(self, axes: Mapping[str, Any]) -> bool:
        """Return True if the axis values satisfy the predicate. Raises ConfigError if values cannot be compared."""
        try:
            return bool(self._evaluate(axes))
        except (TypeError, ArithmeticError, KeyError) as error:
            values = ", ".join(f"{name} = {axes[name]!r}" for name in sorted(self.names & axes.keys()))
            remedy = (
                "exclude such values first, as in 'x != 0 and 8 / x > 2'"
                if isinstance(error, ArithmeticError)
                else "compare numbers with numbers, and quoted strings with strings"
            )
            raise ConfigError(
                f"{self.where}: '{_shorten_text(self.text)}' cannot be "
                f"evaluated{' for ' if values else ''}{values}: {error}; {remedy}"
            ) from error


def parse_expression(text: str, allowed_names: Collection[str], where: str = "expression") -> Expression:
    """Parse a predicate. Raises ConfigError if it contains an unknown name or something that is not allowed.

    Args:
        text: expression.
        allowed_names: names of axes that the expression may use.
        where: location of the expression, for messages.
    """
    if len(text) > MAX_LENGTH:
        raise ConfigError(f"{where}: the expression has {len(text)} characters; at most {MAX_LENGTH} are allowed")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python's hints on its own syntax do not apply to this language.
            tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        reason = getattr(error, "msg", None) or str(error) or "nested too deeply"
        raise ConfigError(
            f"{where}: '{_shorten_text(text)}' is not a valid expression ({reason}); write for example "
            "\"workload == 'bert-large' and batch >= 8\""
        ) from error
    names: set[str] = set()
    term = _translate_node(tree.body, text, allowed_names, where, names, 0)
    return Expression(text, frozenset(names), where, term)


def _translate_node(
    node: ast.expr, text: str, allowed_names: Collection[str], where: str, names: set[str], depth: int
) -> _Term:
    if depth > MAX_DEPTH:
        raise ConfigError(f"{where}: '{_shorten_text(text)}' is nested deeper than {MAX_DEPTH} levels")

    def term(child: ast.expr) -> _Term:
        return _translate_node(child, text, allowed_names, where, names, depth + 1)

    match node:
        case ast.Constant(value=str() | int() | float() | bool()):
            constant = node.value
            return lambda _: constant
        case ast.Name(id=name):
            if name not in allowed_names:
                near = difflib.get_close_matches(name, list(allowed_names), n=1)
                hint = f"did you mean '{near[0]}'?" if near else f"known names: {', '.join(sorted(allowed_names))}"
                raise ConfigError(
                    f"{where}: '{text}' contains '{name}', which is not an axis; {hint} (strings need quotes)"
                )
            names.add(name)
            return lambda axes: axes[name]
        case ast.List(elts=items) | ast.Tuple(elts=items):
            terms = [term(item) for item in items]
            return lambda axes: [item(axes) for item in terms]
        case ast.BoolOp(op=op, values=values):
            terms = [term(value) for value in values]
            if isinstance(op, ast.And):
                return lambda axes: all(item(axes) for item in terms)
            return lambda axes: any(item(axes) for item in terms)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            inner = term(operand)
            return lambda axes: not inner(axes)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            inner = term(operand)
            return lambda axes: -inner(axes)
        case ast.BinOp(left=left, op=operation, right=right) if type(operation) in _ARITHMETIC:
            calculate, first, second = _ARITHMETIC[type(operation)], term(left), term(right)
            return lambda axes: _calculate_numbers(calculate, first(axes), second(axes))
        case ast.Compare(left=left, ops=operations, comparators=comparators) if all(
            type(o) in _COMPARISONS for o in operations
        ):
            terms = [term(left), *(term(item) for item in comparators)]
            tests = [_COMPARISONS[type(operation)] for operation in operations]
            return lambda axes: _compare_chain(tests, [item(axes) for item in terms])
    source_text = ast.get_source_segment(text.strip(), node) or text
    raise ConfigError(
        f"{where}: '{_shorten_text(source_text)}' is not allowed in an "
        "expression; allowed are axis names, numbers, quoted strings, lists, "
        "comparisons, 'in', 'and', 'or', 'not' and + - * / % //"
    )


def _shorten_text(text: str) -> str:
    return text if len(text) <= 80 else text[:77] + "..."


def _calculate_numbers(calculate: Callable[[Any, Any], Any], first: Any, second: Any) -> Any:
    # Only numbers are allowed, because 'a' * 10**9 would exhaust the memory, and '%' would format a string.
    if not isinstance(first, int | float) or not isinstance(second, int | float):
        raise TypeError(f"arithmetic needs numbers, not {first!r} and {second!r}")
    return calculate(first, second)


def _compare_chain(tests: list[Callable[[Any, Any], Any]], values: list[Any]) -> bool:
    return all(test(first, second) for test, first, second in zip(tests, values, values[1:], strict=False))
