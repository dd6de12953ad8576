"""Measurements beside the runs: telemetry of hosts and devices, the links of a composition, and a check of its devices."""
