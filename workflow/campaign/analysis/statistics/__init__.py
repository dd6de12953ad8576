"""Aggregation of measurements: summaries of samples, ratios of summaries and of pairs, each with a 95 % interval.

Pure functions on numpy arrays. All functions work element-wise, so one call computes thousands of cells. A value
that cannot be computed (no run, one run, a mean that is not positive) is nan, and its method states the reason.
"""
