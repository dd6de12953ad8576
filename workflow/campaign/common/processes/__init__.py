"""Processes: commands with a time-out, signals, processes found by their mark, and namespaces."""
