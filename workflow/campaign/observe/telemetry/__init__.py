"""Telemetry: counters of devices and hosts, sampled during every run by one process per host.

`sampler` is that process, and `sources` contains the sources that it reads. `samples` reads its file, `run_metrics` computes the
metrics of a run, and `run_telemetry` is the driver's part. This file imports nothing, so that the sampler starts quickly.
"""
