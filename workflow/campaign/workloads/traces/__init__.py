"""Traces: workload files of `kind: replay`, made from a real run, from public numbers or from Chakra execution traces."""
