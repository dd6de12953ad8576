"""Two campaigns held against each other: cells matched by what they are, with ratios, intervals and a regression gate.

`compare` makes a Comparison from the tables of two campaigns; `compare_page`, `document` and `claims_page` say it. Pure.
"""

from campaign.compare.comparing import Comparison, compare
from campaign.compare.document import document
from campaign.compare.gate import Broken, Rule, parse_rule
from campaign.compare.page import claims_page, compare_page

__all__ = ["Broken", "Comparison", "Rule", "claims_page", "compare", "compare_page", "document", "parse_rule"]
