"""GPT-2 (Radford et al. 2019), a causal language model: normalisation before each part, learned positions, output tied to input."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

_POSITIONS = 1024


@dataclass(frozen=True, slots=True)
class Size:
    layers: int
    width: int
    heads: int
    vocabulary: int = 50257


SIZES = {
    "gpt-nano": Size(layers=2, width=128, heads=4, vocabulary=2048),
    "gpt2": Size(layers=12, width=768, heads=12),
    "gpt2-medium": Size(layers=24, width=1024, heads=16),
}


class Layer(nn.Module):
    """Causal self-attention and feed-forward, each added to its normalised input; [n, tokens, width] to the same."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.attention_norm = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.attention_out = nn.Linear(width, width)
        self.feed_forward_norm = nn.LayerNorm(width)
        self.feed_forward_in = nn.Linear(width, 4 * width)
        self.feed_forward_out = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        drop = self.dropout if self.training else 0.0
        samples, tokens, width = x.shape
        shape = (samples, tokens, 3, self.heads, width // self.heads)
        query, key, value = self.query_key_value(self.attention_norm(x)).view(shape).permute(2, 0, 3, 1, 4).unbind(0)
        attended = functional.scaled_dot_product_attention(query, key, value, dropout_p=drop, is_causal=True)
        attended = self.attention_out(attended.transpose(1, 2).reshape(samples, tokens, width))
        x = x + functional.dropout(attended, drop)
        hidden = functional.gelu(self.feed_forward_in(self.feed_forward_norm(x)), approximate="tanh")
        return x + functional.dropout(self.feed_forward_out(hidden), drop)


class Gpt(nn.Module):
    """Token ids [n, tokens] int64 to logits of the next token [n, tokens, vocabulary]."""

    def __init__(self, size: Size, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.tokens = nn.Embedding(size.vocabulary, size.width)
        self.positions = nn.Embedding(_POSITIONS, size.width)
        self.layers = nn.Sequential(*(Layer(size.width, size.heads, dropout) for _ in range(size.layers)))
        self.norm = nn.LayerNorm(size.width)
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                # Both parts of every layer add to one sum; so scaled, it has the deviation of one at the start (section 2.3).
                outward = name.endswith("_out")
                nn.init.normal_(module.weight, std=0.02 / math.sqrt(2 * size.layers) if outward else 0.02)
            if isinstance(module, nn.Linear):
                nn.init.zeros_(module.bias)

    def forward(self, token_ids: Tensor) -> Tensor:
        position_ids = torch.arange(token_ids.shape[1], device=token_ids.device)
        x = self.tokens(token_ids) + self.positions(position_ids)
        x = functional.dropout(x, self.dropout if self.training else 0.0)
        return functional.linear(self.norm(self.layers(x)), self.tokens.weight)


def sample(size: Size, seq_len: int, generator: torch.Generator) -> tuple[Tensor, ...]:
    """A piece of text: token ids [seq_len], and the same one further, which is what is to be foretold [seq_len]."""
    token_ids = torch.randint(size.vocabulary, (seq_len + 1,), generator=generator)
    return token_ids[:-1], token_ids[1:]


def loss(logits: Tensor, following: Tensor) -> Tensor:
    """Mean cross-entropy of the next token over all positions, a scalar."""
    return functional.cross_entropy(logits.float().flatten(0, 1), following.flatten())
