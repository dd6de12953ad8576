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
        """True if there are enough campaigns for a test."""
        return self.campaigns >= MIN_CAMPAIGNS and np.isfinite(self.variance)

    def widen_ratios(self, ratios: LogRatios) -> LogRatios:
        """Widen the intervals of changes between two campaigns where the spread between campaigns is larger."""
        variance = np.full_like(ratios.variance, 2 * self.variance)
        spread_ratios = LogRatios(ratios.ratio, variance, np.full_like(variance, self.campaigns - 1.0))
        is_wider = spread_ratios.compute_bounds()[2] > ratios.compute_bounds()[2]
        return LogRatios(
            ratios.ratio,
            np.where(is_wider, spread_ratios.variance, ratios.variance),
            np.where(is_wider, spread_ratios.freedom, ratios.freedom),
        )

    def apply_to(self, ratios: Ratios) -> Ratios:
        """Return comparisons of two campaigns that take this spread into account.

        They are not tested if the spread is unknown.
        """
        if not self.is_known:
            is_untested = np.isfinite(ratios.estimate.ratio) & (ratios.method != CONFOUNDED_WITH_HOSTS)
            method = np.where(is_untested, CAMPAIGNS_UNKNOWN, ratios.method).astype(object)
            return replace(ratios, is_tested=np.zeros_like(ratios.is_tested), method=method)
        log_ratios = self.widen_ratios(ratios.estimate)
        is_wider = ratios.is_tested & (log_ratios.variance != ratios.estimate.variance)
        method = np.where(is_wider, BETWEEN_CAMPAIGNS, ratios.method).astype(object)
        return replace(ratios, estimate=log_ratios, is_paired=ratios.is_paired & ~is_wider, method=method)


def estimate_campaign_spread(means: pd.DataFrame) -> CampaignSpread:
    """Estimate the spread between campaigns from the means of their cells.

    Args:
        means: one row per cell and campaign: `cell`, `campaign`, `mean`.
    """
    cells = means.groupby("cell")["mean"]
    repeated_cells = means[(cells.transform("size") > 1) & (means["mean"] > 0)]
    if repeated_cells.empty:
        return CampaignSpread(float("nan"), 0)
    log = np.log(repeated_cells["mean"])
    deviation = log - log.groupby(repeated_cells["cell"]).transform("mean")
    degrees_of_freedom = len(repeated_cells) - repeated_cells["cell"].nunique()
    return CampaignSpread(float((deviation**2).sum() / degrees_of_freedom), repeated_cells["campaign"].nunique())
