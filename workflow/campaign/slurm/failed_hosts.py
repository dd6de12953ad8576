"""Hosts that failed under a campaign, and are left out of its further allocations: one file a host, which a person may remove."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path

from campaign.config.system_file import SystemFile
from campaign.errors import FabricError
from campaign.files import write_json


@dataclass(frozen=True, slots=True)
class Excluded:
    """The hosts left out; `directory` is the one that the campaign's processes share."""

    directory: Path

    def add(self, host: str, why: str, lease: str) -> Path:
        """Leave a host out; gives the file to remove when it is well again."""
        path = self.directory / "excluded" / f"{host}.json"
        write_json(path, {"host": host, "why": why, "lease": lease, "time_s": time.time()})
        return path

    def read(self) -> dict[str, str]:
        """Why each host is left out."""
        found = {}
        for path in sorted((self.directory / "excluded").glob("*.json")):
            try:
                found[path.stem] = str(json.loads(path.read_bytes())["why"])
            except (OSError, ValueError, KeyError, TypeError):
                found[path.stem] = "unknown"
        return found

    def leave(self, system: SystemFile) -> tuple[str, ...]:
        """Hosts of the system that may be used; empty when all may. FabricError: none is left."""
        out = self.read()
        if not out:
            return ()
        left = tuple(name for group in system.hosts for name in group.names() if name not in out)
        if not left:
            told = "; ".join(f"{host}: {why}" for host, why in out.items())
            raise FabricError(
                f"every host of {system.name} was left out ({told}); when they are well again: rm {self.directory}/excluded/*.json"
            )
        return left
