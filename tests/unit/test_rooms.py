"""The import contract holds and catches what stands outside of it; a class name stands for one class."""

from __future__ import annotations

import ast
import itertools
import os
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

from campaign.paths import ROOT


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
    (package / "statistics" / "lazy.py").write_text("def late():\n    from campaign.cli import main\n")
    (package / "plan" / "one.py").write_text("from campaign.plan import other\n")
    (package / "plan" / "other.py").write_text("def late():\n    from campaign.plan import one\n")
    done = _lint(tmp_path)
    assert done.returncode == 1
    for caught in (
        "- campaign.stray",
        "campaign.statistics.lazy -> campaign.cli",
        "No cycles are allowed in campaign.plan.",
    ):
        assert caught in done.stdout, done.stdout


# Names that two rooms share although one imports the other, each with its reason.
SHARED: dict[str, str] = {}


def _classes() -> Iterator[tuple[str, str, Path, set[str]]]:
    """Name of every class at the top of a module, its room, its module, and the names of its bases."""
    package = ROOT / "workflow" / "campaign"
    for path in sorted(package.rglob("*.py")):
        room = path.relative_to(package).parts[0].removesuffix(".py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef):
                bases = (base.value if isinstance(base, ast.Subscript) else base for base in node.bases)
                yield node.name, room, path, {ast.unparse(base).rpartition(".")[2] for base in bases}


def _imported() -> dict[str, set[str]]:
    """The rooms that each room imports."""
    package = ROOT / "workflow" / "campaign"
    found: defaultdict[str, set[str]] = defaultdict(set)
    for path in package.rglob("*.py"):
        room = path.relative_to(package).parts[0].removesuffix(".py")
        text = path.read_text(encoding="utf-8")
        found[room] |= set(re.findall(r"^ *(?:from|import) campaign\.(\w+)", text, re.MULTILINE))
    return found


def _shared(pairs: Iterable[tuple[tuple[str, str, Path], tuple[str, str, Path]]]) -> set[str]:
    return {f"{one[0]}: {one[2].relative_to(ROOT)} and {other[2].relative_to(ROOT)}" for one, other in pairs}


def test_a_public_class_name_stands_for_one_class_in_a_room_and_in_those_that_it_imports() -> None:
    rooms = _imported()
    by_name: defaultdict[str, list[tuple[str, str, Path]]] = defaultdict(list)
    for name, room, path, _ in _classes():
        if not name.startswith("_") and name not in SHARED:
            by_name[name].append((name, room, path))
    pairs = (pair for same in by_name.values() for pair in itertools.combinations(same, 2))
    found = _shared((a, b) for a, b in pairs if a[1] == b[1] or b[1] in rooms[a[1]] or a[1] in rooms[b[1]])
    assert found == set(), "rename the one in the upper room (.importlinter)"


def test_no_two_documents_share_a_class_name() -> None:
    """Documents are models of pydantic, whichever room they are in."""
    classes = list(_classes())
    models, more = set[str](), {"BaseModel"}
    while more - models:
        models |= more
        more = {name for name, _, _, bases in classes if bases & models}
    by_name: defaultdict[str, list[tuple[str, str, Path]]] = defaultdict(list)
    for name, room, path, bases in classes:
        if bases & models:
            by_name[name].append((name, room, path))
    found = _shared(pair for same in by_name.values() for pair in itertools.combinations(same, 2))
    assert found == set(), "rename one of them"
