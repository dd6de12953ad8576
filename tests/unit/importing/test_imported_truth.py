"""Logs of a planted truth, imported as a user does it, come out of tables and comparisons as they were planted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from campaign.analysis.statistics import comparisons, verdict
from campaign.analysis.tables.collect import read_campaign_results, write_campaign_tables
from campaign.analysis.tables.io import Tables
from campaign.archive.write import write_archive
from campaign.common import intervals
from campaign.plan.campaign.resolve import load_campaign
from campaign.report.sources import load_tables
from tests import imported_under_truth
from tests import statements_under_truth as said
from tests.planted_campaigns import Truth


def test_equal_imports_are_equal_and_a_slower_one_is_slower() -> None:
    none = said.compared(Truth(lease=0.015), campaigns=3, make=imported_under_truth.tables)
    assert (none.wrong, none.half) == (0, 0)
    slower = Truth(effect=(1, 1, 1, 1.2))
    assert said.compared(slower, campaigns=2, make=imported_under_truth.tables).found == 100


def against_the_first(found: Tables) -> pd.DataFrame:
    ids = found.cells["cell_id"]
    return pd.DataFrame(
        comparisons.compute_ratios(ids[1:], pd.Series([ids[0]] * 3), found.design).build_basis_columns(ids[1:].index)
    )


def test_a_campaign_composed_once_borrows_from_an_earlier_one_and_its_archive_says_the_same(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    alone = imported_under_truth.imported(Truth(compositions=1, runs=2), random, "first", tmp_path)
    results = tmp_path / "results"
    assert not against_the_first(load_tables(alone, results))["tested"].any()
    pilot = load_campaign(imported_under_truth.imported(Truth(), random, "pilot", tmp_path))
    write_campaign_tables(read_campaign_results(pilot, results / "pilot"), results / "pilot" / "tables")
    file = imported_under_truth.imported(Truth(compositions=1, runs=2), random, "probe", tmp_path)
    found = load_tables(file, results)
    rows = against_the_first(found)
    assert rows["tested"].all()
    assert set(rows["lent_by"]) == {"pilot"}
    assert (
        "estimated from earlier campaigns on this system (pilot) (8.0 degrees of freedom)"
        in verdict.describe_evidence(rows)
    )
    assert set(found.cells["interval_method"]) == {intervals.T_BORROWED_EARLIER_SPREAD}
    # What the archive says follows from the archive alone.
    probe = load_campaign(file)
    packed = write_archive(probe, results / "probe", tmp_path / "away" / "probe.zip").path
    again = load_tables(packed, tmp_path / "nowhere")
    assert again.context == found.context
    assert again.cells.equals(found.cells)


def test_what_imported_compositions_say_is_marked_where_their_order_is_not_known(tmp_path: Path) -> None:
    """Logs in the order of their files: drift of the system is an overhead of the last configuration."""
    random = np.random.default_rng(1)
    found = load_tables(imported_under_truth.imported(Truth(), random, "some", tmp_path), tmp_path / "results")
    rows = against_the_first(found)
    assert rows["in_order"].all()
    said = verdict.describe_basis({**rows.iloc[0], "p": 0.01})
    assert said == "the order is not random or unknown, so drift can look like an effect"
