"""The import contract: it holds, and it catches a module outside of it, an import inside a function, and a cycle."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
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
