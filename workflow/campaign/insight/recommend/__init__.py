"""What to build: the measured configurations, and others that the same hosts and pool allow, weighed by what is asked for. Pure.

`objectives`: what can be asked for. `shapes`: what can be built. `candidates`: every possible answer with what it gives, measured
or predicted by `campaign.insight.performance`. `answers`: the choice, its ties, and the cells behind it. `document`: the
answers as they
are kept and shown.
"""

from campaign.insight.recommend.advise import Advice, advise
from campaign.insight.recommend.document import RecommendationDocument
from campaign.insight.recommend.objectives import Asked, Objective, asked

__all__ = ["Advice", "Asked", "Objective", "RecommendationDocument", "advise", "asked"]
