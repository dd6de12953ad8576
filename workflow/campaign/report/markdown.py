"""Markdown as GitHub and GitLab render it: escaped texts, and tables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_SPECIAL = re.compile(r"[\\`*<|~&]|(?<!\w)_|_(?!\w)|(?<=\])\(")


def escape_markdown(text: object) -> str:
    """Escape a text so that Markdown shows it as it is, on one line."""
    return _SPECIAL.sub(lambda match: f"\\{match.group()}", " ".join(str(text).split()))


def format_markdown_list(texts: Iterable[object]) -> str:
    """Format texts as a list, one item per text."""
    return "\n".join(f"- {escape_markdown(text)}" for text in texts)


def format_markdown_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Format a table, one line per row.

    Args:
        columns: headings of the columns.
        rows: cells of each row, in the order of the columns.
    """
    lines = [columns, ["---"] * len(columns), *([escape_markdown(value) for value in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
