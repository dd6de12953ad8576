"""The long-lived parent that a driver starts ranks from: `python -m campaign.workloads.trainer.forkserver`.

It imports torch once (seconds) and forks every rank (milliseconds). Lines of JSON on stdin:
    {"id": "r1", "ranks": [{"env": {...}, "log": "/path"}, ...], "cwd": "/path"}    start a run; env replaces the environment;
                                                    "module": "campaign...."        beside id: the program of its ranks (`_Program`)
                                                    "namespaces": ["/proc/..", ...]      beside env: namespaces that the rank enters
    {"kill": "r1"}                                                                  end a run's ranks with SIGKILL
and on stdout:
    {"event": "ready", "import_s": 2.1}
    {"event": "failed", "message": "..."}            torch cannot be imported; the parent ends
    {"event": "started", "id": "r1", "pids": [...]}
    {"event": "exited", "id": "r1", "codes": [...], "killed": [...], "exit_hang": [...]}
    {"event": "rejected", "id": "r1", "message": "..."}
`codes` by rank, negative for a signal; `killed`: ranks that the parent ended itself; `exit_hang`: those of them whose result was
there (a rank can measure well and then hang in its exit). Ranks of one run share a process group of their own. The end of stdin
ends every rank; a parent that is killed takes its ranks along. The parent has one thread, so that forking is safe.

The forkserver of multiprocessing, with its preload list, does not fit. It ignores an import that fails, so each rank would report a
missing torch by itself. Every child imports the driver's main module again. There is one server per process, which a launcher
cannot end with its own ranks. Namespaces, log, process group, death with the parent and the wait for hanging ranks would stay here.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NoReturn

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from campaign.errors import missing_extra
from campaign.processes import namespaces
from campaign.workloads.trainer.rank_result import result_path

_EXIT_PATIENCE_S = 10.0  # from the last result file to the end of the rank
_PEER_PATIENCE_S = 5.0  # from the first failed rank to the end of the others
_LOOK_S = 0.5  # how often result files are looked for while a run is on
_PR_SET_PDEATHSIG = 1
_ONE_THREAD = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


# What a forked rank can be; both are imported before the fork.
_Program = Literal["campaign.workloads.trainer.rank", "campaign.observe.links.rank"]


class _Rank(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    env: dict[str, str]
    log: Path
    namespaces: tuple[str, ...] = ()


class _Run(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    id: str
    ranks: tuple[_Rank, ...] = Field(min_length=1)
    cwd: Path
    module: _Program = "campaign.workloads.trainer.rank"


class _Kill(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    kill: str


@dataclass(slots=True)
class _Running:
    """A run with at least one rank not yet ended; pids and codes by rank."""

    id: str
    pids: list[int]
    results: list[Path]
    codes: list[int | None]
    killed: set[int] = field(default_factory=set)
    exit_hang: list[int] = field(default_factory=list)
    results_complete_s: float | None = None
    failed_s: float | None = None

    def alive(self) -> list[int]:
        return [rank for rank, code in enumerate(self.codes) if code is None]

    def end(self) -> None:
        """SIGKILL to every rank that has not been waited for, and to whatever it has started."""
        alive = self.alive()
        for rank in alive:
            os.kill(self.pids[rank], signal.SIGKILL)
        self.killed.update(alive)
        if alive:
            os.killpg(self.pids[0], signal.SIGKILL)

    def note(self, rank: int, code: int, now_s: float) -> None:
        self.codes[rank] = code
        if code != 0 and self.failed_s is None:
            self.failed_s = now_s

    def watch(self, now_s: float) -> None:
        """End ranks that wait for a peer that has failed, or hang in their exit."""
        if self.results_complete_s is None and all(path.exists() for path in self.results):
            self.results_complete_s = now_s
        if self.results_complete_s is not None and now_s - self.results_complete_s > _EXIT_PATIENCE_S:
            self.exit_hang = self.alive()
            self.end()
        elif self.failed_s is not None and now_s - self.failed_s > _PEER_PATIENCE_S:
            self.end()


class Parent:
    """Reads orders, forks ranks, waits for them, answers; `serve` is the whole life of the process."""

    def __init__(self, orders: int, answers: int) -> None:
        self._orders = orders
        self._answers = answers
        self._runs: dict[str, _Running] = {}
        self._unread = b""
        self._wake_reader, self._wake_writer = os.pipe()
        for end in (self._wake_reader, self._wake_writer):
            os.set_blocking(end, False)

    def serve(self) -> None:
        """Until stdin ends, or nobody reads the answers; no rank outlives this."""
        # A handler that does nothing: the signal's byte in the pipe is what wakes select().
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake_writer, warn_on_full_buffer=False)
        try:
            while self._take_orders():
                self._reap()
                now_s = time.monotonic()
                for run in self._runs.values():
                    run.watch(now_s)
        except BrokenPipeError:
            print("the driver no longer reads; ending its ranks", file=sys.stderr)
        finally:
            for run in self._runs.values():
                run.end()
            for run in self._runs.values():
                for rank in run.alive():
                    os.waitpid(run.pids[rank], 0)

    def answer(self, event: str, **fields: Any) -> None:
        line = json.dumps({"event": event, **fields}).encode() + b"\n"
        while line:
            line = line[os.write(self._answers, line) :]

    def _take_orders(self) -> bool:
        """Wait for an order, the end of a rank, or the time to look; False when stdin has ended."""
        ready, _, _ = select.select([self._orders, self._wake_reader], [], [], _LOOK_S if self._runs else None)
        if self._wake_reader in ready:
            os.read(self._wake_reader, 4096)
        if self._orders in ready:
            received = os.read(self._orders, 1 << 16)
            if not received:
                return False
            *lines, self._unread = (self._unread + received).split(b"\n")
            for line in lines:
                if line.strip():
                    self._obey(line)
        return True

    def _obey(self, line: bytes) -> None:
        try:
            document = json.loads(line)
            if isinstance(document, dict) and "kill" in document:
                name = _Kill.model_validate(document).kill
                # A run that is not there has ended by itself in the meantime, and its answer is on its way.
                if name in self._runs:
                    self._runs[name].end()
                return
            order = _Run.model_validate(document)
            if order.id in self._runs:
                raise ValueError(f"a run {order.id!r} is on already")
            self._start(order)
        except (ValueError, ValidationError, OSError) as error:
            self.answer("rejected", id=_name_in(line), message=str(error))

    def _start(self, order: _Run) -> None:
        results = [_result_of(rank.env) for rank in order.ranks]
        if not order.cwd.is_dir():
            raise ValueError(f"cwd {order.cwd} is not a directory")
        for path in results:
            path.unlink(missing_ok=True)
        run = _Running(order.id, [], results, [])
        with namespaces.opened(*(rank.namespaces for rank in order.ranks)) as opened:
            self._runs[order.id] = run
            for number, rank in enumerate(order.ranks):
                group = run.pids[0] if run.pids else 0
                pid = os.fork()
                if pid == 0:
                    self._become(rank, order, opened, number)
                # Here and not in the child: the second rank must not be there before the group that it joins.
                os.setpgid(pid, group or pid)
                run.pids.append(pid)
                run.codes.append(None)
        self.answer("started", id=order.id, pids=run.pids)

    def _become(self, rank: _Rank, order: _Run, opened: Sequence[Sequence[int]], number: int) -> NoReturn:
        """In the child: let go of what is the parent's, take the rank's environment and log, and run it."""
        parent = os.getppid()
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            namespaces.enter(opened[number])
            for each in opened:
                namespaces.close(each)
            _die_with(parent)  # after it: the kernel may forget this for who changes what they may do
            log = os.open(rank.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            nothing = os.open(os.devnull, os.O_RDONLY)
            for source, target in ((nothing, 0), (log, 1), (log, 2)):
                os.dup2(source, target)
            for descriptor in {log, nothing, self._orders, self._answers, self._wake_reader, self._wake_writer} - {
                0,
                1,
                2,
            }:
                os.close(descriptor)
            os.chdir(order.cwd)
            os.environ.clear()
            os.environ.update(rank.env)
            importlib.import_module(order.module).main()
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(70)

    def _reap(self) -> None:
        now_s = time.monotonic()
        for name, run in list(self._runs.items()):
            for rank in run.alive():
                pid, status = os.waitpid(run.pids[rank], os.WNOHANG)
                if pid:
                    run.note(rank, os.waitstatus_to_exitcode(status), now_s)
            if not run.alive():
                del self._runs[name]
                # Only those that the signal met: a rank can end by itself while it is on its way.
                killed = [rank for rank in sorted(run.killed) if run.codes[rank] == -signal.SIGKILL]
                self.answer("exited", id=name, codes=run.codes, killed=killed, exit_hang=run.exit_hang)


def _name_in(line: bytes) -> str | None:
    """The id in a line that is no valid order, if it has one."""
    try:
        document = json.loads(line)
    except ValueError:
        return None
    return str(document["id"]) if isinstance(document, dict) and "id" in document else None


def _result_of(environment: Mapping[str, str]) -> Path:
    for name in ("CAMPAIGN_OUT", "RANK"):
        if name not in environment:
            raise ValueError(f"the environment of a rank needs {name}")
    return result_path(Path(environment["CAMPAIGN_OUT"]), int(environment["RANK"]))


def _die_with(parent: int) -> None:
    """Have the kernel end this process when its parent ends; Linux only, and not inherited by a fork, so every rank asks for it."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:
        raise ProcessLookupError("the parent ended while this rank was starting")


def _prepare() -> None:
    """Import all that a rank needs, without a thread and without touching CUDA (a fork could not use it any more)."""
    for name in _ONE_THREAD:
        os.environ[name] = "1"
    import torch

    torch.set_num_threads(1)
    for name in (
        "campaign.observe.links.rank",
        "campaign.observe.links.rank_measurement",
        "campaign.workloads.trainer.rank",
        "campaign.workloads.trainer.training_session",
    ):
        importlib.import_module(name)  # for the forks

    # The first optimizer pulls in some eight hundred modules of torch._dynamo: a second that each fork would pay for itself.
    torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1).zero_grad()
    gc.collect()
    gc.freeze()  # keeps the collector of each fork from copying the parent's pages


def main() -> int:
    """Serve the driver on stdin and stdout; anything that torch prints goes to stderr."""
    answers = os.dup(1)
    os.dup2(2, 1)
    parent = Parent(0, answers)
    start_s = time.perf_counter()
    try:
        _prepare()
    except ImportError as error:
        problem = f"PyTorch cannot be imported ({error}); load the site's own, or install it"
        parent.answer("failed", message=str(missing_extra("train", problem)))
        return 1
    parent.answer("ready", import_s=round(time.perf_counter() - start_s, 3))
    parent.serve()
    return 0


if __name__ == "__main__":
    sys.exit(main())
