"""Distributed data parallelism trains the same parameters as one rank does on the whole batch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.unit.train.ports import free_port

# A process of its own, as ranks are forked: pytest's has threads. Arguments: directory; forks one rank, then two.
PROGRAM = """
import os, sys, traceback
from pathlib import Path
import torch
from campaign.train.place import Place
from campaign.train.session import Session
from campaign.train.spec import TrainSpec

torch.set_num_threads(1)
out = Path(sys.argv[1])

def train(rank, world_size, seed):
    spec = TrainSpec(model="bert-nano", batch=4 // world_size, measured_steps=5, warmup_steps=2, seed=seed,
                     options={"seq_len": 16}, time_out_s=30)
    session = Session(spec, Place(rank, world_size, rank, out, out, world_size), 0.0)
    session.run()
    model = session._training.model
    named = {name.removeprefix("module."): tensor.detach() for name, tensor in model.named_parameters()}
    torch.save(named, out / f"{seed}-{world_size}-{rank}.pt")

for world_size, seed in ((1, 1), (2, 1), (1, 2)):
    children = []
    for rank in range(world_size):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                train(rank, world_size, seed)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        children.append(child)
    for child in children:
        assert os.waitpid(child, 0)[1] == 0
"""


# They move the logits of all tokens alike, which a softmax over tokens does not see: their gradient is zero but for rounding, and
# AdamW turns that rounding into whole steps.
SHIFT_ALL_LOGITS = {"network.answer.bias", "network.layers.1.feed_forward_norm.bias"}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, torch.Tensor]]:
    out = tmp_path_factory.mktemp("trained")
    where = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-c", PROGRAM, str(out)]
    done = subprocess.run(command, env={**os.environ, **where}, capture_output=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr.decode()
    return {path.stem: torch.load(path) for path in Path(out).glob("*.pt")}


def largest_difference(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> dict[str, float]:
    return {name: (one[name] - other[name]).abs().max().item() for name in one}


def test_both_ranks_have_the_same_parameters_to_the_bit(trained: dict[str, dict[str, torch.Tensor]]) -> None:
    assert set(largest_difference(trained["1-2-0"], trained["1-2-1"]).values()) == {0.0}


def test_they_are_those_of_one_rank_with_the_batch_of_both(trained: dict[str, dict[str, torch.Tensor]]) -> None:
    difference = largest_difference(trained["1-1-0"], trained["1-2-0"])
    compared = {name: value for name, value in difference.items() if name not in SHIFT_ALL_LOGITS}
    assert len(compared) == len(difference) - len(SHIFT_ALL_LOGITS)
    assert max(compared.values()) < 2e-5  # seven AdamW steps move a parameter by up to 7e-3


def test_another_seed_gives_other_parameters(trained: dict[str, dict[str, torch.Tensor]]) -> None:
    assert largest_difference(trained["1-1-0"], trained["2-1-0"])["network.tokens.weight"] > 1e-2
