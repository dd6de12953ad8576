"""Three published studies, predicted from public numbers of one device, and how many of their claims that reaches."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable

from tests.benchmarks.figure import Figure, Skipped
from tests.benchmarks.project import ROOT, Project

STUDIES = ("falcon", "faster", "bitfusion")
_MOST_S = 1800.0


def study(project: Project) -> Iterable[Figure]:
    """`make study`: three predicted campaigns, and their claims (up to half an hour; it ends with the table of claims)."""
    if not all(map(shutil.which, ("ip", "tc"))):
        raise Skipped("links cannot be emulated here: ip and tc are missing")
    results = project.directory / "results"
    files = [str(ROOT / "config" / "campaigns" / f"{name}-predicted.yaml") for name in STUDIES]
    started_s = time.perf_counter()
    # As in the Makefile: leases of twelve and more devices run alone.
    narrowed = [(files[1], "--where", "ranks < 12"), (files[1], "--", "--cores", "1"), *((file,) for file in files)]
    for file, *options in narrowed:
        command = ["campaign", "run", file, "--results", str(results), *options]
        subprocess.run(command, check=True, stdout=sys.stderr)
    took_s = time.perf_counter() - started_s
    show = ["campaign", "published", *files, "--results", str(results)]
    subprocess.run(show, check=True, stdout=sys.stderr)
    said = json.loads(subprocess.run([*show, "--format", "json"], check=True, capture_output=True).stdout)
    reached, inside, near = (int(re.search(words, said["score"])[1]) for words in _SCORE)  # type: ignore[index]
    yield Figure("study, three predicted campaigns", took_s, "s", _MOST_S)
    yield Figure(
        f"study, of {reached} claims those not inside their range or within 10 % of it",
        reached - inside - near,
        "",
        reached,
    )


_SCORE = (r"^(\d+) of", r"(\d+) inside", r"(\d+) within")
