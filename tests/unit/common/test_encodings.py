"""Every file and stream of the package states its encoding, whatever the locale of the machine is."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from campaign.common.paths import ROOT

SOURCES = sorted(path for room in ("workflow/campaign", "scripts", "docs") for path in (ROOT / room).rglob("*.py"))
TEXT_ARGUMENTS = {"read_text": 1, "write_text": 2}
"""Method of a path -> how many positional arguments it has with an encoding."""
SUBPROCESS_CALLS = {"run", "Popen", "check_output", "check_call"}


def text_calls_without_encoding(tree: ast.AST) -> Iterator[ast.Call]:
    """Yield the calls that read or write text in the encoding of the locale."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and all(keyword.arg != "encoding" for keyword in node.keywords):
            name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
            if is_text_call(node, name, is_method=isinstance(node.func, ast.Attribute)):
                yield node


def is_text_call(call: ast.Call, name: str, *, is_method: bool) -> bool:
    keywords = {keyword.arg: keyword.value for keyword in call.keywords}
    if is_method and name in TEXT_ARGUMENTS:
        return len(call.args) < TEXT_ARGUMENTS[name]
    if name in SUBPROCESS_CALLS:
        return bool(keywords.keys() & {"text", "universal_newlines"})
    if name.endswith("TemporaryFile"):
        return is_text_mode(keywords.get("mode", call.args[0] if call.args else None), default=False)
    if is_method and name == "open":
        # The first argument of a path's open is a mode; other opens, such as os.open, begin with a path.
        return is_text_mode(keywords.get("mode", call.args[0] if call.args else None), default=not call.args)
    if name in ("open", "fdopen"):
        return is_text_mode(keywords.get("mode", call.args[1] if len(call.args) > 1 else None), default=True)
    return name in ("TextIOWrapper", "FileHandler")


def is_text_mode(mode: ast.expr | None, *, default: bool) -> bool:
    text = mode.value if isinstance(mode, ast.Constant) else None
    return set(text) <= set("rwxat+") if isinstance(text, str) else default


def test_every_text_file_and_pipe_states_its_encoding() -> None:
    found = [
        f"{path}:{call.lineno}: {ast.unparse(call)}"
        for path in SOURCES
        for call in text_calls_without_encoding(ast.parse(path.read_bytes()))
    ]
    assert not found
