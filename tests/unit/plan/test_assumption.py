"""Times that a person assumes."""

import pytest

from campaign.errors import ConfigError
from campaign.plan.cost.assumption import parse_assumption


def test_times_of_runs_and_of_composing() -> None:
    found = parse_assumption("10 min a run,bert-large : 1.5 h a run, 30s to compose")
    assert (found.of_run("steps"), found.of_run("bert-large"), found.compose_s) == (600, 5400, 30)
    assert parse_assumption(str(found)) == found
    assert parse_assumption("30 s to compose").of_run("steps") is None


@pytest.mark.parametrize(
    "text", ["10", "10 min", "0 s a run", "a run", "-1 s a run", "x: 3 s to compose", "1 s a run; 2 s a run"]
)
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(
        ConfigError, match="is no time; write '10 min a run', 'bert-large: 2 h a run' or '30 s to compose'"
    ):
        parse_assumption(text)


def test_two_times_of_one_thing_are_refused() -> None:
    with pytest.raises(ConfigError, match="has two times: a run of bert; leave one out"):
        parse_assumption("bert: 1 s a run, bert: 2 s a run")
