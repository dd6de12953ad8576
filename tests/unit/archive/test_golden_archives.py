"""Archives that the first version of `archive/3` wrote open as they did then: checks, tables, and the report with its numbers.

`measured.zip` is a campaign that was measured on one host; `made-up.zip` has everything that an archive can hold.
They are never made again.
"""

from __future__ import annotations

import csv
import hashlib
import html
import io
import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pytest

from campaign.archive.read import check_archive, extract_to_directory
from campaign.plan.matrix import expand_matrix
from campaign.report import figure
from campaign.report.sources import load_tables, write_archive_report
from tests.unit.archive.archive_data import ARCHIVES


@dataclass(frozen=True)
class GoldenArchive:
    """What one archive must hold.

    Args:
        rows: number of rows per table.
        means: mean throughput with its interval, by configuration and batch.
        shown: texts of the report.
    """

    sha256: str
    campaign: str
    rows: Mapping[str, int]
    means: Mapping[tuple[str, int], tuple[float, float, float]]
    shown: tuple[str, ...]


GOLDEN: Mapping[str, GoldenArchive] = {
    "measured": GoldenArchive(
        "11cd5c24ba02234ed274dbc463f1a88e4126487721a981b6f29d200c8aef1a8e",
        "golden",
        {"cells": 3, "runs": 6, "leases": 4, "links": 2, "telemetry": 16, "steps": 12},
        {
            ("1x2-local", 2): (204.374427, 156.528555, 266.845282),
            ("1x2-fabric", 2): (222.981296, 192.159140, 258.747299),
        },
        (
            "A small campaign that was measured",
            "−8.3 % [−32.1 % to 23.7 %]",
            "223.0 samples/s (144.4 to 275.6)",
            "Memory runs out at batch 2",
        ),
    ),
    "made-up": GoldenArchive(
        "6de43c2b12c0d3d752a7d89abb104880da13eb6b6c1f6b70e296a5ca17d3b10f",
        "small",
        {"cells": 16, "runs": 31, "leases": 4, "links": 1, "telemetry": 10, "steps": 78},
        {
            ("1x1-fabric", 4): (122.997807, 121.365192, 124.652384),
            ("1x2-local", 8): (280.710407, 276.911368, 284.561566),
        },
        (
            "A small campaign",
            "Efficiency with the most devices of each line is 92.7 %",
            "280.7 samples/s (277.1 to 285.5",
            "Slurm says DOWN",
            "ended with 1",
        ),
    ),
}
"""The archives by the name of their file."""
_CELL = ("cell_id", "configuration", "workload", "batch", "state", "n_planned", "n_ok", "n_failed", "n_missing")
_RUN = ("cell_id", "repetition", "status", "lease_id")


def path_of(name: str) -> Path:
    return ARCHIVES / f"{name}.zip"


def read_csv(name: str, member: str) -> list[dict[str, str]]:
    """Return the rows of a CSV file in an archive, as the version that made it wrote them."""
    with zipfile.ZipFile(path_of(name)) as archive:
        return list(csv.DictReader(io.StringIO(archive.read(member).decode())))


def test_golden_archives_stay_as_they_were_made() -> None:
    assert {path.stem for path in ARCHIVES.glob("*.zip")} >= set(GOLDEN)
    for name, golden in GOLDEN.items():
        content = path_of(name).read_bytes()
        assert hashlib.sha256(content).hexdigest() == golden.sha256, f"{name}.zip must stay as it was made"


@pytest.mark.parametrize("name", GOLDEN)
def test_a_golden_archive_has_no_problem(name: str) -> None:
    index, problems = check_archive(path_of(name))
    assert (index.schema_version, index.campaign, problems) == ("archive/3", GOLDEN[name].campaign, [])


@pytest.mark.parametrize("name", GOLDEN)
def test_tables_of_a_golden_archive_have_the_numbers_of_then(name: str) -> None:
    golden, tables = GOLDEN[name], load_tables(path_of(name))
    assert {table: len(getattr(tables, table)) for table in golden.rows} == golden.rows
    cells = tables.cells.set_index(["configuration", "batch"])
    for cell, numbers in golden.means.items():
        row = cells.loc[[cell]][["mean", "ci_low", "ci_high"]].dropna().iloc[0]
        assert tuple(row) == pytest.approx(numbers, rel=1e-6)
    for frame, member, key, values in (
        (tables.cells, "tables/cells.csv", _CELL, ("mean", "sd", "median", "ci_low", "ci_high")),
        (tables.runs, "tables/runs.csv", _RUN, ("throughput_per_s", "step_median_s", "started", "ended")),
    ):
        rows = read_csv(name, member)
        assert list(frame[list(key)].astype(str).itertuples(index=False, name=None)) == [
            tuple(row[column] for column in key) for row in rows
        ]
        for column in values:
            then = pd.to_numeric(pd.Series([row[column] for row in rows])).to_numpy()
            assert frame[column].astype(float).to_numpy() == pytest.approx(then, nan_ok=True), column


@pytest.mark.parametrize("name", GOLDEN)
def test_the_report_of_a_golden_archive_has_the_numbers_of_then(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # All figures together are drawn elsewhere.
    monkeypatch.setattr(figure, "list_figure_names", lambda *arguments: ["scaling", "overhead", "memory_frontier"])
    write_archive_report(path_of(name), tmp_path / "page.html")
    words = html.unescape(re.sub(r"<[^>]+>", " ", (tmp_path / "page.html").read_text()))
    page = re.sub(r"\s+", " ", words)
    for text in GOLDEN[name].shown:
        assert text in page


@pytest.mark.parametrize("name", GOLDEN)
def test_a_golden_archive_is_unpacked_with_its_samples(name: str, tmp_path: Path) -> None:
    archive = extract_to_directory(path_of(name), tmp_path)
    recorded = {record.name.split(".")[0] for record in (archive.directory / "records").rglob("*.json")}
    assert recorded == {cell.id for cell in expand_matrix(archive.campaign).cells}
    assert list((archive.directory / "telemetry").rglob("*.parquet"))
