"""The pages that people read, taken apart: fenced blocks, links, anchors, prose."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = (
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "config/README.md")),
    *sorted(DOCS.rglob("*.md")),
)


@dataclass(frozen=True)
class Block:
    """A fenced block. words: what its info string says; the first is the language."""

    page: Path
    line: int
    words: tuple[str, ...]
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def file_name(self) -> str:
        """The file that the block shows: a first line such as `# systems/pair.yaml`."""
        match = re.match(r"# (\S+\.(?:yaml|py|smk))\n|# (Snakefile)\n", self.text)
        return (match[1] or match[2]) if match else ""


@cache
def tokens(page: Path) -> list[Token]:
    return MarkdownIt("commonmark").enable("table").parse(page.read_text(encoding="utf-8"))


def blocks(page: Path, *languages: str) -> list[Block]:
    """The fenced blocks of a page in these languages, in order."""
    return [
        Block(page, token.map[0] + 1 if token.map else 0, tuple(token.info.split()), token.content)
        for token in tokens(page)
        if token.type == "fence" and token.info.partition(" ")[0] in languages
    ]


EXAMPLES = {
    noun: blocks(DOCS / "reference" / f"{page}.md", "yaml")[0].text
    for noun, page in (("campaign", "campaign-file"), ("system", "system-file"), ("import", "import-map"))
}
"""The example that opens each page of keys."""


def links(page: Path) -> Iterator[str]:
    """Targets of all links and pictures."""
    for token in tokens(page):
        for child in token.children or ():
            if child.type in ("link_open", "image"):
                yield str(child.attrs.get("href") or child.attrs.get("src"))


@cache
def anchors(page: Path) -> frozenset[str]:
    """The anchors that a forge and the site give to headings."""
    seen: Counter[str] = Counter()
    found = set()
    for before, token in zip(tokens(page), tokens(page)[1:], strict=False):
        if before.type == "heading_open":
            slug = re.sub(r"[^\w\- ]", "", _text(token).strip().lower()).replace(" ", "-")
            found.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
            seen[slug] += 1
    return frozenset(found)


def sentences(page: Path) -> Iterator[str]:
    """Sentences of paragraphs, lists, headings and table cells; code in them counts as one word."""
    for token in tokens(page):
        if token.type == "inline":
            yield from re.split(r"(?<=[.!?:])\s+(?=\S)", " ".join(_text(token).split()))


def _text(token: Token) -> str:
    parts = []
    for child in token.children or ():
        if child.type == "code_inline":
            parts.append(child.content if token.level == 1 and token.map is None else child.content.replace(" ", "_"))
        elif child.type in ("text", "softbreak", "hardbreak"):
            parts.append(child.content or " ")
    return "".join(parts)
