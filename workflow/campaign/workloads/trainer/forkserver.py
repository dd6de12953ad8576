"""Long-lived process that forks ranks for a launcher: `python -m campaign.workloads.trainer.forkserver`.

It imports torch once (seconds) and forks every rank (milliseconds). stdin has one order per line, as JSON (`_Order`). stdout has
one answer per order, after a first line that reports that torch is imported:
    {"import_s": 2.1}
    {"pids": [...]}              process ids of the ranks
    {"problem": "..."}           the order was refused, or, as the first line, torch could not be imported
Ranks of one order share a process group. They are not children of this process, but of the process that started it, which must
adopt orphans (`campaign.common.processes.marked`). That process waits for the ranks, limits and ends them like its own children,
and they end when it ends. This process has a single thread, so that forking is safe.

The forkserver of multiprocessing, with its preload list, is not suitable. It ignores a failed import, so each rank would report
a missing torch separately. Every child imports the main module of the driver again. There is one server per process, which a
launcher cannot end together with its ranks. Namespaces, log, process group and the end with the launcher would still have to be
implemented here.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NoReturn

from pydantic import BaseModel, ConfigDict, Field

from campaign.common.errors import make_missing_extra_error
from campaign.common.processes import namespaces

_PRCTL_SET_PARENT_DEATH_SIGNAL = 1
_THREAD_COUNT_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class _RankOrder(BaseModel):
    """Rank that is to be forked.

    Attributes:
        env: complete environment of the rank.
        log: file for its output.
        namespaces: files of the namespaces that the rank is to enter.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    env: dict[str, str]
    log: Path
    namespaces: tuple[str, ...] = ()


class _Order(BaseModel):
    """Order of the launcher to fork ranks.

    Attributes:
        cwd: working directory of the ranks.
        module: module that the ranks run as their program. All such modules are imported before the fork.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    ranks: tuple[_RankOrder, ...] = Field(min_length=1)
    cwd: Path
    module: Literal["campaign.workloads.trainer.rank", "campaign.observe.links.rank"] = (
        "campaign.workloads.trainer.rank"
    )


def _fork_ranks(order: _Order, answer_fd: int) -> list[int]:
    """Fork the ranks of an order, and return their process ids.

    Raises ValueError or OSError if the order cannot be executed. In that case no rank is left running.

    Args:
        order: the order.
        answer_fd: file descriptor to which answers are written, which the ranks have to close.
    """
    if not order.cwd.is_dir():
        raise ValueError(f"cwd {order.cwd} is not a directory")
    pids: list[int] = []
    with namespaces.open_namespaces(*(rank.namespaces for rank in order.ranks)) as namespaces_by_rank:
        for rank, rank_namespaces in zip(order.ranks, namespaces_by_rank, strict=True):
            reader, writer = os.pipe()
            # The intermediate process ends at once, so its child is an orphan that the launcher adopts.
            parent_pid = os.fork()
            if parent_pid == 0:
                try:
                    parent_pid, pid = os.getpid(), os.fork()
                    if pid == 0:
                        inherited_fds = [
                            answer_fd,
                            reader,
                            writer,
                            *(descriptor for group in namespaces_by_rank for descriptor in group),
                        ]
                        _become_rank(rank, order, rank_namespaces, inherited_fds, parent_pid)
                    # Set here and not in the rank, so that the process group exists before the second rank joins it.
                    os.setpgid(pid, pids[0] if pids else pid)
                    os.write(writer, pid.to_bytes(8, "little"))
                finally:
                    os._exit(0)
            os.close(writer)
            os.waitpid(parent_pid, 0)
            pid_bytes = os.read(reader, 8)
            os.close(reader)
            if not pid_bytes:
                if pids:
                    os.killpg(pids[0], signal.SIGKILL)
                raise OSError("a rank could not be forked")
            pids.append(int.from_bytes(pid_bytes, "little"))
    return pids


def _become_rank(
    rank: _RankOrder, order: _Order, rank_namespaces: Sequence[int], inherited_fds: Sequence[int], parent_pid: int
) -> NoReturn:
    """Turn this forked process into a rank, and run it. Never returns.

    The server's files are closed, and the rank's namespaces, environment and log are set up.

    Args:
        rank: the rank.
        order: the order that the rank belongs to.
        rank_namespaces: file descriptors of the namespaces to enter.
        inherited_fds: inherited file descriptors to close.
        parent_pid: id of the intermediate process, which is about to end.
    """
    try:
        namespaces.enter_namespaces(rank_namespaces)
        namespaces.close_descriptors(inherited_fds)
        while os.getppid() == parent_pid:
            time.sleep(0.0005)
        _die_with_launcher()  # after entering namespaces, because the kernel may reset this when privileges change
        log = os.open(rank.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        null_input = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((null_input, 0), (log, 1), (log, 2)):
            os.dup2(source, target)
        namespaces.close_descriptors({log, null_input} - {0, 1, 2})
        os.chdir(order.cwd)
        os.environ.clear()
        os.environ.update(rank.env)
        importlib.import_module(order.module).main()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(70)


def _die_with_launcher() -> None:
    """Make the kernel end this process when the process that adopted it (the launcher) ends.

    This works on Linux only, and is not inherited by forked processes.
    """
    launcher = os.getppid()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PRCTL_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != launcher:
        raise ProcessLookupError("the launcher ended while this rank was starting")


def _import_rank_modules() -> None:
    """Import all modules that ranks need, without starting threads or initialising CUDA, which would not survive a fork."""
    os.environ.update(dict.fromkeys(_THREAD_COUNT_VARIABLES, "1"))
    import torch

    torch.set_num_threads(1)
    for name in (
        "campaign.observe.links.rank",
        "campaign.observe.links.rank_measurement",
        "campaign.workloads.trainer.rank",
        "campaign.workloads.trainer.training_session",
    ):
        importlib.import_module(name)  # shared by all forks

    # The first optimizer imports about 800 modules of torch._dynamo, which would take a second in each fork.
    torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1).zero_grad()
    gc.collect()
    gc.freeze()  # keeps the collector of each fork from copying the parent's pages


def main() -> int:
    """Serve a launcher on stdin and stdout until stdin ends, and return the exit code. torch's output goes to stderr."""
    answer_fd = os.dup(1)
    os.dup2(2, 1)

    def send_answer(**fields: Any) -> None:
        os.write(answer_fd, json.dumps(fields).encode() + b"\n")

    start_s = time.perf_counter()
    try:
        _import_rank_modules()
    except ImportError as error:
        problem = f"PyTorch cannot be imported ({error}); install it, or load the one of your site"
        send_answer(problem=str(make_missing_extra_error("train", problem)))
        return 1
    send_answer(import_s=round(time.perf_counter() - start_s, 3))
    for line in sys.stdin:
        try:
            send_answer(pids=_fork_ranks(_Order.model_validate_json(line), answer_fd))
        except (ValueError, OSError) as error:  # pydantic raises a ValueError
            send_answer(problem=str(error))
    return 0


if __name__ == "__main__":
    sys.exit(main())
