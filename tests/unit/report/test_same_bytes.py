"""The report of the same records is the same file, whoever makes it: other processes, hash seeds, time zones, languages."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from campaign.report.sources import write_archive_report

ARCHIVE = Path(__file__).parents[2] / "data" / "archives" / "made-up.zip"
PLACE = {"PYTHONHASHSEED": "1", "TZ": "Pacific/Kiritimati", "LC_ALL": "C", "OMP_NUM_THREADS": "1", "COLUMNS": "40"}


def test_the_report_of_an_archive_is_the_same_bytes_everywhere(tmp_path: Path) -> None:
    here, there = tmp_path / "here.html", tmp_path / "elsewhere" / "page.html"
    there.parent.mkdir()
    command = [sys.executable, "-m", "campaign.cli.main", "report", str(ARCHIVE), "--output", str(there)]
    environment = {**os.environ, **PLACE, "HOME": str(there.parent), "MPLCONFIGDIR": str(there.parent)}
    with subprocess.Popen(command, cwd=there.parent, env=environment, stderr=subprocess.PIPE, text=True) as process:
        write_archive_report(ARCHIVE, here)
        _, said = process.communicate(timeout=300)
    assert process.returncode == 0, said
    # Not compared by `==` in the assertion: pytest would take a minute to say how pages differ.
    same = here.read_bytes() == there.read_bytes()
    assert same
    assert here.stat().st_size > 50_000
