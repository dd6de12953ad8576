"""Kinds of sentences that readers of the page stumble over, for the tests of figures and pages."""

from __future__ import annotations

import re
from collections.abc import Iterable

_KINDS = {
    "counts of runs belong into the table": r"\bn = \d|runs? a (mark|bar|point)|which is a cell",
    "terms of statistics are those of the field": r"\bborrowed\b|\bsurely\b|\bbehind it\b|told apart",
    "a p-value has its hypothesis beside it": r"\bp (?!of |against )(=|<|\d)",
    "a sentence has one number with its interval": r"\[[^\]]*\d[^\]]*\][^:]*\[[^\]]*\d[^\]]*\]|[\d%×\]][,;] up to [\d−]",
    "nothing is said of an empty set": r"(?<![\d.,−])0 (?!of\b)[a-z]{3,}",
    "what is not shown is said with a verb": r"without (a value|such a number)|left open|kind of attachment|at most so",
}


def find_odd_sentences(texts: Iterable[str]) -> list[str]:
    """Return the sentences of the kinds above, and those that begin with an effect that they then call insignificant."""
    sentences = [sentence for text in texts for sentence in re.split(r"(?<=[.?!]) (?=[A-Z])", text)]
    odd = [f"{kind}: {text}" for text in sentences for kind, pattern in _KINDS.items() if re.search(pattern, text)]
    return odd + [
        f"an effect is not taken back: {text}"
        for text in sentences
        if re.search(r"\b(not|no) significant", text) and not text.startswith(("No significant", "None of"))
    ]
