"""Spread between campaigns on one system without any change, from the cells that several of them measured.

Compositions of one campaign are measured within hours or days, so their spread does not show how much a system differs from one
week to another. The campaigns before a comparison show that. A difference of a cell between two campaigns has twice the variance
of its mean over campaigns. A deviation in one campaign may be common to all of its cells, so campaigns, not cells, are the
degrees of freedom. Changes that were made in earlier campaigns count as spread, which makes statements more careful.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from campaign.analysis.statistics.comparisons import Ratios
from campaign.analysis.statistics.ratios import LogRatios
from campaign.common.intervals import BETWEEN_CAMPAIGNS, CAMPAIGNS_UNKNOWN, CONFOUNDED_WITH_HOSTS

MIN_CAMPAIGNS = 3


@dataclass(frozen=True)
class CampaignSpread:
    """Variance of the logarithm of a cell's mean over campaigns.

    variance: nan if no cell was measured twice; campaigns: number of campaigns that the variance is estimated from.
    """

    variance: float
    campaigns: int

    @property
    def is_known(self) -> bool:
        """Whether there are enough campaigns for a test."""
        return self.campaigns >= MIN_CAMPAIGNS and np.isfinite(self.variance)

    def widen(self, ratios: LogRatios) -> LogRatios:
        """Return changes between two campaigns, with the spread between campaigns wherever it widens the interval."""
        both = np.full_like(ratios.variance, 2 * self.variance)
        ours = LogRatios(ratios.ratio, both, np.full_like(both, self.campaigns - 1.0))
        wider = ours.bounds()[2] > ratios.bounds()[2]
        return LogRatios(
            ratios.ratio,
            np.where(wider, ours.variance, ratios.variance),
            np.where(wider, ours.freedom, ratios.freedom),
        )

    def apply(self, found: Ratios) -> Ratios:
        """Return comparisons of two campaigns with this spread taken into account.

        They are untested if the spread is unknown.
        """
        if not self.is_known:
            open_ = np.isfinite(found.of.ratio) & (found.method != CONFOUNDED_WITH_HOSTS)
            method = np.where(open_, CAMPAIGNS_UNKNOWN, found.method).astype(object)
            return replace(found, tested=np.zeros_like(found.tested), method=method)
        of = self.widen(found.of)
        wider = found.tested & (of.variance != found.of.variance)
        method = np.where(wider, BETWEEN_CAMPAIGNS, found.method).astype(object)
        return replace(found, of=of, paired=found.paired & ~wider, method=method)


def estimate_campaign_spread(means: pd.DataFrame) -> CampaignSpread:
    """Estimate the spread between campaigns from the means of their cells.

    Args:
        means: one row per cell and campaign: `cell`, `campaign`, `mean`.
    """
    cells = means.groupby("cell")["mean"]
    kept = means[(cells.transform("size") > 1) & (means["mean"] > 0)]
    if kept.empty:
        return CampaignSpread(float("nan"), 0)
    log = np.log(kept["mean"])
    deviation = log - log.groupby(kept["cell"]).transform("mean")
    freedom = len(kept) - kept["cell"].nunique()
    return CampaignSpread(float((deviation**2).sum() / freedom), kept["campaign"].nunique())
