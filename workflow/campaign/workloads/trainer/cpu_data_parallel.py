"""What `nn.DataParallel` does over GPUs, over threads of one process on a CPU: the same algorithm, the same copies."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor, nn


class CpuReplicas(nn.Module):
    """Every call copies the weights to each replica, scatters the batch, runs the replicas in threads and averages their losses.

    Gradients come back through the copies and add up in the weights, as they do on GPUs; the backward pass itself runs in one
    thread, because autograd has one for each device and all replicas are on the CPU. Buffers (running means) are those of the first
    replica.
    """

    def __init__(self, module: nn.Module, count: int) -> None:
        super().__init__()
        self.module = module
        with torch.no_grad():
            # Not as submodules: their weights are no weights of the model.
            self._replicas: tuple[_Replica, ...] = tuple(_Replica(module, first=not rank) for rank in range(count))
        self._threads = ThreadPoolExecutor(count, thread_name_prefix="replica")

    @property
    def modules_of_replicas(self) -> list[nn.Module]:
        return [replica.module for replica in self._replicas]

    def forward(self, *batch: Tensor) -> Tensor:
        """Mean loss of the batch, a scalar; the first axis of every tensor is scattered."""
        parts = zip(*(tensor.chunk(len(self._replicas)) for tensor in batch), strict=True)
        for replica in self._replicas:
            replica.take_weights()
        waiting = [
            self._threads.submit(self._run, replica, part) for replica, part in zip(self._replicas, parts, strict=True)
        ]
        return torch.stack([future.result() for future in waiting]).mean()

    def _run(self, replica: _Replica, part: Sequence[Tensor]) -> Tensor:
        torch.set_num_threads(1)  # each thread starts with torch's default
        loss: Tensor = replica.module(*part)
        return loss


class _Replica:
    """A copy of a module whose weights are, after `take_weights`, copies that autograd knows."""

    def __init__(self, module: nn.Module, first: bool) -> None:
        self.module = copy.deepcopy(module)
        self._weights = list(self._taken_out(module))
        self._buffers = list(_named(module, self.module, "_buffers"))
        self._first = first
        if first:
            for owner, name, buffer in self._buffers:
                owner._buffers[name] = buffer

    def _taken_out(self, module: nn.Module) -> Iterator[tuple[nn.Module, str, Tensor]]:
        for owner, name, weight in _named(module, self.module, "_parameters"):
            # A tensor with a history cannot be a parameter; as a plain attribute it can stand in for one.
            del owner._parameters[name]
            yield owner, name, weight

    def take_weights(self) -> None:
        copies: dict[int, Tensor] = {}  # weights that two modules share stay shared
        for owner, name, weight in self._weights:
            owner.__dict__[name] = copies.setdefault(id(weight), weight.clone())
        if not self._first:
            for owner, name, buffer in self._buffers:
                owner._buffers[name] = buffer.clone()


def _named(original: nn.Module, duplicate: nn.Module, kind: str) -> list[tuple[nn.Module, str, Tensor]]:
    """(module of the duplicate, name, tensor of the original) of all `_parameters` or `_buffers`."""
    pairs = zip(original.modules(), duplicate.modules(), strict=True)
    return [
        (mine, name, tensor) for own, mine in pairs for name, tensor in getattr(own, kind).items() if tensor is not None
    ]
