"""Requests of a run, as its record holds them."""

from __future__ import annotations

from campaign.documents.requests import Requests


def test_a_key_that_a_server_repeats_is_masked() -> None:
    columns = {
        "intended_s": [0.0, 0.1],
        "sent_s": [0.0, 0.1],
        "first_s": [None, 0.2],
        "last_s": [None, 0.3],
        "prompt_tokens": [1, 1],
        "output_tokens": [None, 1],
        "error": ["Incorrect API key provided: sk-" + "a1" * 12, None],
    }

    assert Requests.of(columns, (0.0, 1.0)).error == ("Incorrect API key provided: ***", None)
