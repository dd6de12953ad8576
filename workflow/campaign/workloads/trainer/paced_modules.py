"""Training at the pace of emulated devices, in which the modules of a network compute, but take as long as on the device.

The forward pass of a module ends when the device would have finished it. Its backward pass, with twice as many operations, ends
before its gradients are passed on to their reduction or to the previous module, so communication overlaps as on the device.
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

from campaign.workloads.trainer.cpu_data_parallel import CpuDataParallel

_SCHEDSTAT = Path("/proc/thread-self/schedstat")
_MIN_SLEEP_S = 20e-6
_OVERSLEEP_LEARNING_RATE = 0.1


class DevicePacer:
    """Pacer that makes the work of a thread take as long as it would on one emulated device.

    The paced thread is the one that created the pacer, or the one that last called `begin_part`. After each part of its work, the
    thread reports the duration of that part on the device (`wait_for_device`), and sleeps for the rest of it. Time in which the
    thread computed or waited for a core counts as work. Time in which it was blocked in a collective or waited for input does not
    count, because the device waits, too. If a part took longer than on the device, the delay is made up for in the next parts.
    `delay_s` is the delay that has not been made up for yet.

    Attributes:
        paced_s: time of the device so far, in seconds.
        delay_s: delay of the thread behind the device at the end of the last part, in seconds.
    """

    def __init__(self) -> None:
        self._owed_s = self._oversleep_s = 0.0
        self._thread = 0
        self._close: Callable[[], object] = int
        self.paced_s = 0.0
        self.begin_part()

    def begin_part(self) -> None:
        """Begin a part of the device's work in the calling thread. Earlier work of the thread does not count."""
        if self._thread != (thread := get_native_id()):
            self._close()
            self._thread = thread
            # Kept open, because it is read twice per part and opening it takes ten times as long as reading it.
            self._schedstat = os.open(_SCHEDSTAT, os.O_RDONLY) if _SCHEDSTAT.exists() else None
            self._close = weakref.finalize(self, _close_descriptor, self._schedstat)
        self._busy_s = self._read_busy_s()

    def wait_for_device(self, seconds: float) -> None:
        """Advance the device's clock, and sleep until the thread's work has taken as long as the device's.

        Args:
            seconds: duration that the last part of the work has on the device.
        """
        busy_s, started_s = self._read_busy_s(), time.perf_counter()
        self._owed_s += seconds - (busy_s - self._busy_s)
        self._busy_s = busy_s
        self.paced_s += seconds
        if self._owed_s > _MIN_SLEEP_S + self._oversleep_s:
            asleep_s = self._owed_s - self._oversleep_s
            time.sleep(asleep_s)
            # A sleep ends late by the scheduler's granularity and the wait for a core. This counts as time on the device.
            self._busy_s, ended_s = self._read_busy_s(), time.perf_counter()
            self._owed_s -= ended_s - started_s
            # The mean lateness is learned, so that the work is on time on average.
            self._oversleep_s += _OVERSLEEP_LEARNING_RATE * (ended_s - started_s - asleep_s - self._oversleep_s)

    def forgive_delay(self) -> None:
        """Forgive the current delay, so that it is not made up for in later parts."""
        self._owed_s = max(0.0, self._owed_s)

    @property
    def delay_s(self) -> float:
        """Current delay of the thread behind the device, in seconds."""
        return max(0.0, -self._owed_s)

    def _read_busy_s(self) -> float:
        """Return for how many seconds the thread has computed or waited for a core.

        The waiting time is documented in Linux, Documentation/scheduler/sched-stats.rst.
        """
        if self._schedstat is None:
            return time.thread_time()
        # The file has the computing time as well, but on some kernels only as of the last scheduler tick.
        return time.thread_time() + int(os.pread(self._schedstat, 64, 0).split()[1]) / 1e9


def _close_descriptor(descriptor: int | None) -> None:
    if descriptor is not None:
        os.close(descriptor)


_OPTIMIZER_SHARE = 0.05
"""Share of a step's time that the optimizer takes, about as much as for large models on GPUs. Here, too, the optimizer really
computes and needs time."""
_AdvanceFunction = Callable[[float], None]
"""Function that advances a device's clock by the time for a number of operations."""


class PacedDevices:
    """Emulated devices of one process, which make its training steps take as long as they would on real devices.

    Args:
        operations: number of operations in one forward call of each module, by module name.
        step_operations: number of operations per step on one device, in both passes of all modules.
        gflops: pace of each device in GFLOP/s.
        is_single_process: true if no other process waits for these devices.
        update_share: share of the weights that each device updates.
    """

    def __init__(
        self,
        operations: Mapping[str, float],
        step_operations: float,
        gflops: Sequence[float],
        is_single_process: bool = True,
        update_share: float = 1.0,
    ) -> None:
        self._operations = operations
        self._rates = [1e9 * rate / (1 - _OPTIMIZER_SHARE) for rate in gflops]
        self._optimizer_s = update_share * _OPTIMIZER_SHARE * step_operations / (1e9 * min(gflops))
        self._is_single_process = is_single_process
        self._pacer = DevicePacer()
        self._replicas: list[DevicePacer] = []
        self._late_s: list[float] = []

    @property
    def paced_s(self) -> float:
        """Time of the devices so far in seconds, without the forward passes of replicas."""
        return self._pacer.paced_s

    def begin_step(self) -> None:
        """Begin a step. Work of the process since the last step does not count as work of its devices."""
        self._pacer.begin_part()

    def record_gradients_ready(self) -> None:
        """Record the delay at the moment when all gradients of a step have been computed."""
        self._record_delay()

    def end_step(self) -> None:
        """End a step, whose last part is the work of the optimizer."""
        self._pacer.wait_for_device(self._optimizer_s)
        self._record_delay()

    def _record_delay(self) -> None:
        self._late_s.append(self._pacer.delay_s + max((pacer.delay_s for pacer in self._replicas), default=0.0))

    def begin_window(self) -> None:
        """Begin the measured window. Delays of earlier steps are forgiven, because the first steps include one-time work."""
        self._late_s = [0.0]
        for pacer in (self._pacer, *self._replicas):
            pacer.forgive_delay()

    def compute_lost_s(self) -> tuple[float, ...]:
        """Return how many seconds the process fell behind its devices in each step of the window.

        Other processes have to wait for delays at the gradients or at the end of a step, even if this process makes up for them
        later. A single process loses only the delay at the end of the window.
        """
        if self._is_single_process:
            return (*(0.0 for _ in self._late_s[3::2]), self._late_s[-1])
        delays_s = [max(0.0, after - before) for before, after in pairwise(self._late_s)]
        return tuple(map(sum, zip(delays_s[::2], delays_s[1::2], strict=True)))

    def pace_network(self, network: nn.Module) -> None:
        """Make a network's passes take as long as on the only device of this process.

        Call this before the network is wrapped or sharded, so that its module names are those in `operations`.
        """

        def advance_device(operations: float) -> None:
            self._pacer.wait_for_device(operations / self._rates[0])

        self._pace_modules(network, advance_device, advance_device)

    def pace_replicas(self, replicas: CpuDataParallel) -> None:
        """Make the passes of each replica take as long as on its own device.

        Forward passes run in the threads of the replicas, and all backward passes run in the caller's thread.
        """
        device_times_s = [0.0] * len(self._rates)

        def advance_backward(device: int, operations: float) -> None:
            # The devices work at the same time, so the slowest one determines the time.
            before_s = max(device_times_s)
            device_times_s[device] += operations / self._rates[device]
            self._pacer.wait_for_device(max(device_times_s) - before_s)

        def advance_forward(pacer: DevicePacer, rate: float, operations: float) -> None:
            pacer.wait_for_device(operations / rate)

        for device, (trainable, rate) in enumerate(zip(replicas.replica_modules, self._rates, strict=True)):
            pacer = DevicePacer()
            self._replicas.append(pacer)
            trainable.register_forward_pre_hook(lambda *_, pacer=pacer: pacer.begin_part())
            network: nn.Module = trainable.get_submodule("network")
            self._pace_modules(network, partial(advance_forward, pacer, rate), partial(advance_backward, device))

    def _pace_modules(
        self, network: nn.Module, advance_forward: _AdvanceFunction, advance_backward: _AdvanceFunction
    ) -> None:
        for name, operations in self._operations.items():
            _PacedModule(network.get_submodule(name), operations, advance_forward, advance_backward)


class _PacedModule:
    """Hooks that make one module's passes take as long as on an emulated device."""

    def __init__(
        self,
        module: nn.Module,
        operations: float,
        advance_forward: _AdvanceFunction,
        advance_backward: _AdvanceFunction,
    ) -> None:
        self._operations = operations
        self._advance_forward = advance_forward
        self._advance_backward = advance_backward
        self._calls: list[_ModuleCall] = []
        module.register_forward_hook(self._handle_forward_end, with_kwargs=True)

    def _handle_forward_end(self, module: nn.Module, inputs: Any, named_inputs: Any, _output: Any) -> None:
        if torch._C._current_graph_task_id() != -1:
            # Activations are recomputed in a backward pass. Gradients follow the graph of the first computation.
            self._advance_backward(self._operations)
            return
        self._advance_forward(self._operations)
        # Weights keep the hooks of a finished call. Other tensors are freed together with their hooks.
        self._calls = [call for call in self._calls if not call.release_if_over()]
        # Weights of a replica are plain attributes, because they are not leaves. Sharding replaces the weight tensors.
        weights = [tensor for part in module.modules() for tensor in (*part._parameters.values(), *vars(part).values())]
        tensors = [
            t for t in (*tree_leaves((inputs, named_inputs)), *weights) if isinstance(t, Tensor) and t.requires_grad
        ]
        self._calls.append(_ModuleCall(tensors, lambda: self._advance_backward(2 * self._operations)))


class _ModuleCall:
    """One forward call of a module, watched until its backward pass.

    Args:
        tensors: inputs and weights of the call.
        on_gradient: function that is called once in the backward pass, when the first of the tensors has its gradient.
    """

    def __init__(self, tensors: Sequence[Tensor], on_gradient: Callable[[], None]) -> None:
        self._on_gradient: Callable[[], None] | None = on_gradient
        self._handles = [tensor.register_hook(self._handle_gradient) for tensor in tensors]  # type: ignore[no-untyped-call]

    def _handle_gradient(self, _: Tensor) -> None:
        callback, self._on_gradient = self._on_gradient, None
        if callback is not None:
            callback()

    def release_if_over(self) -> bool:
        """Return whether the backward pass of the call is over. If so, remove the call's hooks."""
        if self._on_gradient is None:
            for handle in self._handles:
                handle.remove()
        return self._on_gradient is None
