"""Telemetry: counters of devices and hosts, sampled beside every run by a process of its own on every host.

`sampler` is that process, `sources` what it reads, `samples` how its file is read; `summary` makes a run's metrics of samples, by
`window_statistics`; `beside` is what the driver holds open. This file imports nothing: the sampler is to start quickly.
"""
