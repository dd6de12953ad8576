"""Which leases to measure next until a question is answered, and when that is. Pure, and equal for equal tables and seed.

`question`: what can be asked. `cell_states`: what can be measured, what it costs, and what was measured. `decision`: the next
round, or the statement.
"""

from campaign.insight.until.cell_states import PricedMatrix, priced_matrix
from campaign.insight.until.decision import Decision, decide
from campaign.insight.until.question import Question, parse_question

__all__ = [
    "Decision",
    "PricedMatrix",
    "Question",
    "decide",
    "parse_question",
    "priced_matrix",
]
