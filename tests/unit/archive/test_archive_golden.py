"""Archives of every schema that there ever was: read, tabulated and rendered by this version as by the one that made them."""

from __future__ import annotations

import csv
import hashlib
import io
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from campaign.archive.layout import READABLE, SCHEMA
from campaign.archive.open_results import report_from_archive, tables_from
from campaign.archive.read import check, opened
from campaign.report import figure
from tests.unit.archive.archive_data import ARCHIVES

# A golden archive is what an earlier version made: these never change, and a new schema adds one.
MADE: Mapping[str, str] = {
    "archive/1": "d7001087528d99e0dccd96d40563a5e522c2d6959894543c29a8a0fe92c624a3",
    "archive/2": "0df1d34738cdf9dc6aa6b687ed92e052cee462916ded6053aa03309a26ebb1a9",
    "archive/3": "afa5ffa8119f08acf58602c618e6fc55aba38a14ca430bf0527810f8cdb97525",
}
MAKE = "python -m tests.unit.archive.archive_data"
# Of the tables that the version before made; what they say must not change, whatever columns are added or renamed beside.
CELL = (
    "cell_id",
    "configuration",
    "workload",
    "batch",
    "state",
    "n_planned",
    "n_ok",
    "n_implied",
    "n_failed",
    "n_missing",
)
RUN = ("cell_id", "repetition", "status", "lease_id")


def golden(schema: str) -> Path:
    return ARCHIVES / f"{schema.replace('/', '-')}.zip"


def archived(path: Path, member: str) -> list[dict[str, str]]:
    """Lines of a CSV file in the archive, as its own version wrote them."""
    with zipfile.ZipFile(path) as archive:
        return list(csv.DictReader(io.StringIO(archive.read(member).decode())))


def test_every_schema_has_a_golden_archive_that_nobody_has_changed() -> None:
    assert set(MADE) == set(READABLE), f"make the golden archive of {SCHEMA} ({MAKE}), and add its SHA-256 here"
    assert READABLE[-1] == SCHEMA
    for schema, digest in MADE.items():
        content = golden(schema).read_bytes()
        assert hashlib.sha256(content).hexdigest() == digest, f"{golden(schema)} must stay as it was made"
        assert len(content) < 100 * 1024


@pytest.mark.parametrize("schema", MADE)
def test_a_golden_archive_says_what_it_said_when_it_was_made(schema: str) -> None:
    path = golden(schema)
    index, problems = check(path)
    assert (index.schema_version, index.campaign, problems) == (schema, "small", [])
    tables = tables_from(path)
    for frame, member, columns, rate in (
        (tables.cells, "tables/cells.csv", CELL, "median"),
        (tables.runs, "tables/runs.csv", RUN, "throughput_per_s"),
    ):
        then = {tuple(row[name] for name in columns): row[rate] for row in archived(path, member)}
        now = {tuple(str(row[name]) for name in columns): row[rate] for row in frame.to_dict("records")}
        assert set(then) == set(now)
        assert len(then) >= 16
        for key, value in then.items():
            assert now[key] == pytest.approx(float(value)) if value else now[key] != now[key]
    assert len(tables.leases) == 4
    assert len(tables.links) == 1


@pytest.mark.parametrize("schema", MADE)
def test_a_golden_archive_renders(schema: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # All figures together are drawn elsewhere.
    monkeypatch.setattr(figure, "figure_names", lambda *arguments: ["memory_frontier"])
    report_from_archive(golden(schema), tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "A small campaign" in page
    assert "Slurm says DOWN" in page
    assert "Segmentation fault" in page or "ended with 1" in page


def test_samples_come_with_an_archive_that_has_them() -> None:
    with opened(golden("archive/2")) as archive:
        assert [path.suffix for path in (archive.directory / "telemetry").rglob("*.parquet")] == [".parquet"]
        assert list((archive.directory / "limits").rglob("*.out.*.json"))
        assert list((archive.directory / "superseded").rglob("*.json"))
