"""Emulated hosts of one machine: network namespaces joined by rate-shaped links."""
