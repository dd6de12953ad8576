"""What nothing can be faster than: the bare tools, measured in the same run on the same machine."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Sequence

from tests.benchmarks.project import COMMAND, Project
from tests.benchmarks.timing import least

_TIMES = 3


def import_pydantic_s(project: Project) -> float:
    """An interpreter that has loaded what validates configuration files."""
    return _least(project, sys.executable, "-c", "import pydantic")


def import_pandas_s(project: Project) -> float:
    """An interpreter that has loaded what writes tables."""
    return _least(project, sys.executable, "-c", "import pandas, pyarrow.parquet")


def import_matplotlib_s(project: Project) -> float:
    """An interpreter that has loaded what reads tables and draws figures."""
    return _least(project, sys.executable, "-c", "import pandas, pyarrow.parquet, matplotlib.pyplot")


def snakemake_s(project: Project) -> float:
    """Snakemake that does nothing."""
    return _least(project, "snakemake", "--version")


def shell_loop_s(project: Project, runs: int, command: Sequence[str] = COMMAND) -> float:
    """The runs' command as often, in a loop of the shell, each in a process of its own."""
    loop = f"for run in $(seq {runs}); do {shlex.join(['/usr/bin/env', *command])} > log.txt; done"
    return _least(project, "bash", "-c", loop)


def written_once_s(project: Project, files: int) -> float:
    """As many files of a record's size, each forced to disk and renamed."""
    directory = project.directory / "written"
    directory.mkdir(exist_ok=True)
    started = time.perf_counter()
    for number in range(files):
        temporary = directory / f".{number}"
        with temporary.open("wb") as file:
            file.write(b"x" * 2000)
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(directory / f"{number}")
    return time.perf_counter() - started


def _least(project: Project, *command: str) -> float:
    return least(lambda: project.run(*command), _TIMES).wall_s
