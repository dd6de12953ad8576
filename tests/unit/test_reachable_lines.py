"""What a maintainer has to read to understand one command: the lines of all modules that its module reaches by import."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from campaign.common.paths import ROOT

WORKFLOW = ROOT / "workflow"
MAX_LINES_OF_PLAN = 26_000
PLAN_NEVER_REACHES = ("campaign.analysis.statistics", "campaign.report", "campaign.workloads.parsers")


def module_file(module: str) -> Path | None:
    """Return the file of a module or package of the project, or None if there is none of this name."""
    path = WORKFLOW / module.replace(".", "/")
    package, single = path / "__init__.py", path.with_suffix(".py")
    return package if package.is_file() else single if single.is_file() else None


@cache
def imported_modules(module: str) -> tuple[str, ...]:
    """Return what a module imports of the project, at its top or within functions, and the packages that it lies in.

    Imports for type checkers alone are left out.
    """

    def names() -> Iterator[str]:
        parts = module.split(".")
        # The package itself imports results only when `campaign.load` is called.
        yield from (".".join(parts[:depth]) for depth in range(2, len(parts)))
        path = module_file(module)
        assert path is not None
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for_types = {
            child
            for node in ast.walk(tree)
            if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
            for statement in node.body
            for child in ast.walk(statement)
        }
        for node in ast.walk(tree):
            if node in for_types:
                continue
            if isinstance(node, ast.ImportFrom) and node.module:
                yield node.module
                yield from (f"{node.module}.{alias.name}" for alias in node.names)
            elif isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)

    return tuple(name for name in names() if name.split(".")[0] == "campaign" and module_file(name))


def reached_modules(start: str) -> dict[str, int]:
    """Return each module that `start` reaches by import, with its number of lines."""
    lines: dict[str, int] = {}
    waiting = [start]
    while waiting:
        module = waiting.pop()
        path = module_file(module)
        if module not in lines and path is not None:
            lines[module] = len(path.read_text(encoding="utf-8").splitlines())
            waiting += imported_modules(module)
    return lines


def test_the_plan_reaches_little() -> None:
    reached = reached_modules("campaign.cli.plan")
    assert "campaign.plan.matrix" in reached
    assert not [module for module in reached if module.startswith(PLAN_NEVER_REACHES)]
    assert sum(reached.values()) <= MAX_LINES_OF_PLAN


if __name__ == "__main__":
    for command in ("plan", "measure", "report"):
        reached = reached_modules(f"campaign.cli.{command}")
        print(f"cli.{command}: {sum(reached.values()):,} lines in {len(reached)} modules")
