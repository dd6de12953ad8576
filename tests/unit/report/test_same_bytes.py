"""The report of the same records is the same file, whoever makes it: other processes, hash seeds, time zones, languages."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

ARCHIVE = Path(__file__).parents[2] / "data" / "archives" / "archive-2.zip"
PLACES = (
    {"PYTHONHASHSEED": "1", "TZ": "Pacific/Kiritimati", "LC_ALL": "C", "OMP_NUM_THREADS": "1"},
    {"PYTHONHASHSEED": "2", "TZ": "America/Los_Angeles", "LC_ALL": "C.UTF-8", "COLUMNS": "40"},
)


def test_the_report_of_an_archive_is_the_same_bytes_everywhere(tmp_path: Path) -> None:
    pages = [tmp_path / f"{number}" / "page.html" for number in range(len(PLACES))]
    started = []
    for page, place in zip(pages, PLACES, strict=True):
        page.parent.mkdir()
        command = [sys.executable, "-m", "campaign.cli.main", "report", str(ARCHIVE), "--output", str(page)]
        environment = {**os.environ, **place, "HOME": str(page.parent), "MPLCONFIGDIR": str(page.parent)}
        started.append(subprocess.Popen(command, cwd=page.parent, env=environment, stderr=subprocess.PIPE, text=True))
    for process in started:
        _, said = process.communicate(timeout=300)
        assert process.returncode == 0, said
    first, second = (hashlib.sha256(page.read_bytes()).hexdigest() for page in pages)
    assert first == second
    assert pages[0].stat().st_size > 50_000
