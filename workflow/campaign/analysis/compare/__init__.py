"""Two campaigns held against each other: cells matched by what they are, with ratios, intervals and a regression gate.

`compare` makes a Comparison from the tables of two campaigns, `document` its JSON document. Pure.
"""

from campaign.analysis.compare.comparison import Comparison, compare, document
from campaign.analysis.compare.gate import Broken, Rule, parse_rule

__all__ = ["Broken", "Comparison", "Rule", "compare", "document", "parse_rule"]
