"""Measurement of one lease: its devices are composed, its runs are measured and recorded, and the devices are released."""
