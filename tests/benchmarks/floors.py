"""Floors: processor time and memory that bare tools need for the same work, measured in the same run."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.benchmarks.project import Project
from tests.benchmarks.timing import Took, measure_minimum

_TIMES = 3
_SNAKEFILE = """
rule all:
    input: expand("done/{{number}}", number=range({jobs}))
rule job:
    output: "done/{{number}}"
    shell: "true"
"""
_READ_JSON = """
import json, os, sys
import pandas, pyarrow.parquet
for directory, _, names in os.walk(sys.argv[1]):
    for name in names:
        with open(os.path.join(directory, name), "rb") as file:
            json.loads(file.read())
"""
_COPY_ONE_BY_ONE = """
import hashlib, sys
from pathlib import Path
source, target = map(Path, sys.argv[1:])
target.mkdir()
for number, path in enumerate(sorted(source.glob("**/*.log"))):
    text = path.read_bytes()
    (target / f"{number}-{hashlib.sha256(text).hexdigest()[:16]}").write_bytes(text)
"""
_WRITE_FORCED = """
import os
from pathlib import Path
Path("forced").mkdir()
for number in range({files}):
    temporary = Path("forced", f".{{number}}")
    with temporary.open("wb") as file:
        file.write(b"x" * 2000)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(Path("forced", str(number)))
"""


def start_interpreter(project: Project, program: str = "pass") -> Took:
    """Run a one-line Python program, such as an import."""
    return measure_minimum(lambda: project.run(sys.executable, "-c", program), _TIMES)


def dry_run_bare_jobs(project: Project, jobs: int) -> Took:
    """Make a dry run of a Snakefile with this many independent jobs."""
    directory = project.directory / f"bare-{jobs}"
    directory.mkdir()
    (directory / "Snakefile").write_text(_SNAKEFILE.format(jobs=jobs))
    return project.run("snakemake", "-n", "--quiet", "all", "--cores", "1", "--directory", str(directory),
                       "--snakefile", str(directory / "Snakefile"))  # fmt: skip


def read_json_files(project: Project, directory: Path) -> Took:
    """Parse all JSON files below a directory, in a program that has imported what writes tables."""
    return project.run(sys.executable, "-c", _READ_JSON, str(directory))


def copy_logs(project: Project, directory: Path) -> Took:
    """Read, hash and write the logs below a directory, one file each."""
    return project.run(sys.executable, "-c", _COPY_ONE_BY_ONE, str(directory), str(project.directory / "copies"))


def run_shell_loop(project: Project, runs: int, command: str) -> Took:
    """Run a command in a loop of the shell, each in a process of its own."""
    loop = f"for run in $(seq {runs}); do /usr/bin/env {command} > log.txt; done"
    return measure_minimum(lambda: project.run("bash", "-c", loop), _TIMES)


def write_forced_files(project: Project, files: int) -> Took:
    """Write files of the size of a record. Each is forced to disk and renamed."""
    return project.run(sys.executable, "-c", _WRITE_FORCED.format(files=files))
