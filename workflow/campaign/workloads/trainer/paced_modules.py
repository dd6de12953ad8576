"""Training at the pace of emulated devices: what a network's modules compute is real, and takes as long as on the device.

A module's forward pass ends when the device would be done with it. Its backward pass, of twice as many operations, ends before its
gradients are passed on to the reduction of gradients or to the module before it, so that communication overlaps as it would.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from campaign.workloads.trainer.cpu_data_parallel import CpuReplicas
from campaign.workloads.trainer.pace import Pacer

_Advance = Callable[[float], None]
"""To be called with the operations that a device has done since."""


class PacedDevices:
    """The devices of one process. operations: of each module's forward pass; gflops: pace of each device.

    Without any it is the one device of a replay, which says itself how long it works; dilation: seconds that its second takes here.
    """

    def __init__(self, operations: Mapping[str, float], gflops: Sequence[float], dilation: float = 1.0) -> None:
        self._dilation = dilation
        self._operations = operations
        self._rates = [1e9 * each for each in gflops]
        self._pacer = Pacer()
        self._replicas: list[Pacer] = []
        self._late_s = self._after_s = 0.0
        self._least_after_s = math.inf
        self._lost_s: list[float] = []

    @property
    def paced_s(self) -> float:
        """Seconds of the devices so far, but for forward passes of replicas."""
        return self._pacer.paced_s

    def advance(self, seconds: float) -> None:
        """The device of a replay has worked for so many of its seconds."""
        self._pacer.advance(seconds * self._dilation)

    def begin(self) -> None:
        """Begin a step. What the process did since the last one is no work of its devices."""
        self._pacer.begin()

    def note_gradients(self) -> None:
        """All gradients of a step are there."""
        late_s = self._pacer.late_s + max((pacer.late_s for pacer in self._replicas), default=0.0)
        self._lost_s.append(max(0.0, late_s - self._late_s))
        self._late_s = late_s

    def end(self) -> None:
        """End a step. What the process did since the gradients were there, as its optimizer, is made up for in the next step."""
        before_s = self._pacer.late_s
        self._pacer.advance(0.0)
        self._after_s = self._pacer.late_s - before_s
        self._least_after_s = min(self._after_s, self._least_after_s)

    def begin_window(self) -> None:
        """Make up for nothing of the steps so far, whose first ones do much once, but for what the window's last one leaves."""
        self._least_after_s = min(self._least_after_s, self._pacer.late_s)
        self._pacer.forget(self._pacer.late_s - self._least_after_s)
        for pacer in self._replicas:
            pacer.forget(pacer.late_s)
        self._late_s = 0.0
        self._lost_s.clear()

    def lost_s(self) -> tuple[float, ...]:
        """By how much the process fell behind the devices in each step of the window; one that made up for more lost nothing."""
        *others, last = self._lost_s
        lost_s = (*others, last + max(0.0, self._after_s - self._least_after_s))
        return tuple(each / self._dilation for each in lost_s)

    def hold(self, network: nn.Module) -> None:
        """Hold a network to the pace of the only device; before it is wrapped or sharded, with module names as in `operations`."""

        def advance(operations: float) -> None:
            self._pacer.advance(operations / self._rates[0])

        self._pace(network, advance, advance)

    def hold_replicas(self, replicas: CpuReplicas) -> None:
        """Hold each replica to the pace of its device: forward passes in its thread, backward passes all in the caller's."""
        done_s = [0.0] * len(self._rates)

        def advance_backward(device: int, operations: float) -> None:
            # Devices work at the same time: the thread is behind by what the slowest of them has done.
            before_s = max(done_s)
            done_s[device] += operations / self._rates[device]
            self._pacer.advance(max(done_s) - before_s)

        def advance_forward(pacer: Pacer, rate: float, operations: float) -> None:
            pacer.advance(operations / rate)

        for device, (trainable, rate) in enumerate(zip(replicas.modules_of_replicas, self._rates, strict=True)):
            pacer = Pacer()
            self._replicas.append(pacer)
            trainable.register_forward_pre_hook(lambda *_, pacer=pacer: pacer.begin())
            network: nn.Module = trainable.get_submodule("network")
            self._pace(network, partial(advance_forward, pacer, rate), partial(advance_backward, device))

    def _pace(self, network: nn.Module, forward: _Advance, backward: _Advance) -> None:
        for name, operations in self._operations.items():
            _PacedModule(network.get_submodule(name), operations, forward, backward)


class _PacedModule:
    """Hooks of one module."""

    def __init__(self, module: nn.Module, operations: float, forward: _Advance, backward: _Advance) -> None:
        self._operations = operations
        self._forward = forward
        self._backward = backward
        self._calls: list[_Call] = []
        module.register_forward_hook(self._computed, with_kwargs=True)

    def _computed(self, module: nn.Module, inputs: Any, named_inputs: Any, _output: Any) -> None:
        if torch._C._current_graph_task_id() != -1:
            # In a backward pass activations are computed again; gradients come by the graph of the first time.
            self._backward(self._operations)
            return
        self._forward(self._operations)
        # Weights keep the hooks of a call that is over; others go with their tensors.
        self._calls = [call for call in self._calls if not call.is_over()]
        # A replica's weights are attributes, because they are no leaves; those of a shard are other tensors than before it.
        own = [tensor for part in module.modules() for tensor in (*part._parameters.values(), *vars(part).values())]
        tensors = [t for t in (*tree_leaves((inputs, named_inputs)), *own) if isinstance(t, Tensor) and t.requires_grad]
        self._calls.append(_Call(tensors, lambda: self._backward(2 * self._operations)))


class _Call:
    """One call of a module. done: called once in the backward pass, when the first of the tensors has its gradient."""

    def __init__(self, tensors: Sequence[Tensor], done: Callable[[], None]) -> None:
        self._done: Callable[[], None] | None = done
        self._handles = [tensor.register_hook(self._has_gradient) for tensor in tensors]  # type: ignore[no-untyped-call]

    def _has_gradient(self, _: Tensor) -> None:
        done, self._done = self._done, None
        if done is not None:
            done()

    def is_over(self) -> bool:
        """Whether it was done; if so, its hooks are gone."""
        if self._done is None:
            for handle in self._handles:
                handle.remove()
        return self._done is None
