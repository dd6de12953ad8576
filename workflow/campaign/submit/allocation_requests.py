"""What the processes of a campaign tell each other about submissions and cancellations, in files of the directory that they share.

`requests/<lease>.json`: a lease asks for an allocation; `requests/<lease>.refused`: Slurm's answer to it, when that was no;
`waits.json`: what all of them wait for, when Slurm takes no more jobs just now; `cancel/<job>`: a job that is to be cancelled,
removed once scancel has accepted it: one scancel is for all that are to be cancelled at one time.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from campaign import files
from campaign.documents.driver_messages import DriverRequest
from campaign.errors import ConfigError, LaunchError
from campaign.files import read_json, write_json
from campaign.slurm.commands import Slurm

MANY = 1_000_000_000


@dataclass(frozen=True)
class AllocationRequest:
    """What one lease asks for. parameters: see `slurm.sbatch_options.sbatch_parameters`."""

    request: DriverRequest
    parameters: dict[str, Any]


class AllocationRequests:
    """Requests, refusals and waits of one campaign. poll_s: how long a wait lasts, at most."""

    def __init__(self, directory: Path, poll_s: float) -> None:
        self.directory = directory / "requests"
        self.waits = directory / "waits.json"
        self.poll_s = poll_s

    def ask(self, asked: AllocationRequest) -> None:
        """Ask, and forget what was answered to an earlier request."""
        path = self._path(asked.request.lease)
        path.with_suffix(".refused").unlink(missing_ok=True)
        write_json(path, {"request": asked.request.document(), "parameters": asked.parameters})

    def withdraw(self, lease: str) -> None:
        self._path(lease).unlink(missing_ok=True)

    def is_open(self, lease: str) -> bool:
        return self._path(lease).exists()

    def number(self) -> int:
        """How many leases ask."""
        return sum(1 for _ in self.directory.glob("*.json"))

    def open(self) -> Iterator[tuple[str, AllocationRequest | None]]:
        """All leases that ask, in the order of their names; None for a request that cannot be read."""
        for path in sorted(self.directory.glob("*.json")):
            try:
                document = read_json(path)
                yield path.stem, AllocationRequest(DriverRequest.of(document["request"]), dict(document["parameters"]))
            except (KeyError, TypeError, ValueError):
                yield path.stem, None

    def refuse(self, leases: Collection[str], words: str, *, mistake: bool) -> None:
        """Answer no. mistake: of a person, which trying again does not mend."""
        for lease in leases:
            write_json(self._path(lease).with_suffix(".refused"), {"words": words, "mistake": mistake})

    def is_refused(self, lease: str) -> bool:
        return self._path(lease).with_suffix(".refused").exists()

    def raise_refusal(self, lease: str) -> None:
        """ConfigError or LaunchError, when the lease's request was refused; once."""
        path = self._path(lease).with_suffix(".refused")
        if document := read_json(path):
            path.unlink(missing_ok=True)
            raise (ConfigError if document["mistake"] else LaunchError)(document["words"])

    def wait(self, words: str, most: int = MANY) -> None:
        """Nobody is to try again before the next look. most: as many jobs as are then to be tried at once."""
        write_json(self.waits, {"words": words, "until_s": time.time() + self.poll_s, "most": most})

    def waiting(self) -> tuple[str, float]:
        """What everybody waits for, and for how long still (s); empty and 0 when somebody may try."""
        document = read_json(self.waits)
        left_s = document.get("until_s", 0.0) - time.time()
        # Clocks of login nodes differ: nobody waits longer than from one look to the next.
        return (document["words"], left_s) if 0 < left_s <= self.poll_s else ("", 0.0)

    def at_once(self) -> int:
        """How many jobs to try at once: fewer than are asked for after Slurm refused more. Ends the wait."""
        most = int(read_json(self.waits).get("most", MANY))
        self.waits.unlink(missing_ok=True)
        return most

    def _path(self, lease: str) -> Path:
        return self.directory / f"{lease}.json"


_GATHER_S = 0.2  # for others that cancel at the same time
_AT_ONCE = 1000  # ids in one command line


class Cancellations:
    """Jobs of one campaign that are to be cancelled."""

    def __init__(self, directory: Path, slurm: Slurm) -> None:
        self.directory = directory / "cancel"
        self.slurm = slurm

    def ask(self, job_id: str) -> None:
        """Have a job cancelled. Idempotent."""
        files.make_directory(self.directory)
        (self.directory / job_id).touch()

    def send(self) -> None:
        """Cancel what is to be cancelled, unless another process does so just now; what scancel refused is left to the next."""
        with files.try_lock(self.directory.with_name("cancel.lock")) as mine:
            if not mine or not self.directory.is_dir() or not any(self.directory.iterdir()):
                return
            time.sleep(_GATHER_S)
            asked = sorted(self.directory.iterdir())
            for first in range(0, len(asked), _AT_ONCE):
                chunk = asked[first : first + _AT_ONCE]
                answer = self.slurm("scancel", *(path.name for path in chunk))
                if answer.ok or "Invalid job id" in answer.err:  # one that has ended meanwhile
                    for path in chunk:
                        path.unlink(missing_ok=True)
