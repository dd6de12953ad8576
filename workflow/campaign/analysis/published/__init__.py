"""What published studies say, as sets of claims that a campaign can be held against.

`quantities`: what a campaign's tables say of a claim, for the cells of `selection`. `judgement`: whether the two agree, how far
apart they are, and how many claims are reached. `claims`: all of it in words, for pages. The sets that come with the project are in
`data/published`.
"""

NOT_HERE = "not measured here"
"""The verdict on a claim whose conditions were not measured."""
