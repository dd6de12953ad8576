"""Comparison of two campaigns: matched cells with ratios, intervals and a regression gate.

`compare` makes a CampaignComparison from the tables of two campaigns, `build_document` its JSON document. Pure.
"""

from campaign.analysis.compare.comparison import Comparison, compare, document
from campaign.analysis.compare.gate import Broken, Rule, parse_rule

__all__ = ["Broken", "Comparison", "Rule", "compare", "document", "parse_rule"]
