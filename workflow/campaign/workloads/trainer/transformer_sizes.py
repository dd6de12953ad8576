"""Sizes of the built-in transformers. The module needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TransformerSize:
    """Size of a transformer.

    Attributes:
        positions: maximum sequence length.
    """

    layers: int
    width: int
    heads: int
    vocabulary: int
    positions: int


BERT_SIZES: Mapping[str, TransformerSize] = {
    "bert-nano": TransformerSize(layers=2, width=128, heads=2, vocabulary=2048, positions=512),
    "bert-base": TransformerSize(layers=12, width=768, heads=12, vocabulary=30522, positions=512),
    "bert-large": TransformerSize(layers=24, width=1024, heads=16, vocabulary=30522, positions=512),
}
# The sizes of GPT-3 are from Brown et al. 2020, table 2.1, with dense attention only. For 1.3 billion parameters, the table has
# 24 heads of 128, but a width of 2048 needs 16.
GPT_SIZES: Mapping[str, TransformerSize] = {
    "gpt-nano": TransformerSize(layers=2, width=128, heads=4, vocabulary=2048, positions=1024),
    "gpt2": TransformerSize(layers=12, width=768, heads=12, vocabulary=50257, positions=1024),
    "gpt2-medium": TransformerSize(layers=24, width=1024, heads=16, vocabulary=50257, positions=1024),
    "gpt3-1.3b": TransformerSize(layers=24, width=2048, heads=16, vocabulary=50257, positions=2048),
    "gpt3-6.7b": TransformerSize(layers=32, width=4096, heads=32, vocabulary=50257, positions=2048),
}
TRANSFORMER_SIZES: Mapping[str, TransformerSize] = {**BERT_SIZES, **GPT_SIZES}
