"""Processes, such as commands with a timeout, signals, processes found by their mark, and namespaces."""
