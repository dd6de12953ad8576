from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.docs.pages import PAGES, ROOT, anchors, links


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_file_and_an_anchor_that_exist(page: Path) -> None:
    broken = []
    for link in links(page):
        target = urlsplit(link)
        if target.scheme or target.netloc:
            continue
        path = (page.parent / unquote(target.path)).resolve() if target.path else page
        there = path.exists() and path.is_relative_to(ROOT)
        if not there or (target.fragment and path.suffix == ".md" and target.fragment not in anchors(path)):
            broken.append(link)
    assert not broken
