"""What requests ask for: prompts of a length without a tokenizer, lengths by their distribution or from a file."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from campaign.workloads.load.load_file import Lengths, Load, Lognormal, Uniform

# Common short words: most tokenizers have a token for each with the space before it.
_WORDS_TEXT = (
    "the of and to in is that for it as was with be by on not he his but at are this have from or had an they which one you "
    "were all her she there would their we him been has when who will no more if out so up said what its about than into them "
    "can only other time new some could these two may first then do any like my now over such our man me even most made after"
)
_WORDS = _WORDS_TEXT.split()


@dataclass(frozen=True)
class Prompt:
    text: str
    prompt_tokens: int
    output_tokens: int


def prompts(load: Load, draw: random.Random) -> Iterator[Prompt]:
    """Prompts without end. They begin differently, so that a cache of prefixes does not answer them. ValueError: of its file."""
    return _drawn(load, draw) if load.prompts is None else _of(read_prompts(Path(load.prompts)), draw)


def _drawn(load: Load, draw: random.Random) -> Iterator[Prompt]:
    while True:
        count = length(load.prompt_tokens, draw)
        yield Prompt(words(count, draw), count, length(load.output_tokens, draw))


def _of(rows: Sequence[Prompt], draw: random.Random) -> Iterator[Prompt]:
    while True:
        for row in draw.sample(rows, len(rows)):
            yield Prompt(row.text or words(row.prompt_tokens, draw), row.prompt_tokens, row.output_tokens)


def words(count: int, draw: random.Random) -> str:
    """So many words."""
    return " ".join(draw.choices(_WORDS, k=count))


def length(lengths: Lengths, draw: random.Random) -> int:
    """A length in tokens."""
    if isinstance(lengths, Uniform):
        return draw.randint(*lengths.uniform)
    if isinstance(lengths, Lognormal):
        return min(lengths.max, max(1, round(draw.lognormvariate(math.log(lengths.median), lengths.sigma))))
    return lengths


def read_prompts(path: Path) -> list[Prompt]:
    """The prompts of a file; ValueError says which line is wrong."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: cannot be read ({error})") from error
    try:
        if text.lstrip().startswith("["):
            found = [prompt for entry in json.loads(text) if (prompt := _conversation(entry))]
        else:
            found = [_row(path, at, line) for at, line in enumerate(text.splitlines(), 1) if line.strip()]
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}: is not JSON ({error})") from error
    if not found:
        raise ValueError(f"{path}: has no prompt")
    return found


def _row(path: Path, at: int, line: str) -> Prompt:
    row = json.loads(line) if line.lstrip().startswith("{") else None
    if not isinstance(row, dict):
        raise ValueError(f"{path}:{at}: is not a JSON object with 'prompt_tokens' and 'output_tokens'")
    text, output_tokens = row.get("prompt", ""), row.get("output_tokens")
    prompt_tokens = row.get("prompt_tokens", len(str(text).split()))
    if isinstance(text, str) and _is_count(prompt_tokens) and _is_count(output_tokens):
        return Prompt(text, prompt_tokens, output_tokens)
    raise ValueError(
        f"{path}:{at}: 'prompt_tokens' and 'output_tokens' are whole numbers above 0, and 'prompt' is a text, if given"
    )


def _is_count(value: Any) -> TypeGuard[int]:
    return type(value) is int and value > 0


def _conversation(entry: Any) -> Prompt | None:
    """The first question of a conversation, with as many tokens as it and its answer have words; None without an answer."""
    turns = entry.get("conversations") if isinstance(entry, dict) else None
    if not isinstance(turns, list) or len(turns) < 2:
        return None
    texts = [turn.get("value") if isinstance(turn, dict) else None for turn in turns[:2]]
    counts = [len(text.split()) if isinstance(text, str) else 0 for text in texts]
    return Prompt(str(texts[0]), counts[0], counts[1]) if all(counts) else None
