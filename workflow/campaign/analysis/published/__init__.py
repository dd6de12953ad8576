"""Claims of published studies, and their comparison with the measurements of a campaign.

`selection`: the cells that a claim is about. `quantities`: the values of a claim in a campaign's tables. `judgement`: agreement
of both, their distance, and how many claims are reached. `claims`: all of it in words, for pages. The sets that come with the
project are in `data/published`.
"""

NOT_MEASURED = "not measured here"
"""The verdict on a claim whose conditions were not measured."""
