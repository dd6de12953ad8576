"""Comparison of two campaigns: matched cells with ratios, intervals and a regression gate.

`compare` makes a CampaignComparison from the tables of two campaigns, `build_document` its JSON document. Pure.
"""

from campaign.analysis.compare.comparison import CampaignComparison, build_document, compare
from campaign.analysis.compare.gate import RegressionRule, RuleViolation, parse_rule

__all__ = ["CampaignComparison", "RegressionRule", "RuleViolation", "build_document", "compare", "parse_rule"]
