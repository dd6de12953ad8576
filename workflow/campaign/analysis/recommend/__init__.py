"""Recommendation: the measured configurations, ranked by the requested objectives. Pure.

`objectives`: objectives and constraints of a request. `candidates`: the measured cells as rows that can be ranked.
`workload_mix`: the same for a mix of workloads. `choice`: the best row, its interval, and rows that tie with it.
`unmeasured_shapes`: names of shapes that the system allows and that were not measured. `advise`: from tables to the answers.
`document`: the answers as they are stored and shown.

Nothing is predicted. Comparisons are those of `campaign.analysis.statistics.comparisons`.
"""
