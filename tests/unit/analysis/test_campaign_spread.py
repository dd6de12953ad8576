"""A change between two campaigns is held against how much campaigns on the system differ anyway."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from campaign.analysis.compare import compare
from campaign.analysis.compare.campaign_spread import CampaignSpread, estimate_campaign_spread
from campaign.common.intervals import BETWEEN_CAMPAIGNS, CAMPAIGNS_UNKNOWN
from campaign.report.compare_page import describe_findings
from tests import planted_campaigns as planted
from tests.planted_campaigns import Truth
from tests.statements_under_truth import changed_between_campaigns, compared_in_site

TRUTH = Truth(lease=0.005, run=0.003)


def test_a_day_is_no_change() -> None:
    assert changed_between_campaigns(TRUTH, 0.02, 4, 100, with_spread=False).wrong > 50
    assert changed_between_campaigns(TRUTH, 0.02, 4, 100).wrong <= 8
    assert compared_in_site(TRUTH, 0.02, 4, 2).wrong == 0


def test_a_change_far_above_the_spread_of_campaigns_is_found() -> None:
    changed = Truth(lease=0.005, run=0.003, effect=(1, 1, 1, 1.4))
    assert changed_between_campaigns(changed, 0.01, 5, 100).found > 90
    assert compared_in_site(changed, 0.01, 5, 2).found > 70


def test_before_three_earlier_campaigns_nothing_is_tested() -> None:
    assert compared_in_site(TRUTH, 0.02, 2, 2).tested == 0
    assert compared_in_site(TRUTH, 0.02, 3, 2).tested == 100


@pytest.fixture(scope="module")
def two() -> tuple[planted.Tables, planted.Tables]:
    random = np.random.default_rng(3)
    slower = Truth(lease=0.002, run=0.002, effect=(1.1,) * 4)
    return planted.tables(TRUTH, random, name="before"), planted.tables(slower, random, name="after")


def test_an_unknown_spread_is_said_and_a_known_one_is_named(two: tuple[planted.Tables, planted.Tables]) -> None:
    alone = compare(*two)
    assert set(alone.rows["says"]) == {"slower"}
    unknown = compare(*two, spread=CampaignSpread(0.02**2, 2))
    assert set(unknown.rows["says"]) == {"not tested: the spread between campaigns is unknown"}
    assert set(unknown.rows["method"]) == {CAMPAIGNS_UNKNOWN}
    assert unknown.means["low"].isna().all()
    said = " ".join(describe_findings(unknown))
    assert "unknown until 3 earlier campaigns" in said
    assert "4 cells were not tested: the spread between campaigns is unknown." in said
    known = compare(*two, spread=CampaignSpread(0.05**2, 4))
    assert not known.rows["says"].isin(["slower", "faster"]).any()
    assert set(known.rows["method"]) == {BETWEEN_CAMPAIGNS}
    assert (known.rows["low"] < alone.rows["low"]).all()
    assert known.means["p"].iloc[0] > 0.05
    assert "The 4 earlier campaigns on this system differ by 5.0\u202f%" in " ".join(describe_findings(known))
    quiet = compare(*two, spread=CampaignSpread(1e-8, 9))
    assert quiet.rows["ratio"].equals(alone.rows["ratio"])
    assert set(quiet.rows["says"]) == {"slower"}


def test_the_spread_is_that_of_cells_over_campaigns() -> None:
    means = pd.DataFrame(
        {"cell": [0, 0, 0, 1, 1, 2], "campaign": list("abcabd"), "mean": np.exp([0.0, 0.1, 0.2, 5.0, 5.2, 9.0])}
    )
    found = estimate_campaign_spread(means)
    assert found == CampaignSpread(pytest.approx((0.01 + 0.01 + 0.01 + 0.01) / 3), 3)  # type: ignore[arg-type]
    assert found.is_known
    assert not estimate_campaign_spread(means[means["cell"] == 2]).is_known
