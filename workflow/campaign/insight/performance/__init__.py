"""How long a step takes on hardware that was not measured: a model of compute, links and limits, fitted to the cells that were.

`observed`: what of the tables it is fitted to. `model`: its equations. `fit`: parameters with intervals, and how wrong it is about
configurations that it was not shown. Everything here is pure.
"""

from campaign.insight.performance.fit import Checked, Fitted, Predicted, check, fit, predict
from campaign.insight.performance.model import COMMUNICATION, Rows, Structure
from campaign.insight.performance.observed import LinkStart, Observed, link_starts, observed, way_of

__all__ = [
    "COMMUNICATION",
    "Checked",
    "Fitted",
    "LinkStart",
    "Observed",
    "Predicted",
    "Rows",
    "Structure",
    "check",
    "fit",
    "link_starts",
    "observed",
    "predict",
    "way_of",
]
