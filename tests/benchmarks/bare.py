"""Training as one writes it by hand, without any of our code around the model: the floor of what `train` takes.

`python -m tests.benchmarks.bare` is such a program, started once and forked for every run, as ranks are. Lines on stdin: path of a
specification, number of ranks, port; a line on stdout for each: {phase: seconds of the slowest rank}, with `all` from before the
first fork to the first measured step.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from campaign.workloads.trainer import models
from campaign.workloads.trainer.input_pipeline import make_feed
from campaign.workloads.trainer.rank_interface import TrainSpec


class Bare:
    """A model in training on the CPU, on one batch that stays."""

    def __init__(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, batch: tuple[Tensor, ...], precision: str
    ) -> None:
        self.model, self.optimizer, self.batch = model, optimizer, batch
        self.step = self.step_bf16 if precision == "bf16" else self.step_fp32

    @classmethod
    def built(
        cls, spec: TrainSpec, rank: int = 0, world_size: int = 1, lap: Callable[[str], None] = lambda name: None
    ) -> Bare:
        """From a specification; `lap` is called with the name of what has just been done."""
        torch.manual_seed(spec.seed)
        trainable = models.build_model(spec.model, spec.resolve_options())
        trainable.train()
        lap("model")
        batch = make_feed(spec, trainable, rank, world_size, torch.device("cpu"))[0]()
        lap("input")
        kind, settings = trainable.choose_optimizer(float(spec.resolve_options()["learning_rate"]))
        optimizer = kind(trainable.parameters(), **settings)
        model = DistributedDataParallel(trainable) if world_size > 1 else trainable
        lap("wrap")
        return cls(model, optimizer, batch, spec.precision)

    def step_fp32(self) -> Tensor:
        """One step; the loss before it."""
        self.optimizer.zero_grad(set_to_none=True)
        loss: Tensor = self.model(*self.batch)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def step_bf16(self) -> Tensor:
        """One step; the loss before it."""
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16):
            loss: Tensor = self.model(*self.batch)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def step_times_s(self, steps: int) -> list[float]:
        """Seconds of each of so many steps."""
        marks_s = [time.perf_counter()]
        losses = []
        for _ in range(steps):
            losses.append(self.step())
            marks_s.append(time.perf_counter())
        return [after - before for before, after in pairwise(marks_s)]


def _rank(spec: TrainSpec, rank: int, world_size: int, port: int, started_s: float, told: int) -> None:
    last_s = time.time()
    phases_s = {"start": last_s - started_s}

    def lap(name: str) -> None:
        nonlocal last_s
        now_s = time.time()
        phases_s[name], last_s = now_s - last_s, now_s

    torch.set_num_threads(1)
    if world_size > 1:
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=world_size)
    lap("group")
    bare = Bare.built(spec, rank, world_size, lap)
    for _ in range(spec.warmup_steps):
        bare.step()
    lap("warmup")
    if world_size > 1:
        dist.barrier()
    phases_s["all"] = time.time() - started_s
    bare.step_times_s(spec.measured_steps)
    os.write(told, json.dumps(phases_s).encode() + b"\n")


def _forked(spec: TrainSpec, world_size: int, port: int) -> dict[str, float]:
    reader, writer = os.pipe()
    started_s = time.time()
    pids = []
    for rank in range(world_size):
        if (pid := os.fork()) == 0:
            try:
                _rank(spec, rank, world_size, port, started_s, writer)
            finally:
                os._exit(0)
        pids.append(pid)
    os.close(writer)
    for pid in pids:
        os.waitpid(pid, 0)
    with os.fdopen(reader) as pipe:
        told = [json.loads(line) for line in pipe]
    return {phase: max(each[phase] for each in told) for phase in told[0]}


def main() -> None:
    """Serve until stdin ends."""
    torch.set_num_threads(1)
    torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1).zero_grad()
    gc.collect()
    gc.freeze()
    print("ready", flush=True)
    for line in sys.stdin:
        path, ranks, port = line.rsplit(maxsplit=2)
        spec = TrainSpec.model_validate_json(Path(path).read_bytes())
        print(json.dumps(_forked(spec, int(ranks), int(port))), flush=True)


if __name__ == "__main__":
    main()
