"""Sizes of the built-in transformers. Without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Size:
    layers: int
    width: int
    heads: int
    vocabulary: int


BERT_SIZES: Mapping[str, Size] = {
    "bert-nano": Size(layers=2, width=128, heads=2, vocabulary=2048),
    "bert-base": Size(layers=12, width=768, heads=12, vocabulary=30522),
    "bert-large": Size(layers=24, width=1024, heads=16, vocabulary=30522),
}
GPT_SIZES: Mapping[str, Size] = {
    "gpt-nano": Size(layers=2, width=128, heads=4, vocabulary=2048),
    "gpt2": Size(layers=12, width=768, heads=12, vocabulary=50257),
    "gpt2-medium": Size(layers=24, width=1024, heads=16, vocabulary=50257),
}
TRANSFORMER_SIZES: Mapping[str, Size] = {**BERT_SIZES, **GPT_SIZES}
