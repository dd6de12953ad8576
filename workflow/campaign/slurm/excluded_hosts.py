"""Hosts of a campaign that failed and are left out of further allocations, and hosts that a lease has changed in the scheduler.

Both are small JSON files in the directory that the campaign's processes share (`results/<campaign>/slurm`). A person may remove
`excluded/<host>.json` when the host works again.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from campaign.config.system_file import SystemFile
from campaign.errors import FabricError
from campaign.files import read_json, write_json


@dataclass(frozen=True, slots=True)
class ExcludedHosts:
    """Hosts that are left out, one file each."""

    directory: Path

    def add(self, host: str, why: str, lease: str) -> Path:
        """Exclude a host; returns the file to remove when the host works again."""
        path = self.path(host)
        write_json(path, {"host": host, "why": why, "lease": lease, "time_s": time.time()})
        return path

    def path(self, host: str) -> Path:
        """The file of an excluded host."""
        return self.directory / "excluded" / f"{host}.json"

    def read(self) -> dict[str, str]:
        """Reasons by host."""
        paths = sorted((self.directory / "excluded").glob("*.json"))
        return {path.stem: str(read_json(path).get("why", "unknown")) for path in paths}

    def remaining(self, system: SystemFile) -> tuple[str, ...]:
        """Hosts of the system that may be used; empty when all may. FabricError: none is left."""
        excluded = self.read()
        if not excluded:
            return ()
        left = tuple(name for group in system.hosts for name in group.names() if name not in excluded)
        if not left:
            reasons = "; ".join(f"{host}: {why}" for host, why in excluded.items())
            raise FabricError(
                f"every host of {system.name} is excluded ({reasons}); when they work again: rm {self.directory}/excluded/*.json"
            )
        return left


@dataclass(frozen=True, slots=True)
class ChangedHosts:
    """Hosts whose registration in the scheduler a lease has changed, and that are still to be restored: one file a lease."""

    directory: Path

    def add(self, lease_id: str, hosts: Collection[str]) -> None:
        """To be called before the first change."""
        write_json(self._path(lease_id), {"hosts": sorted({*self.read().get(lease_id, ()), *hosts})})

    def read(self) -> dict[str, tuple[str, ...]]:
        """Hosts by lease id."""
        documents = {path.stem: read_json(path) for path in sorted((self.directory / "changed").glob("*.json"))}
        # One that is empty was restored meanwhile.
        return {lease_id: tuple(document["hosts"]) for lease_id, document in documents.items() if document}

    def remove(self, lease_id: str) -> None:
        """To be called when the hosts are as they were."""
        self._path(lease_id).unlink(missing_ok=True)

    def _path(self, lease_id: str) -> Path:
        return self.directory / "changed" / f"{lease_id}.json"
