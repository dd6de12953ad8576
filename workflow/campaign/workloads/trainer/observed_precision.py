"""Which types the weights and gradients of a model really have while it trains."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

_COMPUTING = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


class SeenTypes:
    """Of the first matrix product of a network: the types of its weight in the forward pass and of that weight's gradient.

    inside: look at the first step after this was made, in the pass itself, because a sharded weight has its type only there.
    Otherwise they are those of the weight and of the gradient that the last step has left.
    """

    def __init__(self, network: nn.Module, inside: bool) -> None:
        self._first = next((module for module in network.modules() if isinstance(module, _COMPUTING)), None)
        self._weights = self._gradients = torch.float32
        self._inside = inside and self._first is not None
        if self._first is not None and inside:
            self._handle = self._first.register_forward_pre_hook(self._look)

    def _look(self, module: nn.Module, _: Any) -> None:
        self._handle.remove()
        weight = module.get_parameter("weight")
        self._weights = weight.dtype
        handle: list[RemovableHandle] = []

        def note(gradient: Tensor) -> None:
            self._gradients = gradient.dtype
            handle.pop().remove()

        handle.append(weight.register_hook(note))  # type: ignore[no-untyped-call]

    def types(self) -> tuple[torch.dtype, torch.dtype]:
        """(of weights, of gradients), after a step."""
        if self._first is None or self._inside:
            return self._weights, self._gradients
        weight = self._first.get_parameter("weight")
        return weight.dtype, weight.dtype if weight.grad is None else weight.grad.dtype
