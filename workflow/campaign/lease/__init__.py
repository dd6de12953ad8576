"""Leases, which give the right to a composition from request to release. A journal ensures that a crash loses no device."""
