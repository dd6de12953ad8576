"""DataParallel on a CPU, with threads instead of GPUs. Algorithm and copies are those of `nn.DataParallel`."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor, nn


class CpuDataParallel(nn.Module):
    """DataParallel over threads of one process on a CPU.

    Each call copies the weights to all replicas, scatters the batch, runs the replicas in threads, and averages their losses.
    Gradients flow back through the copies and add up in the weights, as on GPUs. The backward pass itself runs in one thread,
    because autograd has one thread per device and all replicas are on the CPU. Buffers (running means) are those of the first
    replica.
    """

    def __init__(self, module: nn.Module, count: int) -> None:
        super().__init__()
        self.module = module
        with torch.no_grad():
            # Not registered as submodules, because their weights are not weights of the model.
            self._replicas: tuple[_Replica, ...] = tuple(_Replica(module, first=not rank) for rank in range(count))
        self._threads = ThreadPoolExecutor(count, thread_name_prefix="replica")

    @property
    def replica_modules(self) -> list[nn.Module]:
        """Modules of all replicas, in order."""
        return [replica.module for replica in self._replicas]

    def forward(self, *batch: Tensor) -> Tensor:
        """Return the mean loss of a batch, a scalar. Every tensor is scattered along its first axis."""
        parts = zip(*(tensor.chunk(len(self._replicas)) for tensor in batch), strict=True)
        for replica in self._replicas:
            replica.copy_weights()
        futures = [
            self._threads.submit(self._run_replica, replica, part)
            for replica, part in zip(self._replicas, parts, strict=True)
        ]
        return torch.stack([future.result() for future in futures]).mean()

    def _run_replica(self, replica: _Replica, part: Sequence[Tensor]) -> Tensor:
        torch.set_num_threads(1)  # each thread starts with torch's default
        loss: Tensor = replica.module(*part)
        return loss


class _Replica:
    """Copy of a module. After `copy_weights`, its weights are copies within autograd's graph."""

    def __init__(self, module: nn.Module, first: bool) -> None:
        self.module = copy.deepcopy(module)
        self._weights = list(self._remove_parameters(module))
        self._buffers = list(_pair_tensors(module, self.module, "_buffers"))
        self._first = first
        if first:
            for owner, name, buffer in self._buffers:
                owner._buffers[name] = buffer

    def _remove_parameters(self, module: nn.Module) -> Iterator[tuple[nn.Module, str, Tensor]]:
        """Remove the parameters from the copy, and yield each as (module of the copy, name, original weight)."""
        for owner, name, weight in _pair_tensors(module, self.module, "_parameters"):
            # A tensor with a history cannot be a parameter, but as a plain attribute it can replace one.
            del owner._parameters[name]
            yield owner, name, weight

    def copy_weights(self) -> None:
        """Copy the current weights into the replica and, unless it is the first one, the buffers, too."""
        copies: dict[int, Tensor] = {}  # weights shared by two modules stay shared
        for owner, name, weight in self._weights:
            owner.__dict__[name] = copies.setdefault(id(weight), weight.clone())
        if not self._first:
            for owner, name, buffer in self._buffers:
                owner._buffers[name] = buffer.clone()


def _pair_tensors(original: nn.Module, duplicate: nn.Module, kind: str) -> list[tuple[nn.Module, str, Tensor]]:
    """List all parameters or buffers of a module as tuples (module of its copy, name, tensor of the original).

    Args:
        original: the module.
        duplicate: copy of the module.
        kind: `_parameters` or `_buffers`.
    """
    pairs = zip(original.modules(), duplicate.modules(), strict=True)
    return [
        (target, name, tensor)
        for source, target in pairs
        for name, tensor in getattr(source, kind).items()
        if tensor is not None
    ]
