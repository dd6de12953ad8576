"""A small measured campaign and its archive, which the tests of archives share."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path

import pytest

from campaign.archive.write import write_archive
from campaign.plan.campaign.resolve import Campaign
from tests.unit.archive import archive_data


@pytest.fixture(scope="session")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> Campaign:
    return archive_data.campaign_in(tmp_path_factory.mktemp("config"))


@pytest.fixture(scope="session")
def whole(campaign: Campaign, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    """A results directory with tables, and the bytes of its archive."""
    root = tmp_path_factory.mktemp("whole")
    results = archive_data.fill(campaign, root / "results")
    write_archive(campaign, results, root / "a.zip")
    with zipfile.ZipFile(root / "a.zip") as archive:
        archive.extractall(results, [name for name in archive.namelist() if name.startswith("tables/")])
    write_archive(campaign, results, root / "a.zip")
    return results, (root / "a.zip").read_bytes()


@pytest.fixture
def results(whole: tuple[Path, bytes], tmp_path: Path) -> Path:
    """A copy of the results that a test may change."""
    return Path(shutil.copytree(whole[0], tmp_path / "results"))


@pytest.fixture
def there(whole: tuple[Path, bytes], tmp_path: Path) -> Path:
    """An archive of all results."""
    path = tmp_path / "out" / "small.zip"
    path.parent.mkdir()
    path.write_bytes(whole[1])
    return path
