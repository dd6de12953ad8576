"""`report:` of a campaign file."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from campaign.spec.campaign_file import ReportLayout


def test_figures_are_named_as_their_files_or_as_on_the_page() -> None:
    layout = ReportLayout.model_validate({"open": ["node-spread", "scaling"], "hide": ["part_of_host"]})
    assert (layout.open, layout.hide) == (("node-spread", "scaling"), ("part_of_host",))


@pytest.mark.parametrize(
    ("layout", "words"),
    [
        (
            {"open": ["scalling"]},
            "'open' has an unknown figure 'scalling'; there are: allreduce, break_even, composition_times",
        ),
        ({"hide": ["summary"]}, "'hide' has an unknown figure 'summary'"),
        ({"open": ["scaling"], "hide": ["scaling"]}, "'open' and 'hide' both have scaling"),
        ({"order": ["scaling"]}, "order"),
    ],
)
def test_what_names_no_figure_is_refused_with_what_there_is(layout: dict[str, list[str]], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        ReportLayout.model_validate(layout)
