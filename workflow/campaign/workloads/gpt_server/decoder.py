"""GPT-2 with a cache of keys and values. Its layers may be divided over several processes (tensor parallel, Shoeybi et al. 2019).

Each process has some of the attention heads, of the hidden units and of the vocabulary. In each layer the parts of two products
are summed over all processes. Needs torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from campaign.errors import ConfigError
from campaign.workloads.gpt_server.batching import Feed
from campaign.workloads.trainer.models.language import Gpt
from campaign.workloads.trainer.transformer_sizes import GPT_SIZES, Size

SIZES: Mapping[str, Size] = {**GPT_SIZES, "gpt-mini": Size(layers=4, width=256, heads=8, vocabulary=2048)}


class Pace(Protocol):
    """The clock of an emulated device."""

    @property
    def lost_s(self) -> float:
        """Seconds that the process fell behind its device so far."""

    def begin(self) -> None:
        """An iteration begins."""

    def worked(self, operations: float) -> None:
        """So many floating-point operations of the iteration are done."""

    def end(self) -> None:
        """The iteration ends."""


class Unpaced:
    """As fast as this machine is."""

    lost_s = 0.0

    def begin(self) -> None:
        pass

    def worked(self, operations: float) -> None:
        pass

    def end(self) -> None:
        pass


class Group(Protocol):
    """The processes that share a network."""

    rank: int
    size: int

    def sum(self, part: Tensor) -> Tensor:
        """The sum of all processes' parts; may be `part` itself."""

    def gather(self, part: Tensor) -> Sequence[Tensor]:
        """The parts of all processes, by rank, in the first of them; nothing in others."""


class Alone:
    """One process."""

    rank, size = 0, 1

    def sum(self, part: Tensor) -> Tensor:
        return part

    def gather(self, part: Tensor) -> Sequence[Tensor]:
        return [part]


def random_weights(size: Size, seed: int) -> Mapping[str, Tensor]:
    """Weights by their names in `Gpt`, so drawn that a token depends on all before it: a fresh GPT-2 repeats its last one."""
    torch.manual_seed(seed)
    weights: Mapping[str, Tensor] = Gpt(size, dropout=0.0).state_dict()
    for name, weight in weights.items():
        if name.startswith("layers.") and weight.dim() == 2:
            weight.normal_(std=weight.shape[1] ** -0.5)
    return weights


class Decoder:
    """One process's part of the network, and the keys and values of as many sequences as there are slots.

    context: longest sequence. least_tokens: an iteration of fewer tokens has the pace of one of so many, because a device reads the
    whole network in each iteration. lost_s: in the first process, the largest of all processes' paces.
    """

    def __init__(
        self,
        size: Size,
        weights: Mapping[str, Tensor],
        slots: int,
        context: int,
        group: Group | None = None,
        pace: Pace | None = None,
        least_tokens: int = 1,
    ) -> None:
        self._group = group = group or Alone()
        self._size, self._pace, self._least_tokens = size, pace or Unpaced(), least_tokens
        self.lost_s = 0.0
        if size.heads % group.size:
            raise ConfigError(f"{size.heads} attention heads cannot be divided over {group.size} processes")
        if context > len(weights["positions.weight"]):
            raise ConfigError(f"the network has {len(weights['positions.weight'])} positions, fewer than {context}")
        self._weights = {name: self._own(name, weight.detach()) for name, weight in weights.items()}
        vocabulary = weights["tokens.weight"].tensor_split(group.size)
        self._head, self._first_token = vocabulary[group.rank], sum(len(part) for part in vocabulary[: group.rank])
        self._heads = size.heads // group.size
        self._cache = torch.zeros(size.layers, 2, slots, self._heads, context, size.width // size.heads)

    def _own(self, name: str, weight: Tensor) -> Tensor:
        """This process's part of a weight or bias."""
        ranks, rank = self._group.size, self._group.rank
        if "query_key_value" in name or "feed_forward_in" in name:
            return weight.chunk(ranks)[rank].contiguous()
        if name.endswith("_out.weight"):
            return weight.chunk(ranks, 1)[rank].contiguous()
        return weight

    @torch.inference_mode()
    def next_tokens(self, feeds: Sequence[Feed]) -> list[int]:
        """The most probable token after each feed, in the first process; in others nothing."""
        size = self._size
        self._pace.begin()
        tokens = torch.tensor([token for feed in feeds for token in feed.tokens])
        positions = torch.cat([torch.arange(feed.start, feed.start + len(feed.tokens)) for feed in feeds])
        x = self._weights["tokens.weight"][tokens] + self._weights["positions.weight"][positions]
        pairs = sum(len(feed.tokens) * (feed.start + len(feed.tokens)) for feed in feeds)
        work = max(len(tokens), self._least_tokens) * size.width**2 / self._group.size
        for layer in range(size.layers):
            name = f"layers.{layer}."
            packed = self._linear(name + "query_key_value", self._norm(name + "attention_norm", x))
            attended = self._attention(layer, packed, feeds)
            attended = functional.linear(attended, self._weights[name + "attention_out.weight"])
            self._pace.worked(2 * 4 * work + 4 * pairs * size.width / self._group.size)
            x = x + self._group.sum(attended) + self._weights[name + "attention_out.bias"]
            hidden = self._linear(name + "feed_forward_in", self._norm(name + "feed_forward_norm", x))
            hidden = functional.gelu(hidden, approximate="tanh")
            hidden = functional.linear(hidden, self._weights[name + "feed_forward_out.weight"])
            self._pace.worked(2 * 8 * work)
            x = x + self._group.sum(hidden) + self._weights[name + "feed_forward_out.bias"]
        ends = torch.tensor([len(feed.tokens) for feed in feeds]).cumsum(0) - 1
        logits = functional.linear(self._norm("norm", x[ends]), self._head)
        self._pace.worked(2 * self._head.numel() * max(len(feeds), self._least_tokens))
        self._pace.end()
        return self._most_probable(logits)

    def _linear(self, name: str, x: Tensor) -> Tensor:
        return functional.linear(x, self._weights[f"{name}.weight"], self._weights[f"{name}.bias"])

    def _norm(self, name: str, x: Tensor) -> Tensor:
        return functional.layer_norm(x, x.shape[-1:], self._weights[f"{name}.weight"], self._weights[f"{name}.bias"])

    def _attention(self, layer: int, packed: Tensor, feeds: Sequence[Feed]) -> Tensor:
        """Causal attention of each feed to its own sequence, whose keys and values are added to the cache."""
        heads = packed.view(len(packed), self._heads, 3, -1).permute(2, 1, 0, 3)
        query, keys_values = heads[:1], heads[1:]
        found, first = [], 0
        for feed in feeds:
            count, end = len(feed.tokens), feed.start + len(feed.tokens)
            part = slice(first, first := first + count)
            cached = self._cache[layer, :, feed.slot]
            cached[:, :, feed.start : end] = keys_values[:, :, part]
            seen = torch.ones(count, end, dtype=torch.bool).tril(feed.start) if count > 1 else None
            keys, values = cached[:, None, :, :end]
            attended = functional.scaled_dot_product_attention(query[:, :, part], keys, values, attn_mask=seen)
            found.append(attended[0].transpose(0, 1).flatten(1))
        return torch.cat(found)

    def _most_probable(self, logits: Tensor) -> list[int]:
        values, tokens = logits.max(-1)
        lost_s = torch.full_like(values, self._pace.lost_s, dtype=torch.double)
        best = self._group.gather(torch.stack((values.double(), tokens.double() + self._first_token, lost_s)))
        if not best:
            return []
        parts = torch.stack(tuple(best))
        of = parts[:, 0].max(0).indices
        self.lost_s = float(parts[:, 2].max())
        return [int(token) for token in parts[of, 1, torch.arange(len(of))]]
