"""The packages of `campaign`, in the order of the import contract, and a picture of which imports which."""

from __future__ import annotations

import ast
import configparser
from collections.abc import Sequence
from pathlib import Path

import grimp

ROOT = Path(__file__).resolve().parents[1]
STEP, LABEL, TOP = 22, 96, 92


def packages() -> Sequence[str]:
    """Packages and shared modules from the top of the line to its foot."""
    contract = configparser.ConfigParser()
    contract.read(ROOT / ".importlinter")
    layers = contract["importlinter:contract:line"]["layers"]
    return [name for layer in layers.split("\n") for name in layer.replace("|", " ").split()]


def imports() -> frozenset[tuple[str, str]]:
    """(importer, imported) of all packages, from every module in them; imports inside functions count."""
    graph = grimp.build_graph("campaign")
    pairs = ((module, other) for module in graph.modules for other in graph.find_modules_directly_imported_by(module))
    names = ((one.split(".")[1], two.split(".")[1]) for one, two in pairs if "." in one and "." in two)
    return frozenset((one, two) for one, two in names if one != two)


def purpose(package: str) -> str:
    """The first sentence of the docstring of a package or shared module."""
    directory = ROOT / "workflow" / "campaign"
    path = directory / package / "__init__.py"
    text = (
        ast.get_docstring(
            ast.parse((path if path.is_file() else directory / f"{package}.py").read_text(encoding="utf-8"))
        )
        or ""
    )
    return " ".join(text.partition("\n\n")[0].split())


def picture() -> str:
    """A square: the package of a row imports those of the marked columns. A line has all marks on one side of the diagonal."""
    names, known = packages(), imports()
    size = len(names) * STEP
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LABEL + size + 8} {TOP + size + 8}" role="img" '
        'aria-label="Which package imports which: every mark is above the diagonal, so the packages form one line">',
        "<style>text{font:12px sans-serif;fill:#1b2733}</style>",
        '<rect width="100%" height="100%" fill="#fff"/>',
    ]
    for place, name in enumerate(names):
        middle = place * STEP + STEP / 2
        parts.append(f'<text x="{LABEL - 6}" y="{TOP + middle + 4:g}" text-anchor="end">{name}</text>')
        parts.append(f'<text transform="translate({LABEL + middle + 4:g} {TOP - 6}) rotate(-90)">{name}</text>')
        corner = f'x="{LABEL + place * STEP}" y="{TOP + place * STEP}"'
        parts.append(f'<rect {corner} width="{STEP}" height="{STEP}" fill="#dfe5ea"/>')
    for row, importer in enumerate(names):
        for column, imported in enumerate(names):
            if (importer, imported) in known:
                colour = "#4a6a8a" if column > row else "#c0392b"
                place = f'x="{LABEL + column * STEP + 4}" y="{TOP + row * STEP + 4}"'
                parts.append(f'<rect {place} width="{STEP - 8}" height="{STEP - 8}" rx="3" fill="{colour}"/>')
    frame = f'x="{LABEL}" y="{TOP}" width="{size}" height="{size}"'
    return "\n".join([*parts, f'<rect {frame} fill="none" stroke="#9aa5b1"/>', "</svg>"]) + "\n"
