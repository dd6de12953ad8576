"""Out-of-memory frontier: if a batch ran out of memory, larger batches of otherwise equal cells do so as well.

Memory grows with the batch. Everything else that it depends on is in the key (`Specifications.hash_memory_use`), so a changed
workload, device or precision is tried again. The evidence for a key is stored next to the records in small files, whose names
contain all of it: `limits/<first two digits>/<key>.<batch>.<out|fits>.<cell id>.<repetition>.json`. A file is valid as long as the
record that it names confirms it. It is written before that record, so that no crash loses it. `fits` marks a run that contradicts
a limit.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from campaign.common.errors import RecordError
from campaign.common.files import write_once
from campaign.common.paths import Results
from campaign.plan.campaign.resolve import Campaign
from campaign.plan.matrix import Specifications, expand_matrix
from campaign.spec.cell import Cell
from campaign.spec.record import OUT_OF_MEMORY, Failure, Record, RecordedCell, RecordStore
from campaign.spec.run_numbers import RunKey

CONTRADICTS = "memory: a smaller batch ran out of it"

_NAME = re.compile(r"([0-9a-f]{20})\.(\d{1,9})\.(out|fits)\.([0-9a-f]{20})\.(\d{1,6})\.json")


def smallest_implying_batch(batch: int, ran_out: Iterable[int], fits: Iterable[int]) -> int | None:
    """Return the smallest batch that ran out of memory and implies that `batch` does, or None.

    A batch that ran out of memory is no evidence if the same or a larger batch fitted.

    Args:
        batch: batch of the cell.
        ran_out: batches of otherwise equal cells that ran out of memory.
        fits: batches of otherwise equal cells that fitted.
    """
    largest = max(fits, default=0)
    return min((size for size in ran_out if largest < size < batch), default=None)


def key_without_batch(cell: Cell) -> Hashable:
    """Return a key that is equal for all cells of one campaign that differ only in their batch."""
    return cell.configuration.name, cell.reference, cell.workload, cell.precision, *sorted(cell.options.items())


@dataclass
class _BatchEvidence:
    """Batches of one memory key that ran out of memory or fitted, each with the run that shows it."""

    ran_out: dict[int, RunKey] = field(default_factory=dict)
    fits: dict[int, RunKey] = field(default_factory=dict)


BatchCell = tuple[int, str]
"""Batch and id of a cell."""


class MemoryFrontier:
    """Memory limits of cells that the records of one results directory imply.

    Args:
        store: records of the results directory.
        key: function that returns a cell's `hash_memory_use`.
        alike: function that returns the batches of all cells of the campaign with the same key as a cell.
        skip: True if implied runs are left out (`protocol.skip_implied`).
    """

    def __init__(
        self,
        store: RecordStore,
        key: Callable[[Cell], str],
        alike: Callable[[Cell], Iterable[BatchCell]],
        *,
        skip: bool,
    ) -> None:
        self.store = store
        self.skip = skip
        self.directory = Results.from_directory(store.results).memory_limits
        self._hash = key
        self._alike = alike
        self._keys: dict[Hashable, str] = {}
        self._shards: dict[str, dict[str, list[tuple[int, str, RunKey]]]] = {}
        self._known: dict[str, _BatchEvidence] = {}

    def memory_key(self, cell: Cell) -> str:
        """Return the memory key of a cell. It is hashed once for all batches, because there may be 100,000 cells."""
        alike = key_without_batch(cell)
        hashed = self._keys.get(alike)
        if hashed is None:
            hashed = self._keys[alike] = self._hash(cell)
        return hashed

    def find_implying_run(self, cell: Cell) -> RunKey | None:
        """Return the run that implies that the cell runs out of memory.

        The result is None if there is no such run, or if the campaign runs implied batches.
        """
        if not self.skip or not self._read_shard(key := self.memory_key(cell)).get(key):
            return None
        batches = self._collect_evidence(key, cell)
        batch = smallest_implying_batch(cell.batch, batches.ran_out, batches.fits)
        return None if batch is None else batches.ran_out[batch]

    def read_evidence(self, cell: Cell) -> Record | None:
        """Read the record of the run that implies that the cell runs out of memory, or return None."""
        run = self.find_implying_run(cell)
        return run and self.store.read_latest(*run)

    def contradicts_limit(self, cell: Cell) -> bool:
        """Return whether the batch of a successful cell is at least as large as one that ran out of memory."""
        key = self.memory_key(cell)
        return bool(self._read_shard(key).get(key)) and any(
            batch <= cell.batch for batch in self._collect_evidence(key, cell).ran_out
        )

    def add_record(self, cell: Cell, record: Record) -> None:
        """Add the evidence of a run, before its record is written."""
        key = self.memory_key(cell)
        files = self._read_shard(key).get(key, [])
        if record.status in OUT_OF_MEMORY:
            self._write_evidence(key, cell, "out", record)
            if key in self._known:
                self._known[key].ran_out.setdefault(cell.batch, record.key)
        elif (cell.batch, "out", record.key) in files:
            # The earlier record was moved away, and the run ended differently this time.
            self._evidence_path(key, cell.batch, "out", record.key).unlink(missing_ok=True)
            files.remove((cell.batch, "out", record.key))
            self._known.pop(key, None)
            self.store.delete_implied_records(*record.key)
        if record.status == "ok" and files:
            self._write_evidence(key, cell, "fits", record)
            if key in self._known:
                self._known[key].fits.setdefault(cell.batch, record.key)

    def _write_evidence(self, key: str, cell: Cell, kind: str, record: Record) -> None:
        files = self._read_shard(key).setdefault(key, [])
        if any(
            batch == cell.batch and file_kind == kind and evidence[0] == cell.id for batch, file_kind, evidence in files
        ):
            return
        words = {"cell": cell.label(), "status": record.status, "run": f"{record.cell_id}.{record.repetition}"}
        path = self._evidence_path(key, cell.batch, kind, record.key)
        write_once(path, (json.dumps(words, ensure_ascii=False) + "\n").encode())
        files.append((cell.batch, kind, record.key))

    def _evidence_path(self, key: str, batch: int, kind: str, evidence: RunKey) -> Path:
        return self.directory / key[:2] / f"{key}.{batch}.{kind}.{evidence[0]}.{evidence[1]}.json"

    def _read_shard(self, key: str) -> dict[str, list[tuple[int, str, RunKey]]]:
        """Read the file names of a key's directory once, and return the evidence by key."""
        shard = self._shards.get(key[:2])
        if shard is None:
            shard = self._shards[key[:2]] = {}
            for name in _list_names(self.directory / key[:2]):
                if match := _NAME.fullmatch(name):
                    evidence = (match[4], int(match[5]))
                    shard.setdefault(match[1], []).append((int(match[2]), match[3], evidence))
        return shard

    def _collect_evidence(self, key: str, cell: Cell) -> _BatchEvidence:
        batches = self._known.get(key)
        if batches is not None:
            return batches
        batches = self._known[key] = _BatchEvidence()
        for batch, kind, evidence in self._read_shard(key)[key]:
            status = self._read_status(evidence)
            if kind == "out" and status in OUT_OF_MEMORY:
                batches.ran_out.setdefault(batch, evidence)
            elif kind == "fits" and status == "ok":
                batches.fits.setdefault(batch, evidence)
        if batches.ran_out:
            batches.fits.update(self._find_fitting_batches(cell, min(batches.ran_out)))
        return batches

    def _find_fitting_batches(self, cell: Cell, smallest: int) -> Mapping[int, RunKey]:
        """Return the batches of otherwise equal cells that fitted and are not smaller than `smallest`."""
        runs = (
            (batch, (cell_id, repetition))
            for batch, cell_id in self._alike(cell)
            if batch >= smallest
            for repetition in self.store.list_started(cell_id)
        )
        return {batch: run for batch, run in runs if self._read_status(run) == "ok"}

    def _read_status(self, run: RunKey) -> str:
        """Return the status of a run, or an empty string if it has no record."""
        return self.store.read_latest(*run).status if self.store.path(*run).exists() else ""


def build_campaign_frontier(campaign: Campaign, store: RecordStore) -> MemoryFrontier:
    """Build the memory frontier for all cells of a campaign."""
    batches = CampaignBatches(campaign)
    return MemoryFrontier(store, batches.key, batches, skip=campaign.protocol.skip_implied)


class CampaignBatches:
    """Batches of all cells of a campaign that share a cell's memory key, including cells that were not selected."""

    def __init__(self, campaign: Campaign) -> None:
        self.campaign = campaign
        self.key = Specifications(campaign).hash_memory_use
        self._batches_by_configuration: dict[str, dict[str, list[BatchCell]]] = {}

    def __call__(self, cell: Cell) -> list[BatchCell]:
        configuration = cell.configuration.name
        if configuration not in self._batches_by_configuration:
            batches_by_key: dict[str, list[BatchCell]] = {}
            for other_cell in expand_matrix(self.campaign, None, {configuration}).cells:
                batches_by_key.setdefault(self.key(other_cell), []).append((other_cell.batch, other_cell.id))
            self._batches_by_configuration[configuration] = batches_by_key
        return self._batches_by_configuration[configuration].get(self.key(cell), [])


def _list_names(directory: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in os.scandir(directory))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise RecordError(f"{directory}: cannot be listed ({error.strerror}); fix its permissions") from error


def build_implied_record(
    specification: Mapping[str, Any], as_used: str, cell: Cell, repetition: int, evidence: Record
) -> Record:
    """Build the record of a run that is not started. Hardware and lease are those of the evidence.

    Args:
        specification: full specification of the cell.
        as_used: hash of the campaign.
        cell: the cell.
        repetition: number of the run.
        evidence: record of the run that ran out of memory.
    """
    now_s = time.time()
    memory = "host" if evidence.status == "oom_host" else "device"
    line = evidence.failure.evidence or evidence.failure.reason if evidence.failure else evidence.status
    run = f"{evidence.cell_id}.{evidence.repetition}"
    return Record(
        cell_id=cell.id,
        repetition=repetition,
        cell=RecordedCell.from_cell(cell),
        specification=dict(specification),
        status="implied",
        failure=Failure(
            reason=f"batch {evidence.cell.batch} already ran out of {memory} memory",
            evidence=f"{run}: {line}",
        ),
        started=now_s,
        ended=now_s,
        lease_id=evidence.lease_id,
        hosts=evidence.hosts,
        composition=evidence.composition,
        environment=evidence.environment,
        campaign=as_used,
        implied_by=run,
    )
