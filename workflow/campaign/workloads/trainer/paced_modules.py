"""Training at the pace of emulated devices: what a network's modules compute is real, and takes as long as on the device.

A module's forward pass ends when the device would be done with it. Its backward pass, of twice as many operations, ends before its
gradients are passed on to the reduction of gradients or to the module before it, so that communication overlaps as it would.
"""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from threading import get_native_id
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from campaign.workloads.trainer.cpu_data_parallel import CpuReplicas

_SCHEDSTAT = Path("/proc/thread-self/schedstat")
_LEAST_SLEEP_S = 20e-6
_LEARNING = 0.1


class Pacer:
    """The clock of one device, for the thread that made it or the last one that has called `begin`.

    Work takes the seconds that the device would need, whatever this machine's core needs for it. The thread says after each part of
    its work how long a device takes for that part (`advance`), and sleeps for what is left of it. What it was busy meanwhile,
    computing or waiting for a core, counts; what it was blocked for, in a collective or for input, does not: the device waits,
    too. A part that took longer than on the device is made up for in the parts after it; what could not be made up for is `late_s`.

    paced_s: seconds of the device so far; late_s: by how much the thread was behind it when it last came to the end of a part.
    """

    def __init__(self) -> None:
        self._owed_s = self._oversleep_s = 0.0
        self._thread = 0
        self._close: Callable[[], object] = int
        self.paced_s = 0.0
        self.begin()

    def begin(self) -> None:
        """Begin a part: from here on the calling thread does the work of the device; what it has done before does not count."""
        if self._thread != (thread := get_native_id()):
            self._close()
            self._thread = thread
            # Kept open, because it is read twice for every part: opening it takes ten times as long as reading it.
            self._schedstat = os.open(_SCHEDSTAT, os.O_RDONLY) if _SCHEDSTAT.exists() else None
            self._close = weakref.finalize(self, _close, self._schedstat)
        self._busy_s = self._busy()

    def advance(self, seconds: float) -> None:
        """The device has worked for so many seconds more: sleep until the thread has taken as long."""
        busy_s, started_s = self._busy(), time.perf_counter()
        self._owed_s += seconds - (busy_s - self._busy_s)
        self._busy_s = busy_s
        self.paced_s += seconds
        if self._owed_s > _LEAST_SLEEP_S + self._oversleep_s:
            asleep_s = self._owed_s - self._oversleep_s
            time.sleep(asleep_s)
            # A sleep ends late by the scheduler's grain and the wait for a core: that is part of the time that was owed.
            self._busy_s, ended_s = self._busy(), time.perf_counter()
            self._owed_s -= ended_s - started_s
            # How late is learned, so that work that is behind half of the time is ahead the other half.
            self._oversleep_s += _LEARNING * (ended_s - started_s - asleep_s - self._oversleep_s)

    def forget(self) -> None:
        """Make up for nothing that is late now."""
        self._owed_s = max(0.0, self._owed_s)

    @property
    def late_s(self) -> float:
        return max(0.0, -self._owed_s)

    def _busy(self) -> float:
        """Seconds that the thread has computed or waited for a core (Linux, Documentation/scheduler/sched-stats.rst)."""
        if self._schedstat is None:
            return time.thread_time()
        # What it has computed stands there, too, but by some kernels only as it was at the scheduler's last tick.
        return time.thread_time() + int(os.pread(self._schedstat, 64, 0).split()[1]) / 1e9


def _close(descriptor: int | None) -> None:
    if descriptor is not None:
        os.close(descriptor)


_OPTIMIZER_SHARE = 0.05
"""Share of the optimizer in the time of a step. Large models on GPUs spend about as much; it is real work here, too, and needs
its time."""
_Advance = Callable[[float], None]
"""To be called with the operations that a device has done since."""


class PacedDevices:
    """The devices of one process.

    operations: of each call of a module's forward pass; of_step: of a step of one device, both passes of all modules. gflops: pace
    of each device; updates: share of the weights that a device updates. alone: no other process waits for these.
    """

    def __init__(
        self,
        operations: Mapping[str, float],
        of_step: float,
        gflops: Sequence[float],
        alone: bool = True,
        updates: float = 1.0,
    ) -> None:
        self._operations = operations
        self._rates = [1e9 * each / (1 - _OPTIMIZER_SHARE) for each in gflops]
        self._optimizer_s = updates * _OPTIMIZER_SHARE * of_step / (1e9 * min(gflops))
        self._alone = alone
        self._pacer = Pacer()
        self._replicas: list[Pacer] = []
        self._late_s: list[float] = []

    @property
    def paced_s(self) -> float:
        """Seconds of the devices so far, but for forward passes of replicas."""
        return self._pacer.paced_s

    def begin(self) -> None:
        """Begin a step. What the process did since the last one is no work of its devices."""
        self._pacer.begin()

    def note_gradients(self) -> None:
        """All gradients of a step are there."""
        self._note()

    def end(self) -> None:
        """End a step, whose last part is the optimizer's."""
        self._pacer.advance(self._optimizer_s)
        self._note()

    def _note(self) -> None:
        self._late_s.append(self._pacer.late_s + max((pacer.late_s for pacer in self._replicas), default=0.0))

    def begin_window(self) -> None:
        """Make up for nothing of the steps so far, whose first ones do much once."""
        self._late_s = [0.0]
        for pacer in (self._pacer, *self._replicas):
            pacer.forget()

    def lost_s(self) -> tuple[float, ...]:
        """Seconds that the process fell behind the devices in each step of the window.

        Others wait for what is late at its gradients or its end, even if this process makes up for it. Alone it loses what is late
        at the end of the window.
        """
        if self._alone:
            return (*(0.0 for _ in self._late_s[3::2]), self._late_s[-1])
        fallen = [max(0.0, after - before) for before, after in pairwise(self._late_s)]
        return tuple(map(sum, zip(fallen[::2], fallen[1::2], strict=True)))

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
        self._calls: list[_ModuleCall] = []
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
        self._calls.append(_ModuleCall(tensors, lambda: self._backward(2 * self._operations)))


class _ModuleCall:
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
