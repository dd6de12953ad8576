"""The import contract holds and catches what stands outside of it; a name of a type stands for one type."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from campaign.common.paths import ROOT


def _lint(root: Path) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as lint; lint()"]
    environment = {**os.environ, "PYTHONPATH": str(root / "workflow"), "COLUMNS": "200"}
    argv += ["--config", str(root / ".importlinter"), "--cache-dir", str(root / ".import_linter_cache")]
    return subprocess.run(argv, cwd=root, env=environment, capture_output=True, text=True, check=False, timeout=300)


def test_the_import_contract_holds() -> None:
    done = _lint(ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_contract_catches_what_stands_outside_of_it(tmp_path: Path) -> None:
    shutil.copytree(
        ROOT / "workflow" / "campaign", tmp_path / "workflow" / "campaign", ignore=shutil.ignore_patterns("__pycache__")
    )
    shutil.copy(ROOT / ".importlinter", tmp_path)
    package = tmp_path / "workflow" / "campaign"
    (package / "stray.py").write_text("")
    (package / "analysis" / "statistics" / "lazy.py").write_text("def late():\n    from campaign.cli import main\n")
    (package / "plan" / "one.py").write_text("from campaign.plan import other\n")
    (package / "plan" / "other.py").write_text("def late():\n    from campaign.plan import one\n")
    done = _lint(tmp_path)
    assert done.returncode == 1
    for caught in (
        "- campaign.stray",
        "campaign.analysis.statistics.lazy -> campaign.cli",
        "No cycles are allowed in campaign.plan.",
    ):
        assert caught in done.stdout, done.stdout


def _define_types() -> Iterator[tuple[str, str, str]]:
    """Yield name, place and definition of every class and of every type alias, without the underscore of private names."""
    for path in sorted((ROOT / "workflow" / "campaign").rglob("*.py")) + sorted((ROOT / "scripts").rglob("*.py")):
        place = str(path.relative_to(ROOT))
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                yield node.name.lstrip("_"), place, f"class of {place}"
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                name = node.targets[0].id.lstrip("_")
                if name[:1].isupper() and not name.isupper():
                    yield name, place, ast.unparse(node.value)


def test_a_name_of_a_class_or_type_stands_for_one_class_or_type() -> None:
    definitions: defaultdict[str, dict[str, str]] = defaultdict(dict)
    for name, place, definition in _define_types():
        definitions[name].setdefault(definition, place)
    shared = {name: list(places.values()) for name, places in definitions.items() if len(places) > 1}
    assert shared == {}, "rename or merge them"
