"""The repeated parts of a network: what is recomputed, and what is sharded, as one piece. Pure structure."""

from __future__ import annotations

from collections import Counter

from torch import nn


def layers_of(network: nn.Module) -> list[nn.Module]:
    """The outermost modules with parameters whose class is the model's own and occurs more than once, in the order of the network.

    Transformer layers, residual blocks, convolution units: whatever the model calls them; none in one of torch's modules.
    """
    kinds = Counter(type(module) for module in network.modules() if _own(module))
    found: list[nn.Module] = []

    def search(module: nn.Module) -> None:
        for child in module.children():
            if kinds[type(child)] > 1:
                found.append(child)
            else:
                search(child)

    search(network)
    return list(dict.fromkeys(found))


def _own(module: nn.Module) -> bool:
    return not type(module).__module__.startswith("torch.") and next(module.parameters(), None) is not None
