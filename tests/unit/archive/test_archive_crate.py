"""The archive as a Workflow Run RO-Crate: what the profiles ask for, and that a wrong description is found."""

from __future__ import annotations

import copy
import json
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from rocrate.rocrate import ROCrate

from campaign.archive.crate import find_crate_problems
from campaign.archive.layout import CRATE, FileFacts
from campaign.archive.read import check_archive, extract_to_directory, open_archive
from campaign.archive.write import ArchiveOptions, write_archive
from campaign.common.errors import ArchiveError
from campaign.plan.campaign.resolve import Campaign, load_campaign
from tests.unit.archive import archive_data

Document = dict[str, Any]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Campaign, Path, Path]:
    """A campaign, its results, and its archive."""
    root = tmp_path_factory.mktemp("crate")
    campaign = archive_data.campaign_in(root / "config")
    results = archive_data.fill(campaign, root / "results")
    write_archive(campaign, results, root / "a.zip", options=ArchiveOptions("CC-BY-4.0", "Ada Lovelace"))
    return campaign, results, root / "a.zip"


@pytest.fixture(scope="module")
def document(made: tuple[Campaign, Path, Path]) -> Document:
    with zipfile.ZipFile(made[2]) as archive:
        found: Document = json.loads(archive.read(CRATE))
    return found


@pytest.fixture(scope="module")
def files(made: tuple[Campaign, Path, Path]) -> dict[str, FileFacts]:
    with open_archive(made[2]) as archive:
        return archive.select_facts(CRATE)


def entity(document: Document, identifier: str) -> dict[str, Any]:
    found: dict[str, Any] = next(each for each in document["@graph"] if each["@id"] == identifier)
    return found


def test_foreign_software_reads_what_the_profile_asks_for(made: tuple[Campaign, Path, Path], tmp_path: Path) -> None:
    with zipfile.ZipFile(made[2]) as archive:
        archive.extractall(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # of parts that are no parts
        crate = ROCrate(tmp_path)
    root = crate.root_dataset
    assert {each.id for each in root["conformsTo"]} >= {"https://w3id.org/ro/wfrun/workflow/0.5"}
    assert root["description"] == "Measurements of the campaign small on bench."
    assert root["license"].id == "https://spdx.org/licenses/CC-BY-4.0"
    assert crate.mainEntity.lang.id.endswith("#snakemake")
    assert "ComputationalWorkflow" in crate.mainEntity.type
    actions = {each.id: each for each in crate.get_by_type("CreateAction")}
    assert {each.id for each in root["mentions"]} == set(actions)
    for action in actions.values():
        # What is not described comes back as its name.
        assert not any(isinstance(each, str) for name in ("object", "result") for each in action[name])
    whole = actions["#campaign"]
    assert whole["instrument"] is crate.mainEntity
    assert (whole["startTime"], whole["endTime"]) == ("2023-11-14T22:13:21+00:00", "2023-11-14T22:15:43+00:00")
    assert whole["agent"]["name"] == "Ada Lovelace"
    lease = actions["#lease-small.1x1-local.0a1b2c.1"]
    assert {each.id for each in lease["object"]} >= {"config/campaign.yaml", "config/workloads/steps.yaml"}
    assert sum(each.id.startswith("records/") for each in lease["result"]) == 7
    (needed,) = lease["instrument"]["softwareRequirements"]
    assert (needed["name"], needed["softwareVersion"]) == ("torch", "2.13.0")


def test_every_file_is_described_with_its_size_and_checksum(
    made: tuple[Campaign, Path, Path], document: Document
) -> None:
    with open_archive(made[2]) as archive:
        files = archive.select_facts(CRATE)
        assert find_crate_problems(document, files) == []
        described = {each["@id"]: each for each in document["@graph"] if "sha256" in each}
        assert set(described) == set(files)
        for name, entry in described.items():
            assert entry["contentSize"] == str((archive.directory / name).stat().st_size)


def test_it_can_be_read_with_pandas_alone(made: tuple[Campaign, Path, Path], tmp_path: Path) -> None:
    with zipfile.ZipFile(made[2]) as archive:
        archive.extractall(tmp_path)
    cells = pd.read_parquet(tmp_path / "tables" / "cells.parquet")
    assert len(cells) == 16
    said = (tmp_path / "README.md").read_text()
    assert "tables/cells.parquet" in said


def test_nothing_is_said_that_nobody_said(made: tuple[Campaign, Path, Path], tmp_path: Path) -> None:
    campaign, results, _ = made
    write_archive(campaign, results, tmp_path / "b.zip")
    with zipfile.ZipFile(tmp_path / "b.zip") as archive:
        document = json.loads(archive.read(CRATE))
    assert entity(document, "#license")["name"] == "Not stated"
    assert "agent" not in entity(document, "#campaign")


def test_a_lease_that_measured_nothing_failed_and_says_why(tmp_path: Path) -> None:
    campaign = archive_data.campaign_in(tmp_path / "config")
    results = archive_data.fill(campaign, tmp_path / "results")
    lease = archive_data.lease_id(campaign.configurations[0])
    for path in (results / "records").rglob("*.json"):
        if json.loads(path.read_bytes())["lease_id"] == lease:
            path.unlink()
    write_archive(campaign, results, tmp_path / "a.zip")
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        action = entity(json.loads(archive.read(CRATE)), f"#lease-{lease}")
    assert action["actionStatus"].endswith("FailedActionStatus")
    assert action["error"] == "the fabric did not answer"
    assert "endTime" not in action


def other_profile(document: Document) -> None:
    entity(document, "./")["conformsTo"] = [{"@id": "https://w3id.org/ro/wfrun/process/0.5"}]


def wrong_checksum(document: Document) -> None:
    entity(document, "README.md")["sha256"] = "0" * 64


def undescribed(document: Document) -> None:
    document["@graph"].remove(entity(document, "campaign.json"))


def of_nothing(document: Document) -> None:
    entity(document, "README.md")["@id"] = "README.txt"


def no_root(document: Document) -> None:
    document["@graph"].remove(entity(document, "./"))


def no_entities(document: Document) -> None:
    document["@graph"] = "none"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (other_profile, "does not conform to https://w3id.org/ro/wfrun/workflow/0.5"),
        (wrong_checksum, "'README.md' differs from its description"),
        (undescribed, "'campaign.json' is not described"),
        (of_nothing, "'README.txt' is described but missing"),
        (no_root, "it is not an RO-Crate"),
        (no_entities, "it is not an RO-Crate"),
    ],
)
def test_what_is_wrong_with_a_description_is_named(
    files: dict[str, FileFacts], document: Document, change: Callable[[Document], None], words: str
) -> None:
    wrong = copy.deepcopy(document)
    change(wrong)
    assert words in "; ".join(find_crate_problems(wrong, files))


def test_it_goes_on_as_a_results_directory_with_its_config(made: tuple[Campaign, Path, Path], tmp_path: Path) -> None:
    campaign, _, path = made
    directory = extract_to_directory(path, tmp_path / "results").directory
    assert directory == tmp_path / "results" / "small"
    again = load_campaign(directory / "config" / "campaign.yaml")
    assert again.to_document() == campaign.to_document()
    write_archive(again, directory, tmp_path / "b.zip", options=ArchiveOptions("CC-BY-4.0", "Ada Lovelace"))
    assert (tmp_path / "b.zip").read_bytes() == path.read_bytes()
    with pytest.raises(ArchiveError, match="already exists and is not replaced"):
        extract_to_directory(path, tmp_path / "results")
    assert [each.name for each in (tmp_path / "results").iterdir()] == ["small"]


def test_a_damaged_archive_leaves_nothing_extracted(made: tuple[Campaign, Path, Path], tmp_path: Path) -> None:
    damaged = tmp_path / "x.zip"
    damaged.write_bytes(made[2].read_bytes()[:-300])
    with pytest.raises(ArchiveError):
        extract_to_directory(damaged, tmp_path / "results")
    assert list((tmp_path / "results").iterdir()) == []


def test_an_archive_whose_description_is_gone_is_not_whole(made: tuple[Campaign, Path, Path], tmp_path: Path) -> None:
    with zipfile.ZipFile(made[2]) as archive:
        members = {name: archive.read(name) for name in archive.namelist() if name != CRATE}
    index = json.loads(members["archive.json"])
    del index["sha256"][CRATE]
    members["archive.json"] = json.dumps(index).encode()
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    assert check_archive(tmp_path / "x.zip")[1] == [f"{CRATE} is missing"]
