"""The figures of the report, by the name of their files, in the order of the page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

FIGURES = (
    "scaling",
    "speedup_by_batch",
    "node_spread",
    "variance",
    "part_of_host",
    "precision",
    "software_options",
    "memory_frontier",
    "overhead",
    "overhead_by_size",
    "transfer_rates",
    "link_matrices",
    "allreduce",
    "work_per_step",
    "utilisation",
    "time_series",
    "energy",
    "pareto",
    "composition_times",
    "forecast",
    "workload_characteristics",
    "software_stack",
)


def in_page_order(names: Iterable[str]) -> Sequence[str]:
    """Known figures in the page's order, then any other by name."""
    return sorted(names, key=lambda name: (FIGURES.index(name) if name in FIGURES else len(FIGURES), name))
