"""A launcher's end of the fork server. Imports no torch: programs of tests that only launch use it."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from campaign.common.processes.disturbances import DisturbanceMonitor
from campaign.common.processes.marked import adopt_orphans
from campaign.run.local_launcher import _ForkedProcess, _wait_for_processes
from campaign.workloads.launcher import StepLimits
from campaign.workloads.rank_launchers import find_free_port
from campaign.workloads.trainer.rank_interface import RankResult, read_results

SERVER = ("-m", "campaign.workloads.trainer.forkserver")
SERVER_OF_TESTS = (
    "-c",
    """
import gc, os, sys
from campaign.workloads.trainer import forkserver, rank
main, import_everything = rank.main, forkserver._import_rank_modules

def program():
    if "TEST_PROGRAM" in os.environ:
        exec(os.environ["TEST_PROGRAM"], {"main": main})
        os._exit(0)
    main()

def more():
    import_everything()
    import torch._inductor.compile_fx  # each rank of a compiled model would
    gc.collect()
    gc.freeze()

rank.main, forkserver._import_rank_modules = program, more
sys.exit(forkserver.main())
""",
)
"""One server for all tests: a rank can be another program, which may call the rank's own `main`."""


@dataclass(frozen=True)
class Outcome:
    codes: list[int | None]
    results: tuple[RankResult | None, ...]
    log: str


class _Unwatched(DisturbanceMonitor):
    """What ranks say of a peer that somebody stops; a launcher would not wait for it."""

    def check_processes(self, pids: Collection[int]) -> None:
        pass


class Driver:
    """Writes orders, reads answers; `run` does one whole run."""

    def __init__(self, server: Sequence[str] = SERVER) -> None:
        command = [sys.executable, *server]
        own = {**os.environ, "CAMPAIGN_SPEC": "/of/the/parent"}  # no rank may ever see it
        adopt_orphans()
        self.pids: list[int] = []
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, env=own)
        self._unread = b""
        self.ready = self.answer(120)

    def order(self, document: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(document).encode() + b"\n")

    def answer(self, patience_s: float = 60) -> dict[str, Any]:
        assert self.process.stdout is not None
        end_s = time.monotonic() + patience_s
        while b"\n" not in self._unread:
            ready, _, _ = select.select([self.process.stdout], [], [], max(end_s - time.monotonic(), 0))
            assert ready, f"the parent did not answer in {patience_s} s"
            received = os.read(self.process.stdout.fileno(), 1 << 16)
            assert received, "the parent ended"
            self._unread += received
        line, _, self._unread = self._unread.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def start(
        self,
        directory: Path,
        specs: list[dict[str, Any]],
        program: str = "",
        variables: Mapping[str, str] = MappingProxyType({}),
    ) -> list[int]:
        """One spec a rank (all the same in a real run); gives the pids. program: instead of the rank's, with `SERVER_OF_TESTS`."""
        directory.mkdir(parents=True, exist_ok=True)
        environment = {"PATH": os.environ["PATH"], "WORLD_SIZE": str(len(specs)), "MASTER_ADDR": "127.0.0.1"}
        environment |= {"MASTER_PORT": str(find_free_port()), "CAMPAIGN_OUT": str(directory)}
        environment |= {"TEST_PROGRAM": program} if program else {}
        environment |= variables
        ranks = []
        for rank, spec in enumerate(specs):
            path = directory / f"spec{rank}.json"
            path.write_text(json.dumps(spec))
            own = {"RANK": str(rank), "LOCAL_RANK": str(rank), "CAMPAIGN_SPEC": str(path)}
            ranks.append({"env": environment | own, "log": str(directory / "log")})
        self.order({"cwd": str(directory), "ranks": ranks})
        started = self.answer()
        assert "pids" in started, started
        self.pids = started["pids"]
        return self.pids

    def finish(self, directory: Path, world_size: int, patience_s: float = 60) -> Outcome:
        ranks = [_ForkedProcess(pid) for pid in self.pids]
        stopped = _wait_for_processes(ranks, "none", _Unwatched(), StepLimits(patience_s), ())
        if stopped:
            os.killpg(self.pids[0], signal.SIGKILL)
        codes = [rank.wait() for rank in ranks]
        assert stopped in (None, "failed rank"), f"the ranks did not end in {patience_s} s"
        return Outcome(codes, read_results(directory, world_size), (directory / "log").read_text())

    def run(
        self,
        directory: Path,
        spec: dict[str, Any],
        world_size: int = 1,
        patience_s: float = 60,
        program: str = "",
        variables: Mapping[str, str] = MappingProxyType({}),
    ) -> Outcome:
        self.start(directory, [spec] * world_size, program, variables)
        return self.finish(directory, world_size, patience_s)

    def close(self) -> int:
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            return self.process.wait(10)
        finally:
            self.process.kill()
