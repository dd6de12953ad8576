"""Measurements beside the runs: telemetry of hosts and devices, and the links of a composition."""
