"""Order of the runs of a lease. Pure.

Only the first block of a lease has its batches in ascending order, which is enough to find the memory limit. With an ascending
order in every block, drift would look like an effect of the batch.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from random import Random
from typing import Any

from campaign.plan.control_runs import insert_references
from campaign.plan.oom_frontier import key_without_batch
from campaign.spec.campaign_file import Protocol
from campaign.spec.cell import Cell


def order_runs(runs: Collection[tuple[Cell, int]], protocol: Protocol, lease: str) -> list[tuple[Cell, int]]:
    """Sort runs block by block, at random within a block. A block is one repetition of all cells.

    The order of a block follows from seed, lease and repetition alone, so missing runs keep their relative place. In the first
    block of the first composition, missing cells that differ only in their batch exchange places, so that the smaller batch
    comes first. Larger batches are then skipped after one runs out of memory.
    """
    reference = [run for run in runs if run[0].reference]
    if reference:
        return insert_references(order_runs([run for run in runs if not run[0].reference], protocol, lease), reference)
    if protocol.order == "sequential":
        cells = sort_batches(sorted({cell.id: cell for cell, _ in runs}.values(), key=lambda cell: cell.id))
        places = {cell.id: place for place, cell in enumerate(cells)}
        return sorted(runs, key=lambda run: (places[run[0].id], run[1]))
    blocks: dict[int, list[Cell]] = {}
    for cell, repetition in runs:
        blocks.setdefault(repetition, []).append(cell)
    result: list[tuple[Cell, int]] = []
    for repetition, cells in sorted(blocks.items()):
        draw = {cell.id: Random(f"{protocol.seed}/{lease}/{repetition}/{cell.id}").random() for cell in cells}
        shuffled = sorted(cells, key=lambda cell: (draw[cell.id], cell.id))
        result += [(cell, repetition) for cell in (sort_batches(shuffled) if repetition == 1 else shuffled)]
    return result


def sort_batches(cells: Sequence[Cell]) -> list[Cell]:
    """Sort cells that differ only in their batch size by it, within the positions that they occupy."""
    groups: dict[Any, list[Cell]] = {}
    keys = [key_without_batch(cell) for cell in cells]
    for key, cell in zip(keys, cells, strict=True):
        groups.setdefault(key, []).append(cell)
    turns = {key: iter(sorted(group, key=lambda cell: cell.batch)) for key, group in groups.items()}
    return [next(turns[key]) for key in keys]
