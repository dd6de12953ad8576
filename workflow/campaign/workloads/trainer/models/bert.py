"""BERT (Devlin et al. 2018) with a question-answering head and, as only the head is trained, without a pooler."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

_POSITIONS = 512
_SEGMENTS = 2


@dataclass(frozen=True, slots=True)
class Size:
    layers: int
    width: int
    heads: int
    vocabulary: int = 30522


SIZES = {
    "bert-nano": Size(layers=2, width=128, heads=2, vocabulary=2048),
    "bert-base": Size(layers=12, width=768, heads=12),
    "bert-large": Size(layers=24, width=1024, heads=16),
}


class Layer(nn.Module):
    """Self-attention and feed-forward, each with a shortcut and normalised after it; [n, tokens, width] to the same."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.query_key_value = nn.Linear(width, 3 * width)
        self.attention_out = nn.Linear(width, width)
        self.attention_norm = nn.LayerNorm(width, eps=1e-12)
        self.feed_forward = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.feed_forward_norm = nn.LayerNorm(width, eps=1e-12)

    def forward(self, x: Tensor) -> Tensor:
        samples, tokens, width = x.shape
        shape = (samples, tokens, 3, self.heads, width // self.heads)
        query, key, value = self.query_key_value(x).view(shape).permute(2, 0, 3, 1, 4).unbind(0)
        attended = functional.scaled_dot_product_attention(query, key, value, dropout_p=self._drop())
        attended = self.attention_out(attended.transpose(1, 2).reshape(samples, tokens, width))
        x = self.attention_norm(x + functional.dropout(attended, self._drop()))
        normed: Tensor = self.feed_forward_norm(x + functional.dropout(self.feed_forward(x), self._drop()))
        return normed

    def _drop(self) -> float:
        return self.dropout if self.training else 0.0


class BertQuestionAnswering(nn.Module):
    """Token ids and segment ids, both [n, tokens] int64, to start and end logits [n, tokens, 2]."""

    def __init__(self, size: Size, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.tokens = nn.Embedding(size.vocabulary, size.width)
        self.positions = nn.Embedding(_POSITIONS, size.width)
        self.segments = nn.Embedding(_SEGMENTS, size.width)
        self.embedding_norm = nn.LayerNorm(size.width, eps=1e-12)
        self.layers = nn.Sequential(*(Layer(size.width, size.heads, dropout) for _ in range(size.layers)))
        self.answer = nn.Linear(size.width, 2)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)
            if isinstance(module, nn.Linear):
                nn.init.zeros_(module.bias)

    def forward(self, token_ids: Tensor, segment_ids: Tensor) -> Tensor:
        position_ids = torch.arange(token_ids.shape[1], device=token_ids.device)
        x = self.tokens(token_ids) + self.positions(position_ids) + self.segments(segment_ids)
        x = functional.dropout(self.embedding_norm(x), self.dropout if self.training else 0.0)
        logits: Tensor = self.answer(self.layers(x))
        return logits


def sample(size: Size, seq_len: int, generator: torch.Generator) -> tuple[Tensor, ...]:
    """One question with its answer: token ids [seq_len], segment ids [seq_len], start [], end []."""
    token_ids = torch.randint(size.vocabulary, (seq_len,), generator=generator)
    question = int(torch.randint(1, seq_len, (), generator=generator))
    segment_ids = (torch.arange(seq_len) >= question).long()
    span = torch.randint(seq_len, (2,), generator=generator).sort().values
    return token_ids, segment_ids, span[0], span[1]


def loss(logits: Tensor, start: Tensor, end: Tensor) -> Tensor:
    """Mean cross-entropy of the answer's first and last token, a scalar."""
    start_logits, end_logits = logits.float().unbind(-1)
    return (functional.cross_entropy(start_logits, start) + functional.cross_entropy(end_logits, end)) / 2
