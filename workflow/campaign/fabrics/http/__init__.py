"""HTTP client of fabrics and host agents, with hard time limits.

A lost answer is distinguished from a request that was never sent.
"""
