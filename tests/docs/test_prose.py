from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.pages import PAGES, ROOT, sentences

WORDS_MAX = 40
README_WORDS_MAX = 25


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_sentence_is_long(page: Path) -> None:
    limit = README_WORDS_MAX if page == ROOT / "README.md" else WORDS_MAX
    long = [f"{len(words)} words: {sentence}" for sentence in sentences(page) if len(words := sentence.split()) > limit]
    assert not long, "\n".join(long)


def test_the_readme_can_be_read_in_a_few_minutes() -> None:
    assert (ROOT / "README.md").stat().st_size <= 8 * 1024


def test_pictures_stay_small() -> None:
    pictures = [path for path in (ROOT / "docs").rglob("*") if path.suffix in (".png", ".svg")]
    assert sum(path.stat().st_size for path in pictures) < 2 * 1024 * 1024
