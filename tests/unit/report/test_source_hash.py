"""What results are made by: any change of content changes the hash, and nothing else does."""

from __future__ import annotations

from pathlib import Path

import pytest

from campaign.common.paths import SCRIPTS
from campaign.report.source_hash import compute_source_hash


def test_content_names_and_new_files_count_and_times_do_not(tmp_path: Path) -> None:
    figure = tmp_path / "figure.py"
    figure.write_text("a = 1\n")
    before = compute_source_hash(tmp_path)
    figure.touch()
    (tmp_path / "figure.pyc").write_text("compiled")
    assert compute_source_hash(tmp_path) == before
    (tmp_path / "other.py").write_text("")
    assert compute_source_hash(tmp_path) != before
    assert compute_source_hash() != compute_source_hash(SCRIPTS / "figures")


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        compute_source_hash(tmp_path / "none.css")
