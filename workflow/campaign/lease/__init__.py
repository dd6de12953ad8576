"""Leases: the right to a composition, from request to release, journaled so that a crash loses no device."""
