"""A simulation of a training step: how long it takes, what crosses the links and whether it fits into memory, with uncertainty.

`description` says what is simulated, `parameters` what is not known exactly, `simulation` does it, and `fit` learns from measured
steps. Pure; numpy only.
"""
