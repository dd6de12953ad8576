"""Adapters for control planes, one subpackage per vendor. Each reads the state of its fabric and attaches and detaches devices."""
