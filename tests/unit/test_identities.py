"""Identities of cells, leases and lease documents: results that exist stay valid only as long as these do not change.

Refresh after a wanted change, which measures everything anew: `python -m tests.unit.test_identities`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from campaign.common.files import hash_document
from campaign.common.paths import CONFIG_DIRECTORY
from campaign.plan.campaign.resolve import load_campaign
from campaign.plan.lease_plans import campaign_part_from_lease_plan
from campaign.plan.matrix import expand_matrix, hash_run_set
from campaign.spec.lease_plan import read_lease_plan

GOLDEN = Path(__file__).parents[1] / "golden"
CAMPAIGNS = {
    "demo": CONFIG_DIRECTORY / "campaign.yaml",
    **{
        name: CONFIG_DIRECTORY / "campaigns" / f"{name}.yaml"
        for name in ("falcon-study", "faster-study", "remote-study")
    },
}


def compute_identities(name: str) -> dict[str, Any]:
    """Return the number of cells of a shipped campaign, a hash of all their ids, and the ids of its first five cells."""
    cells = expand_matrix(load_campaign(CAMPAIGNS[name])).cells
    return {
        "cells": len(cells),
        "cell_ids": hash_document(sorted(cell.id for cell in cells)),
        "run_set": hash_run_set(cells),
        "first": {cell.label(): cell.id for cell in cells[:5]},
    }


@pytest.mark.parametrize("name", CAMPAIGNS)
def test_identities_of_cells_and_run_sets_stay(name: str) -> None:
    golden = json.loads((GOLDEN / "identities.json").read_text())
    assert compute_identities(name) == golden[name], "if the change is wanted: python -m tests.unit.test_identities"


def test_lease_document_written_before_is_accepted() -> None:
    """A lease document of the demo, written by commit 4516c968, is read, and names the cells that the campaign has today."""
    document = read_lease_plan(GOLDEN / "lease-plan.json")
    today = {cell.id for cell in expand_matrix(load_campaign(CAMPAIGNS["demo"])).cells}
    assert document.lease == "1x4-local.c1"
    assert len(document.cells) == 5
    assert {cell.id for cell in document.cells} <= today
    assert campaign_part_from_lease_plan(document).name == "demo"


if __name__ == "__main__":
    identities = {name: compute_identities(name) for name in CAMPAIGNS}
    (GOLDEN / "identities.json").write_text(json.dumps(identities, indent=1, ensure_ascii=False) + "\n")
