"""Hosts whose place in the scheduler a lease has changed, and that are still to be put back: one file a lease."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from campaign.files import write_json


@dataclass(frozen=True, slots=True)
class Changed:
    """What is still to be put back; `directory` is the one that the campaign's processes share."""

    directory: Path

    def add(self, lease_id: str, hosts: Collection[str]) -> None:
        """Before the first change."""
        write_json(self._path(lease_id), {"hosts": sorted({*self.read().get(lease_id, ()), *hosts})})

    def read(self) -> dict[str, tuple[str, ...]]:
        """Hosts by lease id."""
        found = {}
        for path in sorted((self.directory / "changed").glob("*.json")):
            try:
                found[path.name.removesuffix(".json")] = tuple(json.loads(path.read_bytes())["hosts"])
            except FileNotFoundError:
                continue  # put back meanwhile
        return found

    def remove(self, lease_id: str) -> None:
        """Once they are as they were."""
        self._path(lease_id).unlink(missing_ok=True)

    def _path(self, lease_id: str) -> Path:
        return self.directory / "changed" / f"{lease_id}.json"
