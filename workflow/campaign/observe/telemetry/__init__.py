"""Telemetry: counters of devices and hosts, sampled during every run by one process per host.

`sampler` is that process and `sources` are what it reads. `samples` reads its file, `run_metrics` gives metrics of a run,
and `run_telemetry` is the driver's side. This file imports nothing, so that the sampler starts quickly.
"""
