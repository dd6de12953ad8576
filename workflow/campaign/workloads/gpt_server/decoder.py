"""GPT-2 with a cache of keys and values. Its layers may be divided over several processes (tensor parallel, Shoeybi et al. 2019).

Each process has some of the attention heads, of the hidden units and of the vocabulary. In each layer the parts of two products
are summed over all processes. Needs torch.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from datetime import timedelta
from itertools import accumulate

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional

from campaign.errors import ConfigError
from campaign.workloads.gpt_server.application import Feed
from campaign.workloads.trainer.models.language import Gpt
from campaign.workloads.trainer.paced_modules import Pacer
from campaign.workloads.trainer.transformer_sizes import TransformerSize

_JOIN = timedelta(seconds=120)
_IDLE = timedelta(days=30)  # processes wait for the next iteration in a collective operation


def join_group() -> None:
    """Join the processes that share a network, by RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT of the environment."""
    address, port, rank, size = (os.environ[name] for name in ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE"))
    if address.startswith("127."):
        # Without an interface gloo resolves the host's name, which need not lead to this host.
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    store = dist.TCPStore(address, int(port), int(size), is_master=rank == "0", timeout=_JOIN)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=int(rank), world_size=int(size), timeout=_IDLE)


def random_weights(size: TransformerSize, seed: int) -> Mapping[str, Tensor]:
    """Weights by their names in `Gpt`, so drawn that a token depends on all before it: a fresh GPT-2 repeats its last one."""
    torch.manual_seed(seed)
    weights: Mapping[str, Tensor] = Gpt(size, dropout=0.0).state_dict()
    for name, weight in weights.items():
        if name.startswith("layers.") and weight.dim() == 2:
            weight.normal_(std=weight.shape[1] ** -0.5)
    return weights


class Decoder:
    """This process's part of the network, and the keys and values of as many sequences as there are slots.

    context: longest sequence. gflops: rate of the emulated device, None for as fast as this machine. least_tokens: an iteration of
    fewer tokens takes as long as one of so many, because a device reads the whole network in each iteration. lost_s: by how much
    iterations ended later than on the device, which clients have waited for; in the first process, the most of any process.
    """

    def __init__(
        self,
        size: TransformerSize,
        weights: Mapping[str, Tensor],
        slots: int,
        context: int,
        *,
        gflops: float | None = None,
        least_tokens: int = 1,
    ) -> None:
        self.rank, self.ranks = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
        if size.heads % self.ranks:
            raise ConfigError(f"{size.heads} attention heads cannot be divided over {self.ranks} processes")
        if context > len(weights["positions.weight"]):
            raise ConfigError(f"the network has {len(weights['positions.weight'])} positions, fewer than {context}")
        self._size, self._least_tokens = size, least_tokens
        self._rate, self._pacer = 1e9 * (gflops or 0.0), Pacer()
        self._late_s = self.lost_s = 0.0
        self._weights = {name: self._own(name, weight.detach()) for name, weight in weights.items()}
        vocabulary = weights["tokens.weight"].tensor_split(self.ranks)
        self._head, self._first_token = vocabulary[self.rank], sum(map(len, vocabulary[: self.rank]))
        self._heads = size.heads // self.ranks
        self._cache = torch.zeros(size.layers, 2, slots, self._heads, context, size.width // size.heads)

    def _own(self, name: str, weight: Tensor) -> Tensor:
        """This process's part of a weight or bias."""
        if "query_key_value" in name or "feed_forward_in" in name:
            return weight.chunk(self.ranks)[self.rank].contiguous()
        if name.endswith("_out.weight"):
            return weight.chunk(self.ranks, 1)[self.rank].contiguous()
        return weight

    def next_tokens(self, feeds: Sequence[Feed]) -> list[int]:
        """The most probable token after each feed. Called in the first process; no feeds end the others."""
        if self.ranks > 1:
            dist.broadcast_object_list([feeds], 0)
        return self._iterate(feeds) if feeds else []

    def follow(self) -> None:
        """Compute what the first process tells, in another process, until the end."""
        told: list[Sequence[Feed]] = [()]
        while dist.broadcast_object_list(told, 0) or told[0]:
            self._iterate(told[0])

    @torch.inference_mode()
    def _iterate(self, feeds: Sequence[Feed]) -> list[int]:
        size = self._size
        self._pacer.begin()
        tokens = torch.tensor([token for feed in feeds for token in feed.tokens])
        positions = torch.cat([torch.arange(feed.start, feed.end) for feed in feeds])
        x = self._weights["tokens.weight"][tokens] + self._weights["positions.weight"][positions]
        pairs = sum(len(feed.tokens) * feed.end for feed in feeds)
        work = max(len(tokens), self._least_tokens) * size.width**2 / self.ranks
        for layer in range(size.layers):
            name = f"layers.{layer}."
            packed = self._linear(name + "query_key_value", self._norm(name + "attention_norm", x))
            attended = self._attention(layer, packed, feeds)
            attended = functional.linear(attended, self._weights[name + "attention_out.weight"])
            self._worked(2 * 4 * work + 4 * pairs * size.width / self.ranks)
            x = x + self._sum(attended) + self._weights[name + "attention_out.bias"]
            hidden = self._linear(name + "feed_forward_in", self._norm(name + "feed_forward_norm", x))
            hidden = functional.gelu(hidden, approximate="tanh")
            hidden = functional.linear(hidden, self._weights[name + "feed_forward_out.weight"])
            self._worked(2 * 8 * work)
            x = x + self._sum(hidden) + self._weights[name + "feed_forward_out.bias"]
        ends = torch.tensor(list(accumulate(len(feed.tokens) for feed in feeds))) - 1
        logits = functional.linear(self._norm("norm", x[ends]), self._head)
        self._worked(2 * self._head.numel() * max(len(feeds), self._least_tokens))
        if self._rate:
            self._late_s += self._pacer.late_s
        self._pacer.forget()
        return self._most_probable(logits)

    def _worked(self, operations: float) -> None:
        """Take as long as the emulated device for so many floating-point operations."""
        if self._rate:
            self._pacer.advance(operations / self._rate)

    def _sum(self, part: Tensor) -> Tensor:
        if self.ranks > 1:
            dist.all_reduce(part)
        return part

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
            count, end = len(feed.tokens), feed.end
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
        late_s = torch.full_like(values, self._late_s, dtype=torch.double)
        own = torch.stack((values.double(), tokens.double() + self._first_token, late_s))
        parts = [torch.empty_like(own) for _ in range(self.ranks)] if self.rank == 0 else None
        if self.ranks > 1:
            dist.gather(own, parts)
        if parts is None:
            return []
        found = torch.stack(parts if self.ranks > 1 else [own])
        self.lost_s = float(found[:, 2].max())
        best = found[:, 0].max(0).indices
        return [int(token) for token in found[best, 1, torch.arange(len(best))]]
