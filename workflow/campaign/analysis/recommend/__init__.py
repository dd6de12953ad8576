"""What to build: the measured configurations, ranked by what is asked for. Pure.

`objectives`: what can be asked for. `candidates`: the measured cells as rows that can be ranked. `workload_mix`: the same for a mix
of workloads. `choice`: the best row, its interval, and what ties with it. `unmeasured_shapes`: what the system allows and nobody
measured, by name. `advise`: from tables to the answers. `document`: the answers as they are kept and shown.

Nothing is predicted. Comparisons are those of `campaign.analysis.statistics.comparisons`.
"""
