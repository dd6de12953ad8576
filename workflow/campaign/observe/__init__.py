"""Measurements in addition to the runs: telemetry of hosts and devices, settings of devices, and links of a composition."""
