"""Aggregation of measurements: summaries of samples, ratios of summaries and of pairs, each with a 95 % interval.

Pure functions on numpy arrays. Everything works element-wise, so thousands of cells are one call. A value that cannot be
computed (no run, one run, a mean that is not positive) is nan, and its method holds the reason.
"""
