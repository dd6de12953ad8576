"""Which leases to measure next until a question is answered, and when that is. Pure, and equal for equal tables and seed.

`question`: what can be asked. `offer`: what can be measured, and what it costs. `decision`: the next round, or the statement.
"""

from campaign.insight.until.decision import Decision, NextLease, decide
from campaign.insight.until.offer import Offer, offer_of
from campaign.insight.until.question import Question, parse_question

__all__ = ["Decision", "NextLease", "Offer", "Question", "decide", "offer_of", "parse_question"]
