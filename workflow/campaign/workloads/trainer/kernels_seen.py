"""Recorder of the kernels that torch chooses in a step for operations with several kernels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

_ATTENTION = {
    "aten::_scaled_dot_product_flash_attention": "flash",
    "aten::_scaled_dot_product_flash_attention_for_cpu": "flash",
    "aten::_scaled_dot_product_efficient_attention": "efficient",
    "aten::_scaled_dot_product_cudnn_attention": "cudnn",
    "aten::_scaled_dot_product_fused_attention_overrideable": "fused",  # kernel of a vendor's torch, such as Intel's
}
_PLAIN_ATTENTION = "math"
"""Attention that torch composes from matrix products and a softmax instead of calling a special kernel."""


@contextmanager
def record_kernels() -> Iterator[dict[str, str]]:
    """Record which kernels torch calls in this thread. Yields a dict that is filled in when the context ends.

    `attention` is flash, efficient, cudnn, fused or math, with several joined by ' and '; it is absent without attention.
    `optimizer` is present if the optimizer was a fused AdamW.
    """
    kernels_by_use: dict[str, str] = {}
    with _AttentionCounter() as attention_counter, _OperatorCounter() as operator_counter:
        yield kernels_by_use
    kernels = {name: count for name, count in operator_counter.calls_by_name.items() if name in _ATTENTION}
    plain = {_PLAIN_ATTENTION} if attention_counter.calls > sum(kernels.values()) else set()
    if attention_kernels := {_ATTENTION[name] for name in kernels} | plain:
        kernels_by_use["attention"] = " and ".join(sorted(attention_kernels))
    if "aten::_fused_adamw_" in operator_counter.calls_by_name:
        kernels_by_use["optimizer"] = "fused"


class _AttentionCounter(TorchFunctionMode):
    """Counter of the calls of scaled dot-product attention in a context."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        self.calls += func is scaled_dot_product_attention
        return func(*args, **(kwargs or {}))


class _OperatorCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counter of the operators that torch dispatches in a context, by name."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls_by_name: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        self.calls_by_name[func._schema.name] += 1
        return func(*args, **(kwargs or {}))
