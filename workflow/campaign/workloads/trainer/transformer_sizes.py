"""Sizes of the built-in transformers. Without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TransformerSize:
    layers: int
    width: int
    heads: int
    vocabulary: int


BERT_SIZES: Mapping[str, TransformerSize] = {
    "bert-nano": TransformerSize(layers=2, width=128, heads=2, vocabulary=2048),
    "bert-base": TransformerSize(layers=12, width=768, heads=12, vocabulary=30522),
    "bert-large": TransformerSize(layers=24, width=1024, heads=16, vocabulary=30522),
}
GPT_SIZES: Mapping[str, TransformerSize] = {
    "gpt-nano": TransformerSize(layers=2, width=128, heads=4, vocabulary=2048),
    "gpt2": TransformerSize(layers=12, width=768, heads=12, vocabulary=50257),
    "gpt2-medium": TransformerSize(layers=24, width=1024, heads=16, vocabulary=50257),
}
TRANSFORMER_SIZES: Mapping[str, TransformerSize] = {**BERT_SIZES, **GPT_SIZES}
