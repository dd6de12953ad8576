"""An environment of Python with some distributions, what they need, and nothing else: links to what is installed here."""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterable
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement

from campaign.common.paths import ROOT


def make(directory: Path, names: Iterable[str]) -> Path:
    """Give the Python of a new environment in `directory`; names: distributions, beside this project's own code."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(directory)], check=True)
    site = Path(sysconfig.get_path("purelib", "venv", {"base": str(directory), "platbase": str(directory)}))
    for each in _with_dependencies(names).values():
        for top in {path.parts[0] for path in each.files or () if ".." not in path.parts}:
            source = Path(str(each.locate_file(top)))
            if source.exists() and top != "__pycache__":
                (site / top).symlink_to(source)
    (site / "campaign.pth").write_text(f"{ROOT / 'workflow'}\n")
    command = directory / "bin" / "campaign"
    command.write_text(f"#!{directory}/bin/python\nfrom campaign.cli.__main__ import main\nmain()\n")
    command.chmod(0o755)
    return directory / "bin" / "python"


def _with_dependencies(names: Iterable[str]) -> dict[str, Distribution]:
    found: dict[str, Distribution] = {}
    left = list(names)
    while left:
        name = re.sub(r"[-_.]+", "-", left.pop()).lower()
        try:
            found[name] = distribution(name)
        except PackageNotFoundError:  # of another platform
            continue
        needed = map(Requirement, found[name].requires or ())
        left += [each.name for each in needed if each.marker is None or each.marker.evaluate({"extra": ""})]
        left = [each for each in left if re.sub(r"[-_.]+", "-", each).lower() not in found]
    return found
