"""BERT (Devlin et al. 2018) with a question-answering head, and GPT-2 (Radford et al. 2019).

BERT normalises after each part. It has no pooler, because only its head is trained. GPT-2 normalises before each part, and its
output weights are tied to its input.
"""

from __future__ import annotations

import math
import zlib

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn import functional

from campaign.workloads.trainer.transformer_sizes import TransformerSize


def _compute_attention(query_key_value: Tensor, head_width: int, dropout: float, causal: bool) -> Tensor:
    """Compute self-attention over packed queries, keys and values.

    The shape changes from [n, tokens, heads x 3 x head_width] to [n, tokens, heads x head_width].
    """
    samples, tokens, _ = query_key_value.shape
    query, key, value = query_key_value.view(samples, tokens, -1, 3, head_width).permute(3, 0, 2, 1, 4).unbind(0)
    output = functional.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=causal)
    return output.transpose(1, 2).reshape(samples, tokens, -1)


def _initialise_weights(network: nn.Module, outward_std: float = 0.02) -> None:
    """Initialise the weights of a network.

    Args:
        network: the network.
        outward_std: standard deviation of the weights of the projections at the end of each part.
    """
    for name, module in network.named_modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=outward_std if name.endswith("_out") else 0.02)
        if isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)


@torch.no_grad()
def draw_weights(network: Gpt, seed: int) -> None:
    """Draw the weights of a network in place, each from a random stream determined by the seed and the weight's name.

    Ranks that hold shards of the same weight thus draw the same numbers. Only one whole tensor exists at a time. The numbers
    differ from those that `_initialise_weights` draws, but have the same distribution.
    """
    for name, module in network.named_modules():
        for key, weight in module.named_parameters(recurse=False):
            full_weight = torch.zeros(weight.shape, device=weight.device)
            if isinstance(module, nn.LayerNorm) and key == "weight":
                full_weight.fill_(1.0)
            elif key == "weight":
                # 32 bits, because the generator of a CPU uses no more of them.
                generator = torch.Generator(weight.device).manual_seed(zlib.crc32(f"{seed} {name}".encode()))
                full_weight.normal_(std=network.outward_std if name.endswith("_out") else 0.02, generator=generator)
            if isinstance(weight, DTensor):
                local_weight = distribute_tensor(full_weight, weight.device_mesh, weight.placements, src_data_rank=None)
                weight.to_local().copy_(local_weight.to_local())
            else:
                weight.copy_(full_weight)


class BertLayer(nn.Module):
    """Layer of self-attention and feed-forward, each with a shortcut and then normalised; keeps [n, tokens, width]."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.head_width = width // heads
        self.dropout = dropout
        self.query_key_value = nn.Linear(width, 3 * width)
        self.attention_out = nn.Linear(width, width)
        self.attention_norm = nn.LayerNorm(width, eps=1e-12)
        self.feed_forward = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.feed_forward_norm = nn.LayerNorm(width, eps=1e-12)

    def forward(self, x: Tensor) -> Tensor:
        drop = self.dropout if self.training else 0.0
        attention_output = self.attention_out(
            _compute_attention(self.query_key_value(x), self.head_width, drop, causal=False)
        )
        x = self.attention_norm(x + functional.dropout(attention_output, drop))
        output: Tensor = self.feed_forward_norm(x + functional.dropout(self.feed_forward(x), drop))
        return output


class Bert(nn.Module):
    """BERT network: maps token ids and segment ids, both [n, tokens] int64, to start and end logits [n, tokens, 2]."""

    def __init__(self, size: TransformerSize, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.tokens = nn.Embedding(size.vocabulary, size.width)
        self.positions = nn.Embedding(size.positions, size.width)
        self.segments = nn.Embedding(2, size.width)
        self.embedding_norm = nn.LayerNorm(size.width, eps=1e-12)
        self.layers = nn.Sequential(*(BertLayer(size.width, size.heads, dropout) for _ in range(size.layers)))
        self.answer = nn.Linear(size.width, 2)
        _initialise_weights(self)

    def forward(self, token_ids: Tensor, segment_ids: Tensor) -> Tensor:
        position_ids = torch.arange(token_ids.shape[1], device=token_ids.device)
        x = self.tokens(token_ids) + self.positions(position_ids) + self.segments(segment_ids)
        x = functional.dropout(self.embedding_norm(x), self.dropout if self.training else 0.0)
        logits: Tensor = self.answer(self.layers(x))
        return logits


def draw_question(size: TransformerSize, seq_len: int, generator: torch.Generator) -> tuple[Tensor, ...]:
    """Draw a random question with its answer: token ids [seq_len], segment ids [seq_len], start [], end []."""
    token_ids = torch.randint(size.vocabulary, (seq_len,), generator=generator)
    first = int(torch.randint(1, seq_len, (), generator=generator))
    segment_ids = (torch.arange(seq_len) >= first).long()
    span = torch.randint(seq_len, (2,), generator=generator).sort().values
    return token_ids, segment_ids, span[0], span[1]


def answer_loss(logits: Tensor, start: Tensor, end: Tensor) -> Tensor:
    """Return the mean of the cross-entropies of the answer's first and last token, a scalar."""
    start_logits, end_logits = logits.float().unbind(-1)
    return (functional.cross_entropy(start_logits, start) + functional.cross_entropy(end_logits, end)) / 2


class GptLayer(nn.Module):
    """Layer of causal self-attention and feed-forward, both with normalised inputs; keeps [n, tokens, width]."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.head_width = width // heads
        self.dropout = dropout
        self.attention_norm = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.attention_out = nn.Linear(width, width)
        self.feed_forward_norm = nn.LayerNorm(width)
        self.feed_forward_in = nn.Linear(width, 4 * width)
        self.feed_forward_out = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        drop = self.dropout if self.training else 0.0
        query_key_value = self.query_key_value(self.attention_norm(x))
        x = x + functional.dropout(
            self.attention_out(_compute_attention(query_key_value, self.head_width, drop, causal=True)), drop
        )
        activations = functional.gelu(self.feed_forward_in(self.feed_forward_norm(x)), approximate="tanh")
        return x + functional.dropout(self.feed_forward_out(activations), drop)


class Gpt(nn.Module):
    """GPT network: maps token ids [n, tokens] int64 to logits of the next token [n, tokens, vocabulary]."""

    def __init__(self, size: TransformerSize, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.tokens = nn.Embedding(size.vocabulary, size.width)
        self.positions = nn.Embedding(size.positions, size.width)
        self.layers = nn.Sequential(*(GptLayer(size.width, size.heads, dropout) for _ in range(size.layers)))
        self.norm = nn.LayerNorm(size.width)
        # Both parts of every layer add to one sum. This scale keeps the initial deviation of the sum at 1 (section 2.3).
        self.outward_std = 0.02 / math.sqrt(2 * size.layers)
        _initialise_weights(self, self.outward_std)

    def forward(self, token_ids: Tensor) -> Tensor:
        position_ids = torch.arange(token_ids.shape[1], device=token_ids.device)
        x = self.tokens(token_ids) + self.positions(position_ids)
        x = functional.dropout(x, self.dropout if self.training else 0.0)
        return functional.linear(self.norm(self.layers(x)), self.tokens.weight)


def draw_text(size: TransformerSize, seq_len: int, generator: torch.Generator) -> tuple[Tensor, ...]:
    """Draw a random text: token ids [seq_len], and the id that follows each of them [seq_len]."""
    token_ids = torch.randint(size.vocabulary, (seq_len + 1,), generator=generator)
    return token_ids[:-1], token_ids[1:]


def next_token_loss(logits: Tensor, following: Tensor) -> Tensor:
    """Return the mean cross-entropy of the next token over all positions, a scalar."""
    return functional.cross_entropy(logits.float().flatten(0, 1), following.flatten())
