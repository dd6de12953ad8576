"""What published studies say, as sets of claims that a campaign can be held against.

`document`: the form of a set and where sets are found. `values`: what a campaign's tables say of a claim. `judgement`: whether the
two agree. `said` and `conditions`: all of it in words, for pages. The sets that come with the project are in `data/published`.
"""

NOT_HERE = "not measured here"
"""The verdict on a claim whose conditions were not measured."""
